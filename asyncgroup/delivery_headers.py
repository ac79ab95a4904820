"""Names of the headers that work queues act on: delivery time and ordering key.

They stand for `deliverAtTime` and `orderingKey` of Pulsar's messages. Producers write them, queues read them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DELIVER_AT", "ORDERING_KEY"]

DELIVER_AT: Final = "ag-deliver-at"
"""Name of the header with the delivery time: ms since 1970, in decimal digits.

A work queue delivers the record at that time or later, in the modes Shared and Key_Shared; in its other modes, and for
other consumers, it is a header without effect.
"""

ORDERING_KEY: Final = "ag-ordering-key"
"""Name of the header with the ordering key, any bytes.

A work queue in the mode Key_Shared dispatches the record by this key instead of the record's key. The partition, and
compaction, depend on the record's key only. In other modes, and for other consumers, it is a header without effect.
"""

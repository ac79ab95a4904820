"""Write control batches: the COMMIT and ABORT markers that end a transaction in a partition (KIP-98).

The format, and reading them, are in `wire/records.py`.
"""

from __future__ import annotations

import struct
from typing import Final

from asyncgroup.wire.batch_view import CONTROL, LOG_APPEND_TIME, BatchView, with_attributes
from asyncgroup.wire.records import MARKER_KEY, BatchBuilder, ControlType

__all__ = ["control_batch"]

_VALUE = struct.Struct(">hi")
"""The value: version and coordinator epoch."""

_VERSION: Final = 0


def control_batch(
    control_type: ControlType,
    producer_id: int,
    producer_epoch: int,
    *,
    coordinator_epoch: int = 0,
    timestamp: int = -1,
    append_time: bool = False,
) -> bytes:
    """Return a marker with base offset 0; `timestamp` in ms, with timestamp type LogAppendTime if `append_time`."""
    builder = BatchBuilder(
        "none", 1 << 10, transactional=True, producer_id=producer_id, producer_epoch=producer_epoch
    )
    builder.append(
        timestamp, MARKER_KEY.pack(_VERSION, control_type), _VALUE.pack(_VERSION, coordinator_epoch)
    )
    batch = BatchView(builder.build())
    flags = CONTROL | (LOG_APPEND_TIME if append_time else 0)
    return bytes(with_attributes(batch, batch.attributes | flags).data)

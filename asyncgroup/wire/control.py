"""Control batches: the COMMIT and ABORT markers that end a transaction in a partition (KIP-98).

A marker is a batch of one record with the key (version, type) and the value (version, coordinator epoch), as in Kafka's
`ControlRecordType` and `EndTransactionMarker`. Consumers read markers but do not return them to the application.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from asyncgroup.errors import AsyncGroupError, CorruptRecordsError
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import check_batch, read_batch

__all__ = ["KEY", "ControlType", "read_control_type"]

KEY = struct.Struct(">hh")
"""A marker's key: version and control type."""


class ControlType(IntEnum):
    """The result of the transaction that a marker ends."""

    ABORT = 0
    COMMIT = 1


def read_control_type(batch: BatchView, *, check_crc: bool = True) -> ControlType | None:
    """Return the control type of a control batch.

    None for other control records, and for a batch without records after compaction. Raises CorruptRecordsError for
    malformed bytes.
    """
    if batch.record_count == 0:
        return None
    try:
        check_batch("", -1, batch, check_crc)
        record = next(iter(read_batch("", -1, batch)))
        _, control_type = KEY.unpack_from(record.key or b"")
        return ControlType(control_type)
    except ValueError:
        return None  # snapshot and leader-change records of KRaft, and types of later versions
    except (AsyncGroupError, struct.error, StopIteration) as error:
        raise CorruptRecordsError(f"control batch at offset {batch.base_offset}: {error}") from error

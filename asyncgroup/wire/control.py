"""Control batches: the COMMIT and ABORT markers that end a transaction in a partition (KIP-98).

A marker is a batch of one record with the key (version, type) and the value (version, coordinator epoch), as in Kafka's
`ControlRecordType` and `EndTransactionMarker`. Consumers read markers but do not return them to the application.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from asyncgroup.errors import AsyncGroupError, CorruptRecordsError
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchBuilder, BatchHeader, check_batch, read_batch, update_crc

__all__ = ["ControlType", "control_batch", "read_control_type"]

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION: Final = 0
_ATTRIBUTES_LOW: Final = 22  # position of the attributes' low byte in a batch
_LOG_APPEND_TIME: Final = 0x08  # attribute bits
_CONTROL: Final = 0x20


class ControlType(IntEnum):
    """The result of the transaction that a marker ends."""

    ABORT = 0
    COMMIT = 1


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
    builder.append(timestamp, _KEY.pack(_VERSION, control_type), _VALUE.pack(_VERSION, coordinator_epoch))
    batch = bytearray(builder.build())
    batch[_ATTRIBUTES_LOW] |= _CONTROL | (_LOG_APPEND_TIME if append_time else 0)
    update_crc(batch)
    return bytes(batch)


def read_control_type(batch: Buffer, header: BatchHeader, *, check_crc: bool = True) -> ControlType | None:
    """Return the control type of a complete control batch (`batch` is exactly its bytes).

    None for other control records, and for a batch without records after compaction. Raises CorruptRecordsError for
    malformed bytes.
    """
    if header.record_count == 0:
        return None
    try:
        check_batch("", -1, batch, header, check_crc)
        record = next(iter(read_batch("", -1, batch, header)))
        _, control_type = _KEY.unpack_from(record.key or b"")
        return ControlType(control_type)
    except ValueError:
        return None  # snapshot and leader-change records of KRaft, and types of later versions
    except (AsyncGroupError, struct.error, StopIteration) as error:
        raise CorruptRecordsError(f"control batch at offset {header.base_offset}: {error}") from error

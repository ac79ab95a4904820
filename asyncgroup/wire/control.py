"""Control batches: the markers that end a transaction in a partition (KIP-98).

A marker is a batch of one record. Its key is (version, type), its value (version, coordinator epoch): Kafka's
`ControlRecordType` and `EndTransactionMarker`. Clients read markers and never hand them out.
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
_ATTRIBUTES_LOW: Final = 22
_LOG_APPEND_TIME: Final = 0x08
_CONTROL: Final = 0x20


class ControlType(IntEnum):
    """What a marker says of the transaction that it ends."""

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
    """A marker with base offset 0; `timestamp` in ms, said to be the broker's if `append_time`."""
    builder = BatchBuilder(
        "none", 1 << 10, transactional=True, producer_id=producer_id, producer_epoch=producer_epoch
    )
    builder.append(timestamp, _KEY.pack(_VERSION, control_type), _VALUE.pack(_VERSION, coordinator_epoch))
    batch = bytearray(builder.build())
    batch[_ATTRIBUTES_LOW] |= _CONTROL | (_LOG_APPEND_TIME if append_time else 0)
    update_crc(batch)
    return bytes(batch)


def read_control_type(batch: Buffer, header: BatchHeader, *, check_crc: bool = True) -> ControlType | None:
    """What a whole control batch (`batch` holds just its bytes) says; None for other kinds of control records, and for
    one that compaction has emptied. Raises CorruptRecordsError for bytes that are no such batch.
    """
    if header.record_count == 0:
        return None
    try:
        check_batch("", -1, batch, header, check_crc)
        record = next(iter(read_batch("", -1, batch, header)))
        _, control_type = _KEY.unpack_from(record.key or b"")
        return ControlType(control_type)
    except ValueError:
        return None  # snapshot and leader-change records of KRaft, and what later versions bring
    except (AsyncGroupError, struct.error, StopIteration) as error:
        raise CorruptRecordsError(f"control batch at offset {header.base_offset}: {error}") from error

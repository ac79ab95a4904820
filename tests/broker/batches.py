"""Helpers that build record batches and read their headers."""

from __future__ import annotations

import struct
from typing import Any

from asyncgroup.broker.log.batch_validator import BatchValidator, produced_batch
from asyncgroup.broker.log.partition_log import LogAppendInfo, PartitionLog
from asyncgroup.broker.log.topic_configs import DEFAULTS
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import BatchBuilder

_LATE = 2**62
"""A time of the append (ms) that no test's record is ahead of."""


def batch(
    *values: bytes, timestamp: int = 1000, step: int = 0, codec: str = "none", **producer: int
) -> bytes:
    """Return a batch with these values and key `k`; timestamps increase by `step` ms."""
    builder = BatchBuilder(codec, 1 << 30, **producer)
    for number, value in enumerate(values or (b"v",)):
        assert builder.append(timestamp + number * step, b"k", value)
    return builder.build()


def append(
    log: PartitionLog,
    data: Any,
    leader_epoch: int,
    *,
    max_batch_bytes: int = 1048588,
    by_coordinator: bool = False,
) -> LogAppendInfo:
    """Validate a batch as that of a Produce request and append it."""
    config = DEFAULTS._replace(max_message_bytes=max_batch_bytes)
    valid = BatchValidator(log.topic, log.partition, config).validate(produced_batch(data, 13).batch, _LATE)
    return log.append(valid, leader_epoch, by_coordinator=by_coordinator)


def keyed(
    *pairs: tuple[bytes | None, bytes | None], timestamp: int = 1000, codec: str = "none", **producer
) -> bytes:
    """Return a batch with these keys and values, each with a header; timestamps increase by 1 ms."""
    builder = BatchBuilder(codec, 1 << 30, **producer)
    for number, (key, value) in enumerate(pairs):
        assert builder.append(timestamp + number, key, value, [("h", b"x")])
    return builder.build()


def sequenced(first: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    """Return a batch of an idempotent producer, with sequence numbers from `first`."""
    values = [b"s%d" % (first + number) for number in range(count)]
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


def offsets(data) -> list[tuple[int, int]]:
    """Return the (first, last) offset of each batch."""
    return [(found.base_offset, found.last_offset) for found in iter_batches(bytes(data))]


def with_crc(data: bytes, position: int, value: bytes) -> bytes:
    """Return the batch with the bytes at `position` (after the CRC) replaced and the CRC recomputed."""
    import crc32c

    changed = bytearray(data)
    changed[position : position + len(value)] = value
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)

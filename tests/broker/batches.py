"""Record batches for tests, and a look into them."""

from __future__ import annotations

import struct

from asyncgroup.wire.records import BatchBuilder, iter_batch_headers


def batch(
    *values: bytes, timestamp: int = 1000, step: int = 0, codec: str = "none", **producer: int
) -> bytes:
    """One batch with these values; timestamps grow by `step` ms."""
    builder = BatchBuilder(codec, 1 << 30, **producer)
    for number, value in enumerate(values or (b"v",)):
        assert builder.append(timestamp + number * step, b"k", value)
    return builder.build()


def keyed(
    *pairs: tuple[bytes | None, bytes | None], timestamp: int = 1000, codec: str = "none", **producer
) -> bytes:
    """One batch with these keys and values, a header each; timestamps grow by 1 ms."""
    builder = BatchBuilder(codec, 1 << 30, **producer)
    for number, (key, value) in enumerate(pairs):
        assert builder.append(timestamp + number, key, value, [("h", b"x")])
    return builder.build()


def sequenced(first: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    values = [b"s%d" % (first + number) for number in range(count)]
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


def offsets(data) -> list[tuple[int, int]]:
    """(first, last) offset of each batch."""
    return [(header.base_offset, header.last_offset) for header in iter_batch_headers(bytes(data))]


def with_crc(data: bytes, position: int, value: bytes) -> bytes:
    """The batch with some bytes behind the CRC changed and the CRC made to fit."""
    import crc32c

    changed = bytearray(data)
    changed[position : position + len(value)] = value
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)

"""Sizes of record batches, from their headers."""

from __future__ import annotations

from asyncgroup.wire.batch_view import batch_sizes
from asyncgroup.wire.records import BatchBuilder


def batch(rows: int, size: int) -> bytes:
    builder = BatchBuilder()
    for _ in range(rows):
        builder.append(timestamp=0, key=None, value=b"v" * size, headers=())
    return builder.build()


def old_message(size: int, magic: int) -> bytes:
    """Return a message of format 0 or 1."""
    return b"\0" * 8 + (size - 12).to_bytes(4, "big") + b"crc!" + bytes([magic]) + b"\0" * (size - 17)


def test_whole_batches_and_a_partial_one() -> None:
    first, second, third = batch(3, 100), batch(10, 10), batch(7, 1000)
    cut = third[:100]
    assert list(batch_sizes(first + second + cut)) == [(len(first), 3), (len(second), 10), (len(third), 7)]


def test_a_truncated_header_is_ignored() -> None:
    assert list(batch_sizes(batch(3, 100)[:26])) == []
    assert list(batch_sizes(b"")) == []


def test_old_messages_have_one_offset_each() -> None:
    assert list(batch_sizes(old_message(60, 0) + old_message(80, 1))) == [(60, 1), (80, 1)]


def test_an_invalid_length_ends_the_iteration() -> None:
    assert list(batch_sizes(b"\0" * 100)) == []

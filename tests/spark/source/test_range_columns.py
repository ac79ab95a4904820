"""`read_before` returns the same as reading record by record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.spark.source.executor.range_columns import read_before
from tests.consumer.support import TP, batch, corrupt, legacy, pop

KINDS = ("dense", "gaps", "tail gone", "empty", "empty lz4", "marker", "old", "old compressed", "gzip")


def log_of(kinds: Sequence[str], start: int = 0) -> bytes:
    """Return consecutive batches of five offsets each."""
    made = {
        "dense": lambda base: batch(base, count=5),
        "gaps": lambda base: batch(base, [base + 1, base + 3], last=base + 4),
        "tail gone": lambda base: batch(base, count=2, last=base + 4),
        "empty": lambda base: batch(base, [], last=base + 4),
        "empty lz4": lambda base: batch(base, [], last=base + 4, codec="lz4"),
        "marker": lambda base: batch(base, count=1, last=base + 4, control=True),
        "old": lambda base: legacy(range(base, base + 5)),
        "old compressed": lambda base: legacy(range(base, base + 5), compressed=True),
        "gzip": lambda base: batch(base, count=5, codec="gzip"),
    }
    return b"".join(made[kind](start + 5 * number) for number, kind in enumerate(kinds))


def filled(data: bytes, offset: int = 0, **how: object) -> RecordBuffer:
    buffer = RecordBuffer(TP, offset, True, **how)  # type: ignore[arg-type]
    buffer.add(data, zero_copy=True)
    return buffer


def by_columns(buffer: RecordBuffer, end: int) -> list[int]:
    columns = RecordColumns()
    while read_before(buffer, columns, end):
        pass
    assert len(columns) == len(columns.keys) == len(columns.values)
    return [offset for run in columns.runs for offset in run.offsets]


def by_records(buffer: RecordBuffer) -> list[int]:
    found = []
    while buffer.decoded or buffer.advance():
        if (record := pop(buffer)) is not None:
            found.append(record.offset)
    return found


@given(
    kinds=st.lists(st.sampled_from(KINDS), max_size=8),
    offset=st.integers(0, 12),
    ends=st.lists(st.integers(0, 45), max_size=5),
)
def test_columns_read_in_pieces_equal_the_records(kinds: list[str], offset: int, ends: list[int]) -> None:
    data = log_of(kinds)
    records = by_records(filled(data, offset))
    buffer, read = filled(data, offset), offset
    for end in sorted(ends):
        assert by_columns(buffer, end) == [one for one in records if read <= one < end]
        read = max(read, end)
        assert buffer.position >= min(read, buffer.fetch_offset)
        buffer.queue.copy_batches()
    assert by_columns(buffer, 100) == [one for one in records if one >= read]
    assert (buffer.bytes, buffer.records, bool(buffer), by_columns(buffer, 100)) == (0, 0, False, [])


def test_reads_by_column_and_by_record_can_alternate() -> None:
    buffer = filled(log_of(["dense", "gaps", "dense"]), 1)
    assert by_columns(buffer, 3) == [1, 2]
    assert buffer.advance()
    first = pop(buffer)
    assert first is not None
    assert first.offset == 3
    assert by_columns(buffer, 12) == [4, 6, 8, 10, 11]
    assert by_records(buffer) == [12, 13, 14]


def test_a_corrupt_batch_stays_or_is_skipped_with_on_skip() -> None:
    data = batch(0, count=5) + corrupt(batch(5, count=5)) + batch(10, count=5)
    buffer = filled(data)
    columns = RecordColumns()
    assert read_before(buffer, columns, 100)
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="orders-3 at offset 5"):
            read_before(buffer, columns, 100)
    assert (len(columns), buffer.position) == (5, 5)
    assert by_columns(filled(data), 5) == [0, 1, 2, 3, 4], "batches after the end are not read"
    reported: list[CorruptRecordsError] = []
    skipping = filled(data, on_skip=reported.append)
    skipping.high_watermark = 15
    assert by_columns(skipping, 100) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert len(reported) == 1


def test_bytes_without_batches_raise_after_the_good_batches() -> None:
    data = batch(0, count=5) + b"\0" * 16 + b"\x09" + b"\0" * 100
    buffer = filled(data)
    assert by_columns(buffer, 5) == [0, 1, 2, 3, 4], "the damage is after the end"
    columns = RecordColumns()
    with pytest.raises(CorruptRecordsError, match="partition orders-3"):
        read_before(buffer, columns, 6)


def test_buffered_batches_can_be_copied_out_of_their_response() -> None:
    response = bytearray(batch(0, count=5) + batch(5, count=5))
    buffer = filled(memoryview(response))  # type: ignore[arg-type]
    assert by_columns(buffer, 7) == [0, 1, 2, 3, 4, 5, 6]
    buffer.queue.copy_batches()
    response[:] = bytes(len(response))
    assert by_columns(buffer, 10) == [7, 8, 9]
    assert buffer.batch_bytes == len(batch(5, count=5))

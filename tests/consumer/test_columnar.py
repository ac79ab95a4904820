"""Batches read into columns have the same content as when read into records."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, strategies as st

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.decoding import read_columns
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record
from asyncgroup.wire import compiled
from asyncgroup.wire.batch_view import BatchView, assign_offsets, batch_at
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import CODECS, decode_batch
from tests.consumer.support import batch, corrupt
from tests.wire.batches import log_append, with_valid_crc

BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)
ROW = st.tuples(st.integers(1, 3), st.integers(0, 1 << 45), BYTES, BYTES, HEADERS)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch with or without gaps, with any codec, with CreateTime or LogAppendTime."""
    rows, dense = draw(st.lists(ROW, min_size=1, max_size=12)), draw(st.booleans())
    builder = DefaultRecordBatchBuilder(
        2, CODECS[draw(st.sampled_from(sorted(CODECS)))], 0, -1, -1, -1, 1 << 20
    )
    delta = 0
    for number, (step, time, key, value, headers) in enumerate(rows):
        delta += (1 if dense else step) if number else 0
        assert builder.append(delta, time, key, value, headers) is not None
    data = bytearray(builder.build())
    if draw(st.booleans()):
        data = bytearray(log_append(bytes(data), 1_700_000_000_000))
    assign_offsets(data, draw(st.integers(0, 1 << 40)), 3)
    return bytes(data)


def view_of(data: Buffer) -> BatchView:
    found = batch_at(data)
    assert found is not None
    return found


def rows_of(columns: RecordColumns) -> list[tuple[object, ...]]:
    assert columns.headers is not None
    offsets = [offset for run in columns.runs for offset in run.offsets]
    kinds = [run.timestamp_type for run in columns.runs for _ in run.offsets]
    headers = [tuple(found) for found in columns.headers]
    return list(zip(offsets, columns.timestamps, kinds, columns.keys, columns.values, headers, strict=True))


def rows_wanted(records: list[Record]) -> list[tuple[object, ...]]:
    return [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers)) for r in records]


@given(data=batches(), start=st.integers(-3, 40), length=st.integers(0, 40))
def test_columns_match_the_records(data: bytes, start: int, length: int) -> None:
    view = view_of(data)
    first = view.base_offset + start
    whole, some, bare = (
        RecordColumns(include_headers=True),
        RecordColumns(include_headers=True),
        RecordColumns(),
    )
    read_columns("t", 3, view, whole)
    read_columns("t", 3, view, some, start=first, end=first + length)
    read_columns("t", 3, view, bare, start=first, end=first + length)
    records = decode_batch("t", 3, view)
    assert rows_of(whole) == rows_wanted(records)
    wanted = [record for record in records if first <= record.offset < first + length]
    assert rows_of(some) == rows_wanted(wanted)
    assert (bare.values, bare.keys, bare.headers) == (some.values, some.keys, None)
    assert len(some) == len(wanted) == sum(len(run.offsets) for run in some.runs)


def test_offsets_without_gaps_are_a_range() -> None:
    columns = RecordColumns()
    for data in (
        batch(5, count=3),
        batch(8, count=2),
        batch(20, [20, 22]),
        batch(23, [23, 25]),
        batch(26, count=4),
    ):
        read_columns("t", 3, view_of(data), columns)
    assert [run.offsets for run in columns.runs] == [range(5, 10), [20, 22, 23, 25], range(26, 30)]
    assert repr(columns) == "<RecordColumns: 13 records in 3 runs>"
    assert repr(columns.runs[0]) == "<RecordRun t-3: range(5, 10)>"


def test_is_dense() -> None:
    assert view_of(batch(5, count=3)).is_dense
    assert not view_of(batch(5, [5, 7])).is_dense
    assert not view_of(batch(5, [5, 6], last=9)).is_dense


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_malformed_batch_appends_nothing(codec: str) -> None:
    data = bytearray(batch(10, count=5, codec=codec))
    data[-8] ^= 0xFF
    data[-30:-20] = bytes(10)
    broken = with_valid_crc(bytes(data))
    columns = RecordColumns()
    read_columns("t", 3, view_of(batch(0, count=3)), columns)
    with pytest.raises(CorruptRecordsError, match="t-3 at offset 10"):
        read_columns("t", 3, view_of(broken), columns)
    assert (len(columns), len(columns.keys), len(columns.values)) == (3, 3, 3)
    assert [run.offsets for run in columns.runs] == [range(3)]


def test_the_size_is_the_decompressed_size() -> None:
    data = batch(0, count=10, codec="gzip", value=bytes(10_000))
    columns = RecordColumns()
    read_columns("t", 3, view_of(data), columns)
    assert len(data) < 5_000
    assert 100_000 < columns.size < 110_000
    with pytest.raises(CorruptRecordsError, match="more than the limit of 5000 bytes"):
        read_columns("t", 3, view_of(data), columns, limit=5_000)


@pytest.mark.parametrize("crc32c", [compiled.crc32c, compiled.calc_crc32c])
def test_crc_with_and_without_the_package_crc32c(monkeypatch: pytest.MonkeyPatch, crc32c: object) -> None:
    monkeypatch.setattr(compiled, "crc32c", crc32c)
    for form in (bytes, bytearray, memoryview):
        assert view_of(form(batch(7, count=3))).crc_is_valid()
        assert not view_of(form(corrupt(batch(7, count=3)))).crc_is_valid()


def test_the_package_crc32c_is_used_if_installed() -> None:
    pytest.importorskip("crc32c")
    assert compiled.crc32c is not compiled.calc_crc32c
    assert compiled.crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert struct.calcsize(">I") == 4

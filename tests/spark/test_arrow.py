"""Records as Arrow data, without an object per record, equal those converted record by record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings as rules, strategies as st

from asyncgroup.columns import MalformedTimestamp, RecordColumns, arrow_schema
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.decoding import LazyRecords
from asyncgroup.errors import CorruptRecordsError, UsageError
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.spark.arrow import MAX_ROWS, TARGET_BYTES, TARGET_ROWS, ArrowBatches
from tests.consumer.support import TP, batch, legacy
from tests.consumer.test_columnar import batches
from tests.profiles import examples

pa = pytest.importorskip("pyarrow")


def row_by_row(records: Sequence[Record], *, include_headers: bool) -> Any:
    """Convert records one value at a time."""
    rows = list(records)
    columns = [
        [r.key for r in rows],
        [r.value for r in rows],
        [r.topic for r in rows],
        [r.partition for r in rows],
        [r.offset for r in rows],
        [r.timestamp * 1000 for r in rows],
        [r.timestamp_type for r in rows],
    ]
    if include_headers:
        columns.append([[{"key": k, "value": v} for k, v in r.headers] or None for r in rows])
    schema = arrow_schema(include_headers=include_headers)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def taken(*data: bytes, offset: int = 0, most: int = 10_000) -> LazyRecords:
    buffer = RecordBuffer(TP, offset, check_crcs=True)
    buffer.add(b"".join(data), zero_copy=True)
    return buffer.pop_records(most, 1 << 24)


def rebased(data: Sequence[bytes]) -> list[bytes]:
    """Give batches consecutive offsets, as in a log."""
    from asyncgroup.wire.batch_view import BatchView, assign_offsets

    found, offset = [], 7
    for one in data:
        changed = bytearray(one)
        assign_offsets(changed, offset, 3)
        offset = BatchView(changed).next_offset
        found.append(bytes(changed))
    return found


@rules(max_examples=examples(50))
@given(
    data=st.lists(batches(), min_size=1, max_size=4),
    skip=st.integers(0, 10),
    most=st.integers(1, 60),
    headers=st.booleans(),
)
def test_a_fetched_batch_equals_the_simple_conversion(
    data: list[bytes], skip: int, most: int, headers: bool
) -> None:
    records = taken(*rebased(data), offset=7 + skip, most=most)
    if not records:
        return
    got = Batch(*TP, records, (records.first_offset, records.last_offset), -1).to_arrow(
        include_headers=headers
    )
    got.validate(full=True)
    assert got.equals(row_by_row(records, include_headers=headers))


@rules(max_examples=examples(50))
@given(
    st.lists(
        st.builds(
            Record,
            topic=st.sampled_from(["a", "b"]),
            partition=st.integers(0, 2),
            offset=st.integers(0, 9),
            timestamp=st.integers(-1, 1 << 50),
            timestamp_type=st.integers(0, 1),
            key=st.none() | st.binary(max_size=9),
            value=st.none() | st.binary(max_size=9),
            headers=st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_records_of_any_partitions_equal_the_simple_conversion(records: list[Record], headers: bool) -> None:
    got = Batch("t", 0, records).to_arrow(include_headers=headers)
    got.validate(full=True)
    assert got.equals(row_by_row(records, include_headers=headers))


def test_old_message_sets() -> None:
    records = taken(legacy([0, 1, 2], compressed=True), batch(3, count=2))
    got = Batch(*TP, records, (0, 4), -1).to_arrow()
    assert got.equals(row_by_row(records, include_headers=False))


def test_no_records_are_a_batch_without_rows() -> None:
    for headers in (False, True):
        made = RecordColumns(include_headers=headers).to_arrow()
        assert (made.num_rows, made.schema) == (0, arrow_schema(include_headers=headers))


def test_the_schema_equals_sparks() -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    from asyncgroup.spark.arrow import frame_schema

    for headers in (False, True):
        theirs = types.to_arrow_schema(frame_schema(include_headers=headers), timezone="UTC")
        ours = taken(batch(0, count=2))
        made = Batch(*TP, ours, (0, 1), -1).to_arrow(include_headers=headers)
        assert theirs.equals(made.schema, check_metadata=True)
        assert theirs.field(theirs.names[-1]).type == made.schema.field(made.schema.names[-1]).type


def test_no_object_is_created_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """`read_batch`, by which `LazyRecords` otherwise decodes, is not called."""
    monkeypatch.setattr("asyncgroup.consumer.decoding.read_batch", None)
    records = taken(batch(0, count=50), batch(50, count=50, codec="lz4"))
    assert Batch(*TP, records, (0, 99), -1).to_arrow().column("offset").to_pylist() == list(range(100))


def test_a_timestamp_out_of_range_is_reported_with_its_offset() -> None:
    records = [Record("t", 3, offset, 1000) for offset in range(5)]
    records[3].timestamp = 1 << 62
    with pytest.raises(
        MalformedTimestamp, match=f"t-3 at offset 3: timestamp {1 << 62} ms is out of range"
    ) as caught:
        Batch("t", 3, records).to_arrow()
    assert isinstance(caught.value, CorruptRecordsError)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 3, 3)


def test_corrupt_content_is_reported_with_its_offset() -> None:
    from tests.wire.batches import with_valid_crc

    data = bytearray(batch(5, count=2))
    data[61] += 2  # the first record's length
    records = taken(batch(3, count=2), with_valid_crc(bytes(data)), offset=3)
    with pytest.raises(CorruptRecordsError, match="orders-3 at offset 5"):
        Batch(*TP, records, (3, 6), -1).to_arrow()


@pytest.mark.soak
def test_more_than_arrow_can_hold_is_refused() -> None:
    columns = RecordColumns()
    value = bytes(128 << 20)
    columns.values = [value] * 17
    columns.keys = [None] * 17
    columns.timestamps = [0] * 17
    columns.add_run("t", 0, 0, range(17))
    with pytest.raises(UsageError, match="at most 2 GiB"):
        columns.to_arrow()


# --- batches for Spark ------------------------------------------------------------------------------------------------


def gathered(rows: int, *, size: int = 0) -> ArrowBatches:
    made = ArrowBatches()
    made.columns.values = made.columns.keys = [None] * rows
    made.columns.timestamps = [1] * rows
    made.columns.add_run(*TopicPartition("t", 0), 0, range(rows))
    made.columns.size = size
    return made


@pytest.mark.parametrize("rows", [0, 1, 3_999, TARGET_ROWS, MAX_ROWS, MAX_ROWS + 1, 5 * MAX_ROWS + 3])
def test_batches_are_split_evenly(rows: int) -> None:
    made = gathered(rows)
    sizes = [cut.num_rows for cut in made.flush()]
    assert sum(sizes) == rows
    assert all(size <= MAX_ROWS for size in sizes)
    assert not sizes or max(sizes) - min(sizes) < len(sizes) + 1
    assert (len(made.columns), list(made.flush())) == (0, [])
    assert repr(gathered(3)) == "<ArrowBatches: 3 rows collected>"


def test_sizes_of_a_full_batch() -> None:
    assert not gathered(TARGET_ROWS - 1).is_full
    assert gathered(TARGET_ROWS).is_full
    assert gathered(1, size=TARGET_BYTES).is_full
    assert not gathered(3_999).is_worth_flushing
    assert gathered(4_000).is_worth_flushing

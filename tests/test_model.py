"""TopicPartition, Record, RecordMetadata and Batch."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from asyncgroup.model import Batch, DetailedRecordMetadata, Record, RecordMetadata, TopicPartition

PLAIN = Record("orders", 3, 42, 1_700_000_000_123, 1, b"key", b"value", [("h", b"1"), ("h", None)], 7)


# -- partitions ---------------------------------------------------------------------------------------------------------


def test_partitions_sort_by_number_and_show_as_kafka_shows_them() -> None:
    tps = [TopicPartition("b", 1), TopicPartition("a", 10), TopicPartition("a", 2)]
    assert [str(tp) for tp in sorted(tps)] == ["a-2", "a-10", "b-1"]
    assert TopicPartition("a", 2) == ("a", 2)
    assert TopicPartition(*("a", 2)) in set(tps)


def test_where_a_record_went() -> None:
    metadata = RecordMetadata("orders", 3, 42, 1000)
    assert (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp) == metadata


# -- records ------------------------------------------------------------------------------------------------------------


def test_a_record_by_its_fields() -> None:
    assert PLAIN.time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert PLAIN.headers[0] == ("h", b"1")
    bare = Record("orders", 0, 0)
    assert (bare.timestamp, bare.timestamp_type, bare.key, bare.value) == (-1, 0, None, None)
    assert (bare.headers, bare.leader_epoch) == ((), -1)


@given(st.integers(-(10**11), 10**14))
def test_the_time_is_exact_to_the_millisecond(timestamp: int) -> None:
    time = Record("t", 0, 0, timestamp).time
    assert time.tzinfo is UTC
    assert (time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000 == pytest.approx(
        timestamp, abs=0.01
    )


def test_records_are_equal_by_all_their_fields() -> None:
    same = Record("orders", 3, 42, 1_700_000_000_123, 1, b"key", b"value", (("h", b"1"), ("h", None)), 7)
    assert same == PLAIN, "any sequence may hold the headers"
    assert hash(PLAIN) == hash(same)
    for name in Record.__slots__:
        other = copy.copy(PLAIN)
        setattr(other, name, [("other", b"")] if name == "headers" else "other")
        assert other != PLAIN, name
    assert PLAIN != "orders-3@42"
    assert len({PLAIN, same}) == 1


def test_records_can_be_copied_and_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(PLAIN)) == PLAIN
    assert copy.deepcopy(PLAIN) == PLAIN


def test_a_record_in_one_line_however_long_its_value() -> None:
    assert repr(PLAIN) == "<Record orders-3@42 key=b'key' value=b'value'>"
    assert len(repr(Record("t", 0, 0, value=b"x" * 10_000))) < 120


def test_a_record_takes_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        PLAIN.other = 1  # type: ignore[attr-defined]


# -- batches ------------------------------------------------------------------------------------------------------------


def records(*offsets: int) -> list[Record]:
    return [Record("orders", 3, offset, 1000 + offset, 0, b"k%d" % offset, None) for offset in offsets]


def test_a_batch_is_a_sequence_of_records() -> None:
    made = records(5, 6, 9)
    batch = Batch("orders", 3, made)
    assert (len(batch), list(batch), batch[0], batch[-1]) == (3, made, made[0], made[2])
    assert list(batch[1:]) == made[1:]
    assert made[1] in batch
    assert list(reversed(batch)) == made[::-1]
    assert batch.index(made[2]) == 2
    assert (batch.first_offset, batch.last_offset) == (5, 9)
    assert repr(batch) == "<Batch orders-3 5..9 3 records>"
    with pytest.raises(IndexError):
        batch[3]


def test_a_batch_may_know_its_offsets_without_its_records() -> None:
    batch = Batch("orders", 3, records(5, 6), (5, 8))
    assert (batch.first_offset, batch.last_offset) == (5, 8)


def test_a_batch_as_arrow_has_the_columns_of_sparks_kafka_source() -> None:
    pa = pytest.importorskip("pyarrow")
    made = records(5, 6)
    made[1].headers = [("h", b"1"), ("g", None)]
    table = Batch("orders", 3, made).to_arrow()
    assert table.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    assert table.column("offset").to_pylist() == [5, 6]
    assert table.column("key").to_pylist() == [b"k5", b"k6"]
    assert table.column("value").to_pylist() == [None, None]
    assert table.column("timestamp").to_pylist() == [record.time for record in made]
    with_headers = Batch("orders", 3, made).to_arrow(include_headers=True)
    assert with_headers.column("headers").to_pylist() == [
        None,
        [{"key": "h", "value": b"1"}, {"key": "g", "value": None}],
    ]


def test_a_batch_of_one_record_without_anything_as_arrow() -> None:
    pytest.importorskip("pyarrow")
    table = Batch("t", 0, [Record("t", 0, 0)]).to_arrow(include_headers=True)
    assert table.num_rows == 1


def test_metadata_of_chunks_shows_all_of_its_fields() -> None:
    metadata = DetailedRecordMetadata.of(RecordMetadata("orders", 1, 7, 5), first_offset=4)
    assert repr(metadata) == (
        "RecordMetadata(topic='orders', partition=1, offset=7, timestamp=5, first_offset=4, sequence_id=None)"
    )

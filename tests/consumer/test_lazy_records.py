"""LazyRecords: a sequence whose records are decoded when they are read."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.util import calc_crc32c

from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.decoding import LazyRecords
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Batch
from tests.consumer.support import TP, batch, feed, legacy, make_consumer, pop


def taken(*batches: bytes, offset: int = 0, popped: int = 0, max_records: int = 100) -> LazyRecords:
    buffer = RecordBuffer(TP, offset, check_crcs=True)
    buffer.add(b"".join(batches), zero_copy=True)
    for _ in range(popped):
        assert buffer.decoded or buffer.advance()
        assert pop(buffer) is not None
    return buffer.pop_records(max_records, 1 << 20)


MIXED = {
    "whole": (taken(batch(0, count=3), batch(3, count=2)), [0, 1, 2, 3, 4]),
    "one": (taken(batch(7)), [7]),
    "compressed": (taken(batch(0, count=40, codec="gzip"), max_records=50), list(range(40))),
    "from the middle": (taken(batch(0, count=3), batch(3, count=2), offset=1), [1, 2, 3, 4]),
    "begun": (taken(batch(0, count=3), batch(3, count=2), popped=1), [1, 2, 3, 4]),
    "cut": (taken(batch(0, count=3), batch(3, count=2), max_records=4), [0, 1, 2, 3]),
    "gaps": (taken(batch(0, [1, 3], last=5), batch(6, count=2)), [1, 3, 6, 7]),
    "gap at the end": (taken(batch(0, count=2), batch(2, [2, 3], last=9)), [0, 1, 2, 3]),
    "old": (taken(legacy([0, 1, 2], compressed=True), batch(3, count=2)), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("case", MIXED)
def test_it_is_a_sequence(case: str) -> None:
    records, offsets = MIXED[case]
    assert (len(records), bool(records)) == (len(offsets), True)
    assert (records.first_offset, records.last_offset) == (offsets[0], offsets[-1])
    assert [record.offset for record in records] == offsets
    assert [record.offset for record in records] == offsets, "a second iteration"
    assert records[0].offset == offsets[0]
    assert records[-1].offset == offsets[-1]
    assert [record.offset for record in records[1:3]] == offsets[1:3]
    assert records[0] is records[0], "access by index keeps the records"
    assert [record.offset for record in reversed(records)] == offsets[::-1]
    assert [record.key for record in records if record.key is not None] == [
        b"%06d" % offset for offset in offsets if case != "old" or offset > 2
    ]
    with pytest.raises(IndexError):
        records[len(offsets)]


def test_iteration_decodes_only_the_records_read() -> None:
    records = taken(batch(0, count=3))
    assert next(iter(records)) == next(iter(records))
    assert next(iter(records)) is not next(iter(records))


def test_an_empty_sequence() -> None:
    empty = taken()
    assert (len(empty), list(empty), bool(empty)) == (0, [], False)
    assert repr(empty) == "<LazyRecords orders-3: 0 records>"


def test_bad_content_with_a_right_checksum_raises_when_read() -> None:
    """Brokers refuse such a batch; if a broker returns one, the error is raised to the reader."""
    data = bytearray(batch(5, count=2))
    data[61] += 2  # the first record's length
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    records = taken(batch(3, count=2), bytes(data), offset=3)
    found = []
    with pytest.raises(CorruptRecordsError, match="orders-3 at offset 5"):
        found += [found.append(record.offset) for record in records]
    assert found == [3, 4]


async def test_a_batch_with_lazy_records(consumer: PartitionConsumer) -> None:
    feed(consumer, batch(0, count=3), batch(3, count=2))
    got = await anext(consumer.batches())
    assert isinstance(got, Batch)
    assert (got.first_offset, got.last_offset, len(got)) == (0, 4, 5)
    assert repr(got) == "<Batch orders-3 0..4 5 records>"
    assert [record.offset for record in got] == [0, 1, 2, 3, 4]
    assert got.to_arrow().column("offset").to_pylist() == [0, 1, 2, 3, 4]
    assert (got[2].offset, [record.offset for record in got[3:]]) == (2, [3, 4])


async def test_interceptors_are_called_once_for_each_record() -> None:
    seen: list[int] = []
    consumer = make_consumer(interceptors=[lambda record: seen.append(record.offset)])
    feed(consumer, batch(0, count=3))
    got = await anext(consumer.batches())
    assert [record.offset for record in (*got, *got)] == [0, 1, 2, 0, 1, 2]
    assert seen == [0, 1, 2]

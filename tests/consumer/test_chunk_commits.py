"""Random logs with chunks, also wrong ones, read and marked at random: the records delivered, the values dropped, the offsets committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.buffer import RecordBuffer, make_buffer
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import Header, Record
from asyncgroup.offsets.partition_offsets import PartitionMarks
from asyncgroup.wire.chunks import ChunkInfo, split_value
from tests.consumer.support import TP, batch, corrupt, pop, with_bad_content
from tests.consumer.test_chunk_filter import Row, in_batches, log_of, rows_of, whole
from tests.profiles import examples

RANDOM = st.integers(0, 2**31).map(random.Random)


class Marks(PositionListener):
    """Marks of a partition, with the reports of dropped values."""

    def __init__(self) -> None:
        self.marks = PartitionMarks(0)
        self.hooks = Hooks([self])
        self.dropped: list[int] = []
        self.tp, self.listener, self.paused, self.waiting = TP, self, False, 0

    def on_chunks_dropped(self, _topic: str, _partition: int, first_offset: int, _reason: str) -> None:
        self.dropped.append(first_offset)

    def on_value_begun(self, first_offset: int, leader_epoch: int) -> None:
        self.marks.hold_value(first_offset, leader_epoch)

    def on_value_completed(self, first_offset: int, last_offset: int) -> None:
        self.marks.complete_value(first_offset, last_offset)

    def on_value_dropped(self, first_offset: int) -> None:
        self.marks.release_value(first_offset)

    def on_skipped_range(self, start: int, end: int, epoch: int) -> None:
        self.marks.skip_range(start, end, epoch)


def wrong_chunk(rng: random.Random, info: ChunkInfo, part: bytes) -> Row:
    """Return a chunk with a header or a value that lies, or without one of its headers."""
    headers: list[Header] = info.headers()
    kind = rng.randrange(5)
    if kind == 0:
        del headers[rng.randrange(4)]
    elif kind == 1:
        number = rng.randint(1, 3)
        text = rng.choice([b"-1", b"", b"9" * 19, b"9" * 40, b"1e3", b"\xff", b"0", b"1", b"5"])
        headers[number] = (headers[number][0], text)
    elif kind == 2:
        rng.shuffle(headers)
    elif kind == 3:
        part = rng.choice([b"", part * 2, part[:-1]])
    else:
        headers[0] = (headers[0][0], b"v%d" % rng.randint(0, 5))
    return part, headers


def random_log(rng: random.Random, wrong: float) -> list[Row]:
    """Return rows: whole records, and chunks of interleaved values; some incomplete, some written twice, some wrong."""
    queues = [whole(*(b"w%d" % number for number in range(rng.randint(0, 8))))]
    for number in range(rng.randint(1, 6)):
        value = rng.randbytes(rng.randint(1, 20))
        room = rng.randint(1, 8)
        queue = rows_of(f"v{number}", value, room)
        for place, (info, part) in enumerate(split_value(f"v{number}", value, room)):
            if rng.random() < wrong:
                queue[place] = wrong_chunk(rng, info, part)
        if rng.random() < 0.3:
            queue = queue[: rng.randint(0, len(queue))] + queue[rng.randint(0, len(queue)) :]
        queues.append(queue)
    rows: list[Row] = []
    while queues := [queue for queue in queues if queue]:
        rows.append(rng.choice(queues).pop(0))
    return rows


class Reader:
    """Reads a log of record batches, from an offset on."""

    def __init__(self, rng: random.Random, batches: list[bytes], ends: list[int], **config: Any) -> None:
        self.rng, self.batches, self.ends = rng, batches, ends
        self.place = Marks()
        self.skipped: list[CorruptRecordsError] = []
        self.buffer = make_buffer(
            self.place,
            0,
            ConsumerConfig(chunks="assemble", **config),
            self.skipped.append,
            -1,
            Hooks([self.place]),
        )
        self.got: list[Record] = []

    def fetch(self) -> None:
        buffer = self.buffer
        held = [data for data, end in zip(self.batches, self.ends, strict=True) if end > buffer.fetch_offset]
        buffer.add(b"".join(held[: self.rng.randint(1, 4)]), zero_copy=True)

    def step(self) -> None:
        rng, buffer = self.rng, self.buffer
        choice = rng.random()
        if choice < 0.1:
            buffer.seek(buffer.position)
        if not buffer:
            self.fetch()
        elif choice < 0.5:
            self.got += list(buffer.pop_records(rng.choice((1, 2, 100)), rng.choice((1, 200, 10_000))))
        elif (record := pop(buffer)) is not None:
            self.got.append(record)
        else:
            buffer.advance()

    def read(self, end: int) -> None:
        while self.buffer.position < end:
            self.step()


def values(records: list[Record]) -> set[bytes | None]:
    return {
        record.value for record in records
    }  # without offsets: the next member may get a value's other copy


@settings(max_examples=examples(150), deadline=None)
@given(
    RANDOM, st.sampled_from([0.0, 0.1, 0.4]), st.sampled_from([1, 2, 100]), st.sampled_from([12, 30, 10_000])
)
@example(random.Random(3903), 0.0, 1, 30).via(
    "a seek to where reading stands, behind chunks that were given up"
)
def test_what_is_committed_leads_to_every_value_that_is_not_marked(rng, wrong, pending, size):
    """With any headers and limits nothing is delivered twice, memory is limited, and the commit passes dropped chunks.

    The next member, which begins at the committed offset, gets all values that are not marked.
    """

    async def story() -> None:
        rows = random_log(rng, wrong)
        batches = in_batches(rng, rows)
        ends, offset = [], 0
        for data in batches:
            offset += int.from_bytes(data[57:61], "big")
            ends.append(offset)
        limits = {"max_pending_chunked": pending, "chunk_buffer_bytes": size}
        reader = Reader(rng, batches, ends, **limits)
        marks, marked = reader.place.marks, 0
        while reader.buffer.position < len(rows):
            reader.step()
            if rng.random() < 0.3:
                marked = rng.randint(marked, len(reader.got))
                for record in reader.got[:marked]:
                    marks.mark_record(record)
            committed = marks.value.offset
            unmarked = reader.got[marked:]
            assert all(committed <= record.first_offset for record in unmarked)
            assembler = reader.buffer.chunks.assembler
            assert committed <= assembler.first_offset
            assert assembler.bytes == sum(value.bytes for value in assembler._pending.values()) <= size
            assert len(assembler) <= pending
        assert max(Counter(record.offset for record in reader.got).values(), default=1) == 1
        # all is marked: only incomplete values hold the commit back, also if the log ends with dropped chunks
        for record in reader.got:
            marks.mark_record(record)
        first = int(min(reader.buffer.chunks.assembler.first_offset, len(rows)))
        assert marks.value.offset == first
        heir = Reader(rng, batches, ends, max_pending_chunked=100)
        unmarked = reader.got[marked:]
        heir.buffer.seek(min([first, *(record.first_offset for record in unmarked)]))
        heir.read(len(rows))
        # wrong chunks may belong to a value that this reader has dropped and the next one has not
        assert wrong or values(unmarked) <= values(heir.got)
        reader.buffer.close()
        heir.buffer.close()

    asyncio.run(story())


@pytest.mark.parametrize("auto_ack_oldest", [True, False])
def test_whether_the_commit_passes_a_value_that_another_one_displaced(auto_ack_oldest: bool) -> None:
    async def story() -> None:
        first, second = rows_of("first", b"abcd", 2), rows_of("second", b"efgh", 2)
        batches = in_batches(random.Random(1), [first[0], second[0], second[1], first[1]])
        ends, offset = [], 0
        for data in batches:
            offset += int.from_bytes(data[57:61], "big")
            ends.append(offset)
        config = {"max_pending_chunked": 1, "auto_ack_oldest": auto_ack_oldest}
        reader = Reader(random.Random(2), batches, ends, **config)
        reader.read(4)
        assert [record.value for record in reader.got] == [b"efgh"]
        reader.place.marks.mark_record(reader.got[0])
        assert reader.place.dropped == [0]
        assert reader.place.marks.value.offset == (4 if auto_ack_oldest else 0)
        reader.buffer.close()

    asyncio.run(story())


def test_the_commit_passes_chunks_that_are_given_up_at_the_end_of_the_log() -> None:
    """The second copy of a value that was complete, and a value that lacks its first chunk."""

    async def story() -> None:
        value = rows_of("value", b"abcd", 2)
        rows = [*whole(b"one"), *value, *value, rows_of("other", b"efgh", 2)[1]]
        ends = list(range(1, len(rows) + 1))
        reader = Reader(random.Random(2), log_of(*([row] for row in rows)), ends)
        marks = reader.place.marks
        reader.read(3)
        for record in reader.got:
            marks.mark_record(record)
        assert marks.value.offset == 3
        reader.read(6)
        assert [record.value for record in reader.got] == [b"one", b"abcd"]
        assert (marks.value.offset, marks.dirty) == (6, True)
        reader.buffer.close()

    asyncio.run(story())


def all_by_records(buffer: RecordBuffer) -> list[Record]:
    found = []
    while buffer:
        if (record := pop(buffer)) is not None:
            found.append(record)
        else:
            buffer.advance()
    return found


def all_by_batches(buffer: RecordBuffer) -> list[Record]:
    found: list[Record] = []
    while buffer:
        found += buffer.pop_records(100, 10_000)
    return found


WITHOUT_RECORDS = {
    "left empty by compaction": batch(2, []),
    "control batch": batch(2, control=True),
    "wrong checksum": corrupt(batch(2)),
    "unreadable records": with_bad_content(2, 1),
}


@pytest.mark.parametrize("read", [all_by_records, all_by_batches])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("follower", WITHOUT_RECORDS.values(), ids=WITHOUT_RECORDS)
def test_the_commit_passes_dropped_chunks_before_and_after_a_batch_without_records(
    follower: bytes, together: bool, read: Callable[[RecordBuffer], list[Record]]
) -> None:
    """The offset of the first dropped chunk is kept until a record is delivered, not until the next batch."""

    async def story() -> None:
        a, b = rows_of("a", b"abcd", 2), rows_of("b", b"abcd", 2)
        record, first, last = *log_of(whole(b"one"), a[1:]), *log_of(b[1:], base=3)
        reader = Reader(random.Random(1), [], [], on_corrupt_batch="skip")
        marks, buffer = reader.place.marks, reader.buffer
        buffer.high_watermark = 4
        got = []
        for data in [record + first + follower] if together else [record, first, follower]:
            buffer.add(data, zero_copy=True)
            got += read(buffer)
        assert [one.value for one in got] == [b"one"]
        marks.mark_record(got[0])
        assert marks.value.offset == (3 if together else 2)
        buffer.add(last, zero_copy=True)
        assert read(buffer) == []
        assert (marks.value.offset, reader.place.dropped) == (4, [1, 3])
        buffer.close()

    asyncio.run(story())

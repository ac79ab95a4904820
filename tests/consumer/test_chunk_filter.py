"""A partition consumer with chunks="assemble": records and batches in order, whole values, rewinds, expiry, memory."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.buffer import make_buffer
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import Batch, Header, Record
from asyncgroup.wire.batch_view import BatchView, assign_offsets
from asyncgroup.wire.chunks import split_value
from asyncgroup.wire.records import BatchBuilder
from tests.consumer.support import TP, feed, make_consumer, pop, with_bad_content
from tests.profiles import examples

Row = tuple[bytes, list[Header]]
RANDOM = st.integers(0, 2**31).map(random.Random)
ASSEMBLE: dict[str, Any] = {"chunks": "assemble"}


def rows_of(uuid: str, value: bytes, room: int) -> list[Row]:
    return [(part, [*info.headers(), ("trace", b"1")]) for info, part in split_value(uuid, value, room)]


def log_of(*batches: list[Row], codec: str = "none", base: int = 0) -> list[bytes]:
    """Return record batches with these records, from offset `base` on."""
    found = []
    for rows in batches:
        builder = BatchBuilder(codec, 1 << 30)
        for value, headers in rows:
            assert builder.append(1_700_000_000_000, b"key", value, headers)
        data = bytearray(builder.build())
        assign_offsets(data, base, 0)
        found.append(bytes(data))
        base += len(rows)
    return found


def whole(*values: bytes) -> list[Row]:
    return [(value, []) for value in values]


def assembling(**config: Any) -> PartitionConsumer:
    return make_consumer(config=ConsumerConfig(**{**ASSEMBLE, **config}))


class Dropped:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_chunks_dropped(self, *values: Any) -> None:
        self.calls.append(values)


class _Place:
    """As much of a partition's state as a buffer needs."""

    def __init__(self) -> None:
        self.tp, self.listener, self.paused, self.waiting = TP, PositionListener(), False, 0


# --- at random -------------------------------------------------------------------------------------------------------


def random_log(rng: random.Random) -> tuple[list[Row], list[tuple[int, int, bytes]]]:
    """Return random rows, whole ones and interleaved chunks, and what a reader gets: offset, first offset, value."""
    queues = [whole(*(b"w%d" % number for number in range(rng.randint(0, 6))))]
    for number in range(rng.randint(0, 4)):
        value = rng.randbytes(rng.randint(1, 30))
        queues.append(rows_of(f"v{number}", value, rng.randint(1, 12)))
    rows: list[Row] = []
    found: list[tuple[int, int, bytes]] = []
    begins: dict[bytes | None, tuple[int, bytes]] = {}
    while queues := [queue for queue in queues if queue]:
        row = rng.choice(queues).pop(0)
        offset = len(rows)
        rows.append(row)
        if not row[1]:
            found.append((offset, offset, row[0]))
            continue
        uuid, number, count = row[1][0][1], row[1][1][1], row[1][2][1]
        first, text = begins.get(uuid, (offset, b""))
        begins[uuid] = first, text + row[0]
        if int(number or b"") + 1 == int(count or b""):
            found.append((offset, *begins[uuid]))
    return rows, found


def in_batches(rng: random.Random, rows: list[Row]) -> list[bytes]:
    batches, place = [], 0
    while place < len(rows):
        size = rng.choice((1, 1, 2, 3, 8))
        batches.append(rows[place : place + size])
        place += size
    return log_of(*batches, codec=rng.choice(("none", "none", "gzip")))


@settings(max_examples=examples(300), deadline=None)
@given(RANDOM)
def test_every_record_once_whatever_is_read_and_fetched_again(rng):
    """The reader takes records and batches, and its buffered records are dropped and fetched again at random."""

    async def read() -> None:
        rows, wanted = random_log(rng)
        batches = in_batches(rng, rows)
        config = ConsumerConfig(**ASSEMBLE, max_pending_chunked=100)
        buffer = make_buffer(_Place(), 0, config, None, -1, Hooks())
        got: list[Record] = []
        while len(got) < len(wanted):
            choice = rng.random()
            if choice < 0.2 or not buffer:
                buffer.seek(buffer.position)
                held = [data for data in batches if _end(data) > buffer.fetch_offset]
                buffer.add(b"".join(held[: rng.randint(1, 4)]), zero_copy=True)
            elif choice < 0.6:
                got += list(buffer.pop_records(rng.choice((1, 2, 100)), rng.choice((1, 200, 10_000))))
            elif (record := pop(buffer)) is not None:
                got.append(record)
            else:
                buffer.advance()
            assert not got or buffer.position > got[-1].offset
        assert [(record.offset, record.first_offset, record.value) for record in got] == wanted
        assert len(buffer.chunks.assembler) == 0
        buffer.close()

    asyncio.run(read())


def _end(data: bytes) -> int:
    return BatchView(data).next_offset


# --- single cases ----------------------------------------------------------------------------------------------------


async def test_records_before_and_after_a_value():
    consumer = assembling()
    chunks = rows_of("a", b"abcdef", 2)
    feed(
        consumer,
        *log_of([*whole(b"1"), chunks[0], *whole(b"2", b"3")], [chunks[1]], [chunks[2], *whole(b"4")]),
    )
    found = [await anext(consumer) for _ in range(5)]
    assert [(record.offset, record.value) for record in found] == [
        (0, b"1"),
        (2, b"2"),
        (3, b"3"),
        (5, b"abcdef"),
        (6, b"4"),
    ]
    assert (found[3].first_offset, found[3].headers, found[3].key) == (1, [("trace", b"1")], b"key")
    assert (consumer.position, consumer.buffered_bytes) == (7, 0)


async def test_batches_of_whole_records():
    consumer = assembling()
    chunks = rows_of("a", b"abcdef", 2)
    feed(
        consumer, *log_of(whole(b"1", b"2"), [chunks[0]], [chunks[1], *whole(b"3")], [chunks[2]], whole(b"4"))
    )
    batch = await anext(consumer.batches(max_wait=1.0))
    assert [(record.offset, record.value) for record in batch] == [
        (0, b"1"),
        (1, b"2"),
        (4, b"3"),
        (5, b"abcdef"),
        (6, b"4"),
    ]
    assert (batch.first_offset, batch.last_offset) == (0, 6)


async def test_chunks_are_plain_records_without_the_option(consumer):
    feed(consumer, *log_of(rows_of("a", b"abcdef", 2)))
    found = [await anext(consumer) for _ in range(3)]
    assert [record.value for record in found] == [b"ab", b"cd", b"ef"]
    assert found[0].headers[0] == ("ag-chunk-uuid", b"a")


async def test_a_large_batch_of_chunks_is_decoded_in_a_thread():
    value = random.Random(1).randbytes(5 << 20)
    consumer = assembling()
    feed(consumer, *log_of(rows_of("a", value, 1 << 20), whole(b"end")))
    assert (await anext(consumer)).value == value
    assert (await anext(consumer)).value == b"end"


async def test_an_incomplete_value_expires_while_the_reader_waits():
    hook = Dropped()
    config = ConsumerConfig(**ASSEMBLE, chunk_expiry=60.0)
    consumer = make_consumer(config=config, hooks=[hook])
    feed(consumer, *log_of(rows_of("a", b"abcdef", 2)[:2]))
    reading = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(59.0)
    assert hook.calls == []
    await asyncio.sleep(2.0)
    assert hook.calls == [(*TP, 0, "expired")]
    feed(consumer, *log_of(whole(b"1"), base=2))
    assert (await reading).value == b"1"


async def test_time_in_which_the_reader_does_not_wait_does_not_count():
    hook = Dropped()
    consumer = make_consumer(config=ConsumerConfig(**ASSEMBLE, chunk_expiry=60.0), hooks=[hook])
    chunks = rows_of("a", b"abcd", 2)
    feed(consumer, *log_of([chunks[0]], whole(b"1"), [chunks[1]]))
    assert (await anext(consumer)).value == b"1"
    await asyncio.sleep(1000.0)  # its handler works; the second chunk is in the buffer
    assert (await anext(consumer)).value == b"abcd"
    feed(consumer, *log_of([rows_of("b", b"abcd", 2)[0]], base=3))
    reading = asyncio.ensure_future(anext(consumer))
    await asyncio.sleep(1.0)
    consumer.pause()
    await asyncio.sleep(1000.0)
    consumer.resume()
    feed(consumer, *log_of([rows_of("b", b"abcd", 2)[1]], base=4))
    assert (await reading).value == b"abcd"
    assert hook.calls == []


async def test_a_closed_consumer_holds_no_chunks_and_no_timer():
    consumer = assembling()
    feed(consumer, *log_of(rows_of("a", b"abcdef", 2)[:2]))
    reading = asyncio.ensure_future(anext(consumer, None))
    await asyncio.sleep(1.0)
    buffer = consumer._inner.buffer
    assert buffer.chunks is not None
    assert buffer.chunks.assembler.bytes == 4
    await consumer.aclose()
    assert await reading is None
    assert (buffer.chunks.assembler.bytes, buffer.chunks._timer) == (0, None)


async def test_a_seek_into_a_value_drops_its_other_chunks(caplog):
    hook = Dropped()
    consumer = make_consumer(config=ConsumerConfig(**ASSEMBLE), hooks=[hook])
    log = log_of(*([row] for row in rows_of("a", b"abcdef", 2)), whole(b"1"))
    feed(consumer, *log)
    consumer.seek(1)
    feed(consumer, *log[1:])
    assert (await anext(consumer)).value == b"1"
    assert hook.calls == [(*TP, 1, "no first chunk")]
    assert "value a from offset 1 on are dropped: no first chunk" in caplog.text
    consumer.seek(0)
    feed(consumer, *log)
    assert (await anext(consumer)).value == b"abcdef"


async def test_the_log_shows_the_id_of_a_value_in_one_line(caplog):
    consumer = assembling()
    feed(consumer, *log_of([rows_of("a\nforged", b"abcdef", 2)[1]], whole(b"1")))
    assert (await anext(consumer)).value == b"1"
    assert [line for line in caplog.text.splitlines() if "value" in line] == caplog.text.splitlines()


async def test_an_unreadable_batch_leads_back_to_the_first_chunk_of_a_value_that_was_incomplete():
    """The batch with the value's last chunk was also read; without going back to the first chunk the value would be lost."""
    consumer = assembling()
    chunks = rows_of("a", b"abcdef", 2)
    bad = with_bad_content(2, 1)
    log = [*log_of([chunks[0]], whole(b"1")), bad, *log_of([chunks[1]], [chunks[2]], base=3)]
    feed(consumer, log[0], log[1])
    batches = consumer.batches()
    first = await anext(batches)
    assert [record.value for record in first] == [b"1"]
    feed(consumer, *log[2:])
    second: Batch = await anext(batches)
    with pytest.raises(CorruptRecordsError):
        list(second)
    await asyncio.sleep(0)
    assert consumer.position == 0

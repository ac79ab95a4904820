"""Large values in chunks, from producers to members of a group: order, commits, crashes, rebalances, expiry.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import Claim, Consumer, ConsumerConfig, Producer, ProducerConfig, Record, Session
from asyncgroup.errors import ErrorCode
from asyncgroup.wire.chunks import ChunkInfo, split_value
from tests.consumer.test_chunk_filter import Dropped
from tests.scenario.support import WorkHandler, committed, member, running
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import opened, window_of
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

ASSEMBLE: dict[str, Any] = {"chunks": "assemble"}
MIB = 1 << 20


@asynccontextmanager
async def writer(env: VirtualEnvironment, seed: int = 1, **config: Any) -> AsyncIterator[Producer]:
    """Yield a producer with chunks of up to 1 KiB."""
    full = ProducerConfig(**{"chunking": True, "max_chunk_size": 1024, **config})
    async with Producer(env.bootstrap_servers, full, rng=random.Random(seed)) as producer:
        yield producer


class Values:
    """Values whose chunks a test writes one by one, to partition 0."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._chunks: dict[str, list[tuple[ChunkInfo, bytes]]] = {}

    async def chunk(self, uuid: str, number: int) -> int:
        """Write a chunk of a value of three; return its offset."""
        chunks = self._chunks.setdefault(uuid, list(split_value(uuid, uuid.encode() * 30, 10 * len(uuid))))
        info, part = chunks[number]
        return (await self._producer.send("orders", part, headers=info.headers(), partition=0)).offset

    async def whole(self, value: bytes) -> int:
        """Write a record."""
        return (await self._producer.send("orders", value, partition=0)).offset


class Collector(WorkHandler):
    """Keeps the records, by value."""

    def __init__(self, env: VirtualEnvironment) -> None:
        super().__init__(env, self.keep)
        self.records: list[Record] = []

    async def keep(self, _session: Session, _claim: Claim, record: Record) -> None:
        self.records.append(record)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class BatchCollector(Collector):
    """Reads batches."""

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for batch in claim.batches(max_wait=0.5):
            self.records += batch
            claim.mark(batch)
            self.note(f"batch {claim.partition}@{batch.last_offset}")


@pytest.mark.parametrize("kind", [Collector, pytest.param(BatchCollector, marks=pytest.mark.full)])
@in_each_protocol
async def test_ten_mebibytes_over_a_limit_of_one(env: VirtualEnvironment, kind: type[Collector]) -> None:
    value = random.Random(1).randbytes(10 * MIB)
    handler = kind(env)
    async with (
        writer(env, max_chunk_size=None) as producer,
        member(env, **ASSEMBLE) as ann,
        running(ann.run("orders", handler)),
    ):
        await producer.send("orders", b"before", partition=0)
        metadata = await producer.send("orders", value, key=b"k", headers=[("trace", b"1")], partition=0)
        await producer.send("orders", b"after", partition=0)
        await env.bell.until(lambda: len(handler.records) == 3, "three records", env.limit)
        _, record, _ = handler.records
        assert handler.values == [b"before", value, b"after"]
        assert (record.first_offset, record.offset) == (metadata.first_offset, metadata.offset) == (1, 11)
        assert (record.key, record.headers) == (b"k", [("trace", b"1")])
        await env.bell.until(lambda: committed(env).get(0) == 13, "committed", env.limit)


async def test_records_and_partition_consumers_assemble_too(env: VirtualEnvironment) -> None:
    value = random.Random(1).randbytes(5000)
    async with writer(env) as producer:
        await producer.send("orders", value, partition=0)
    async with Consumer(env.bootstrap_servers, ConsumerConfig(**ASSEMBLE)) as consumer:
        record = await anext(await consumer.partition("orders", 0, "earliest"))
        assert (record.value, record.first_offset, record.offset) == (value, 0, 5)
    async with member(env, **ASSEMBLE) as ann, ann.records("orders") as records:
        assert (await anext(records)).value == value


async def test_without_the_option_chunks_are_records(env: VirtualEnvironment) -> None:
    async with writer(env) as producer:
        await producer.send("orders", random.Random(1).randbytes(2000), partition=0)
    async with Consumer(env.bootstrap_servers) as consumer:
        reader = await consumer.partition("orders", 0, "earliest")
        infos = [dict((await anext(reader)).headers) for _ in range(3)]
        assert [info["ag-chunk-id"] for info in infos] == [b"0", b"1", b"2"]


@in_each_protocol
async def test_values_of_several_producers_between_each_other(env: VirtualEnvironment) -> None:
    rng = random.Random(1)
    values = [rng.randbytes(5000 + number) for number in range(20)]
    handler = Collector(env)

    async def write(seed: int) -> None:
        async with writer(env, seed, buffer_bytes=2048) as producer:
            for value in values[seed::4]:
                await producer.send("orders", value, partition=0)

    async with member(env, **ASSEMBLE) as ann, running(ann.run("orders", handler)):
        await asyncio.gather(*map(write, range(4)))
        await env.bell.until(lambda: len(handler.records) == 20, "all values", env.limit)
        await env.bell.until(lambda: committed(env).get(0) == len(env.cluster.records("orders")), "all committed", env.limit)  # fmt: skip
    assert sorted(map(bytes, filter(None, handler.values))) == sorted(values)
    ranges = [(record.first_offset, record.offset) for record in handler.records]
    assert any(second[0] < first[1] for first, second in itertools.pairwise(ranges)), "no overlap"


async def held_at_an_incomplete_value(env: VirtualEnvironment, values: Values, handler: Collector) -> None:
    """Write and read: a whole record, a first chunk, a whole record; the second one is marked, but not committed."""
    await values.whole(b"one")
    await values.chunk("a", 0)
    await values.whole(b"two")
    await handler.until("done 0@2")
    await asyncio.sleep(5.0)
    assert committed(env)[0] == 1


@in_each_protocol
async def test_the_commit_waits_at_the_first_chunk_of_an_incomplete_value(env: VirtualEnvironment) -> None:
    handler = Collector(env)
    async with (
        writer(env) as producer,
        member(env, **ASSEMBLE) as ann,
        running(ann.run("orders", handler)),
    ):
        values = Values(producer)
        await held_at_an_incomplete_value(env, values, handler)
        await values.chunk("b", 0)
        await values.chunk("a", 1)
        await values.chunk("a", 2)
        await handler.until("done 0@5")
        await asyncio.sleep(5.0)
        assert committed(env)[0] == 3, "at the first chunk of b"
        await values.chunk("b", 1)
        await values.chunk("b", 2)
        await env.bell.until(lambda: committed(env)[0] == 8, "all", env.limit)
    assert handler.values == [b"one", b"two", b"a" * 30, b"b" * 30]


@in_each_protocol
async def test_a_member_that_crashes_between_two_chunks(env: VirtualEnvironment) -> None:
    """The next one reads the value from its first chunk, and the record after that once more."""
    handler, heir = Collector(env), Collector(env)
    async with writer(env) as producer, member(env, **ASSEMBLE) as ann:
        values = Values(producer)
        async with running(ann.run("orders", handler)):
            await held_at_an_incomplete_value(env, values, handler)
            await values.chunk("a", 1)
            env.network.blackhole("10.2.0.1")
            async with (
                member(env, "bob", host="10.2.0.2", **ASSEMBLE) as bob,
                running(bob.run("orders", heir)),
            ):
                await heir.until("claim 0@1")
                await values.chunk("a", 2)
                await heir.until("done 0@4")
                await env.bell.until(lambda: committed(env)[0] == 5, "all", env.limit)
            env.network.heal("10.2.0.1")
    assert heir.values == [b"two", b"a" * 30]


@in_each_protocol
async def test_a_value_whose_partition_moves_between_two_chunks(env: VirtualEnvironment) -> None:
    """The member that gets the partition delivers the value once, and nothing is lost."""
    first, second = Collector(env), Collector(env)
    async with (
        writer(env) as producer,
        member(env, **ASSEMBLE) as ann,
        running(ann.run("orders", first)),
    ):
        values = Values(producer)
        await held_at_an_incomplete_value(env, values, first)
        async with (
            member(env, "bob", host="10.2.0.2", **ASSEMBLE) as bob,
            running(bob.run("orders", second)),
        ):
            await env.bell.until(lambda: len(partitions_of(bob)) == 2, "half of them", env.limit)
            await env.bell.until(lambda: len(partitions_of(ann)) == 2, "the other half", env.limit)
            await values.chunk("a", 1)
            await values.chunk("a", 2)
            await env.bell.until(
                lambda: (first.values + second.values).count(b"a" * 30) == 1, "the value", env.limit
            )
            await env.bell.until(lambda: committed(env)[0] == 5, "all", env.limit)


@in_each_protocol
async def test_a_producer_that_dies_between_two_chunks(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    """The incomplete value is given up after `chunk_expiry`; then the commit passes it."""
    handler, hook = Collector(env), Dropped()
    async with (
        writer(env) as producer,
        member(env, hooks=(hook,), **ASSEMBLE, chunk_expiry=30.0) as ann,
        running(ann.run("orders", handler)),
    ):
        values = Values(producer)
        await held_at_an_incomplete_value(env, values, handler)
        await env.bell.until(lambda: bool(hook.calls), "expiry", env.limit)
        assert hook.calls == [("orders", 0, 1, "expired")]
        assert "orders-0: the chunks of value a from offset 1 on are dropped: expired" in caplog.text
        await env.bell.until(lambda: committed(env)[0] == 3, "committed", env.limit)
        await values.chunk("a", 1)  # it lived after all
        await values.whole(b"three")
        await handler.until("done 0@4")
        await env.bell.until(lambda: committed(env)[0] == 5, "committed", env.limit)
    assert handler.values == [b"one", b"two", b"three"]
    assert len(hook.calls) == 1


@in_each_protocol
async def test_the_commit_passes_an_incomplete_value_at_the_end_of_the_log(env: VirtualEnvironment) -> None:
    """No record comes after its chunks, whose mark would pass them; nor after a chunk that arrives when the value was dropped."""
    handler, hook = Collector(env), Dropped()
    async with (
        writer(env) as producer,
        member(env, hooks=(hook,), **ASSEMBLE, chunk_expiry=30.0) as ann,
        running(ann.run("orders", handler)),
    ):
        values = Values(producer)
        await values.whole(b"one")
        await values.chunk("a", 0)
        await values.chunk("a", 1)
        await handler.until("done 0@0")
        await env.bell.until(lambda: committed(env).get(0) == 1, "committed", env.limit)
        await env.bell.until(lambda: bool(hook.calls), "expiry", env.limit)
        await env.bell.until(lambda: committed(env)[0] == 3, "committed", env.limit)
        assert await values.chunk("a", 2) == 3
        await env.bell.until(lambda: committed(env)[0] == 4, "committed", env.limit)
        await values.whole(b"two")
        await env.bell.until(lambda: committed(env)[0] == 5, "committed", env.limit)
    assert handler.values == [b"one", b"two"]


async def test_a_work_queue_passes_an_incomplete_value_at_the_end_of_the_log(env: VirtualEnvironment) -> None:
    async with writer(env) as producer, opened(env, config={**ASSEMBLE, "chunk_expiry": 30.0}) as queue:
        values = Values(producer)
        await values.whole(b"one")
        await values.chunk("a", 0)
        await values.chunk("a", 1)
        await (await queue.receive()).ack()
        await asyncio.sleep(10.0)
        assert (await window_of(env)).base == 1
        await asyncio.sleep(60.0)
        assert (await window_of(env)).base == 3
        assert queue.statistics().lag == 0
        await values.whole(b"two")
        await (await queue.receive()).ack(durable=True)
        assert (await window_of(env)).base == 4


@pytest.mark.full
async def test_a_producer_that_retries_a_chunk_for_most_of_its_delivery_timeout(
    env: VirtualEnvironment,
) -> None:
    """By the defaults of both sides the consumer is still waiting then."""
    value = random.Random(1).randbytes(2500)
    handler = Collector(env)
    async with writer(env) as producer, member(env, **ASSEMBLE) as ann, running(ann.run("orders", handler)):
        await handler.until("claim 0@0")
        refused = env.cluster.faults.on("Produce", nth=2, times=None).error(ErrorCode.NOT_ENOUGH_REPLICAS)
        sending = asyncio.create_task(producer.send("orders", value, partition=0))
        await asyncio.sleep(0.95 * producer.config.delivery_timeout)
        refused.cancel()
        await sending
        await env.bell.until(lambda: handler.values == [value], "the value", env.limit)


@pytest.mark.full
async def test_a_producer_that_is_cut_off_in_mid_value(env: VirtualEnvironment) -> None:
    value = random.Random(1).randbytes(20_000)
    handler = Collector(env)
    async with member(env, **ASSEMBLE, chunk_expiry=30.0) as ann, running(ann.run("orders", handler)):
        with env.network.source("10.3.0.1"):
            async with writer(env, buffer_bytes=1024, close_timeout=1.0) as producer:
                env.cluster.faults.on("Produce", nth=5).observe(lambda _: env.network.blackhole("10.3.0.1"))
                sending = asyncio.create_task(producer.send("orders", value, partition=0))
                await asyncio.sleep(5.0)
                sending.cancel()
        async with writer(env, 2) as producer:
            await producer.send("orders", value[::-1], partition=0)
        end = len(env.cluster.records("orders"))
        await env.bell.until(lambda: committed(env).get(0) == end, "committed", env.limit)
    assert handler.values == [value[::-1]]


async def test_reading_that_begins_in_mid_value_drops_the_other_chunks(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    handler, hook = Collector(env), Dropped()
    async with writer(env) as producer:
        values = Values(producer)
        await values.chunk("a", 0)
        async with (
            member(env, hooks=(hook,), auto_offset_reset="latest", **ASSEMBLE) as ann,
            running(ann.run("orders", handler)),
        ):
            await handler.until("claim 0@1")
            await values.chunk("a", 1)
            await values.chunk("a", 2)
            await values.whole(b"one")
            await handler.until("done 0@3")
    assert handler.values == [b"one"]
    assert hook.calls == [("orders", 0, 1, "no first chunk")]
    assert caplog.text.count("the chunks of value a") == 1


async def test_a_value_that_lost_a_chunk_to_compaction_is_given_up(env: VirtualEnvironment) -> None:
    handler, hook = Collector(env), Dropped()
    async with writer(env) as producer:
        values = Values(producer)
        for uuid, number in (("a", 0), ("b", 0), ("a", 2), ("b", 1), ("b", 2)):
            await values.chunk(uuid, number)
        async with (
            member(env, hooks=(hook,), **ASSEMBLE) as ann,
            running(ann.run("orders", handler)),
        ):
            await env.bell.until(lambda: committed(env).get(0) == 5, "committed", env.limit)
    assert handler.values == [b"b" * 30]
    assert hook.calls == [("orders", 0, 0, "gap")]


async def test_a_broker_that_stops_in_mid_value(env: VirtualEnvironment) -> None:
    """Buffered records are dropped and fetched again from the next leader; the chunks before them are kept."""
    handler = Collector(env)
    async with (
        writer(env) as producer,
        member(env, **ASSEMBLE) as ann,
        running(ann.run("orders", handler)),
    ):
        values = Values(producer)
        await held_at_an_incomplete_value(env, values, handler)
        await env.cluster.stop_node(env.cluster.leader("orders", 0))
        await values.chunk("a", 1)
        await values.chunk("a", 2)
        await handler.until("done 0@4")
    assert handler.values == [b"one", b"two", b"a" * 30]


async def test_manual_commits_are_held_back_too(env: VirtualEnvironment) -> None:
    async with writer(env) as producer, member(env, auto_commit=False, **ASSEMBLE) as ann:
        values = Values(producer)
        await values.whole(b"one")
        await values.chunk("a", 0)
        await values.whole(b"two")
        async with ann.records("orders") as records:
            for _ in range(2):
                ann.mark(await anext(records))
            await ann.commit()
            assert committed(env) == {0: 1}
            await values.chunk("a", 1)
            await values.chunk("a", 2)
            ann.mark(await anext(records))
            await ann.commit()
            assert committed(env) == {0: 5}


async def test_a_value_in_the_place_of_one_that_was_lost_by_truncation(env: VirtualEnvironment) -> None:
    """The expiry of a value that the log has no longer does not release the one that begins at its offset now."""
    handler, hook = Collector(env), Dropped()
    config = {**ASSEMBLE, "chunk_expiry": 30.0}
    async with member(env, hooks=(hook,), **config) as ann, running(ann.run("orders", handler)):
        async with writer(env) as producer:
            await held_at_an_incomplete_value(env, Values(producer), handler)
        env.cluster.truncate("orders", 0, 1)
        await asyncio.sleep(10.0)
        async with writer(env, 2) as producer:
            values = Values(producer)
            assert await values.chunk("b", 0) == 1
            await values.whole(b"three")
            await handler.until("done 0@2", 2)
            await asyncio.sleep(20.0)
            assert (committed(env)[0], hook.calls) == (1, [])
            await values.chunk("b", 1)
            await values.chunk("b", 2)
            await env.bell.until(lambda: committed(env)[0] == 5, "all", env.limit)
    assert handler.values == [b"one", b"two", b"three", b"b" * 30]
    assert hook.calls == []

"""Processes that die while they handle a record: it reaches the dead letter topic, and those beside it do not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from asyncgroup.workqueue import DeadLetter, Delivery, Mode, WorkQueue
from tests.stories import queue_members
from tests.stories.queue_members import Gates, QueueMember, acked, metadata_of, opened, send, window_of
from tests.stories.virtual import VirtualEnvironment

DIES = {"config": {"close_timeout": 1.0}}


class Processes:
    """Starts one process after another; each dies when it handles a poison record. Counts the deliveries of each record."""

    def __init__(self, env: VirtualEnvironment, poison: set[int], **options: Any) -> None:
        self.env = env
        self.poison = poison
        self.options = options
        self.handled: Counter[int] = Counter()
        self.done: set[int] = set()
        self.deaths = 0

    async def one(self, *, until: int) -> bool:
        """Run a process until it dies, or until this many records are done; return whether it died."""
        name, env = f"p{self.deaths}", self.env
        dead = asyncio.Event()

        async def work(delivery: Delivery) -> None:
            offset = delivery.record.offset + 100 * delivery.record.partition
            if dead.is_set():
                await asyncio.sleep(1e6)
            self.handled[offset] += 1
            if offset in self.poison:
                await asyncio.sleep(0.05)
                dead.set()
                queue_members.cut_off(env, name)
                env.bell.ring()
                await asyncio.sleep(1e6)
            await asyncio.sleep(0.2)
            if dead.is_set():
                await asyncio.sleep(1e6)
            self.done.add(offset)

        async with opened(env, name, **DIES, **self.options) as queue:
            member = QueueMember(env, name, queue, work)
            run = asyncio.create_task(queue.run(member.handle))
            await env.bell.until(lambda: dead.is_set() or len(self.done) >= until, f"{self.done}", env.limit)
            if not dead.is_set():
                await env.bell.until(
                    lambda: self._dead_letters(queue.dead_letter_topic), "the DLQ", env.limit
                )
            await queue.aclose()
            await asyncio.wait([run])
        if dead.is_set():
            await asyncio.sleep(env.session_timeout + 1.0)
        self.deaths += dead.is_set()
        return dead.is_set()

    def _dead_letters(self, topic: str | None) -> bool:
        return len(self.env.cluster.records(topic or "")) == len(self.poison)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("redeliveries", [0, 2])
async def test_a_record_that_kills_its_process(env: VirtualEnvironment, mode: Mode, redeliveries: int):
    """It is delivered at most `max_redeliveries` + 2 times; the other acquired ones are all done."""
    count, poison = 12, 5
    await send(env, *[(b"k%d" % (number % 4), b"%d" % number) for number in range(count)])
    options: dict[str, Any] = {"mode": mode, "concurrency": 4, "dead_letter": DeadLetter(redeliveries)}
    processes = Processes(env, {poison}, **options)
    while await processes.one(until=count - 1):
        assert processes.deaths <= redeliveries + 2
    assert processes.handled[poison] <= redeliveries + 2
    assert processes.done == set(range(count)) - {poison}
    (copy,) = env.cluster.records("orders-g-DLQ")
    assert copy.value == b"5"
    assert (
        dict(copy.headers)["__dlq.errors.message"]
        == b"each process that handled it has ended without an outcome"
    )
    assert await acked(env) == list(range(count))
    assert not (await metadata_of(env)).is_open


async def test_two_records_that_kill_their_processes(env: VirtualEnvironment):
    await send(env, *[b"%d" % number for number in range(30)])
    processes = Processes(env, {3, 17}, concurrency=8, dead_letter=DeadLetter(3))
    while await processes.one(until=28):
        assert processes.deaths <= 2 * (3 + 2)
    assert max(processes.handled[offset] for offset in processes.poison) <= 3 + 2
    assert processes.done == set(range(30)) - {3, 17}
    assert sorted(record.value or b"" for record in env.cluster.records("orders-g-DLQ")) == [b"17", b"3"]


@pytest.mark.parametrize("redeliveries", [1, 5])
async def test_records_of_other_partitions_are_no_dead_letters(env: VirtualEnvironment, redeliveries: int):
    """Records acquired beside the one that kills are counted, but later each possible poison pill of the member is isolated."""
    for partition in range(4):
        await send(env, *[b"%d" % (number + 100 * partition) for number in range(6)], partition=partition)
    processes = Processes(env, {3}, concurrency=40, dead_letter=DeadLetter(redeliveries))
    while await processes.one(until=23):
        assert processes.deaths <= redeliveries + 2
    assert len(processes.done) == 23
    assert [record.value for record in env.cluster.records("orders-g-DLQ")] == [b"3"]


async def test_a_clean_close_leaves_no_count(env: VirtualEnvironment):
    """However often the records were acquired at a close: their number stays 1."""
    await send(env, *[b"%d" % number for number in range(3)])
    for number in range(4):
        async with queue_members.working(
            env, f"p{number}", Gates(), dead_letter=DeadLetter(1), **DIES
        ) as member:
            await member.until_count("begin", 3)
            assert sorted(member.of("begin")) == ["0@0#1", "0@1#1", "0@2#1"]
            assert (await metadata_of(env)).is_open
        assert (await window_of(env)).attempts == {}
        assert not (await metadata_of(env)).is_open


async def test_a_clean_close_after_a_crash_takes_counts_back(env: VirtualEnvironment):
    """Records that were counted in advance and not handled, or given back, keep their number."""
    await send(env, *[b"%d" % number for number in range(3)])
    processes = Processes(env, {0}, dead_letter=DeadLetter(5), concurrency=4)
    assert await processes.one(until=3)
    for number in range(3):
        async with queue_members.working(
            env, f"c{number}", Gates(), dead_letter=DeadLetter(5), concurrency=4, **DIES
        ) as member:
            await member.until_count("begin", 3)
            assert sorted(member.of("begin")) == ["0@0#1", "0@1#1", "0@2#1"]
        assert (await window_of(env)).attempts == {}


async def test_without_a_limit_nothing_is_counted(env: VirtualEnvironment):
    """No commit marks the claim as open."""
    await send(env, b"0", b"1")
    async with queue_members.working(env, "ann", Gates(), **DIES) as ann:
        await ann.until_count("begin", 2)
        await asyncio.sleep(5.0)
        assert env.cluster.history.of("OffsetCommit", client_id="ann") == []


async def test_counts_that_cannot_be_committed(env: VirtualEnvironment):
    """After a crash a coordinator that refuses commits does not hold records back."""
    await send(env, b"0", b"1")
    processes = Processes(env, {0}, dead_letter=DeadLetter(5), concurrency=1)
    assert await processes.one(until=2)
    env.cluster.faults.on("OffsetCommit", client_id="ann", times=None).error("GROUP_AUTHORIZATION_FAILED")
    async with queue_members.working(env, "ann", dead_letter=DeadLetter(5)) as ann:
        await ann.until_count("end", 2)


async def test_after_a_crash_all_records_are_delivered(env: VirtualEnvironment):
    """More than are counted in one commit, and more than are counted at all."""
    count = 3000
    await send(env, *[b"v"] * count)
    processes = Processes(env, {0}, dead_letter=DeadLetter(5), concurrency=50)
    assert await processes.one(until=count)
    options: dict[str, Any] = {"dead_letter": DeadLetter(5), "concurrency": 50}
    async with queue_members.working(env, "ann", **options) as ann:
        await ann.until_count("end", count)
        assert len(set(ann.of("end"))) == count
    assert (await window_of(env)).base == count


async def test_after_a_crash_a_loop_gets_all_records(env: VirtualEnvironment):
    """`async for` and batches, without handlers."""
    from asyncgroup.workqueue import BatchPolicy

    await send(env, *[b"v"] * 200)
    processes = Processes(env, {0}, dead_letter=DeadLetter(5), concurrency=5)
    assert await processes.one(until=200)
    async with opened(env, "ann", dead_letter=DeadLetter(5)) as queue:
        found: set[int] = set()
        async with asyncio.timeout(120.0):
            while len(found) < 100:
                delivery = await queue.receive()
                found.add(delivery.record.offset)
                await delivery.ack()
            while len(found) < 200:
                async with await queue.batch_receive(BatchPolicy(max_records=50, timeout=1.0)) as batch:
                    found |= {each.record.offset for each in batch}
    assert (await window_of(env)).base == 200


async def test_an_isolated_record_is_nacked_in_order(env: VirtualEnvironment):
    """It becomes a dead letter, although the records after it, which were also counted, are delivered again each time."""

    async def loop(queue: WorkQueue) -> None:
        async for delivery in queue:
            if delivery.record.offset == 0:
                await delivery.nack()
                continue
            await asyncio.sleep(2.0)
            await delivery.ack()

    options: dict[str, Any] = {"mode": Mode.FAILOVER, "nack_backoff": 1.0, "dead_letter": DeadLetter(5)}
    await send(env, *[b"%d" % number for number in range(6)])
    async with opened(env, "p0", **DIES, **options) as queue:
        await queue.receive()
        await asyncio.sleep(1.0)
        queue_members.cut_off(env, "p0")
    await asyncio.sleep(env.session_timeout + 1.0)
    async with opened(env, "p1", **options) as queue:
        task = asyncio.create_task(loop(queue))
        await asyncio.sleep(300.0)
        task.cancel()
        await asyncio.wait([task])
        assert queue.statistics().counts.dead_lettered == 1
    assert await acked(env) == list(range(6))


async def test_a_dead_letter_that_the_next_process_writes(env: VirtualEnvironment):
    """Its handlers raised: the reason does not say that their processes ended."""
    await send(env, b"v")
    topic, options = "orders-g-DLQ", {"nack_backoff": 0.1, "dead_letter": DeadLetter(1, partitions=1)}
    fault = env.cluster.faults.on("Produce", client_id="ann", times=None)
    fault.error("NOT_ENOUGH_REPLICAS")

    async def fails(_delivery: Delivery) -> None:
        raise ValueError("broken")

    async with queue_members.working(env, "ann", fails, **DIES, **options) as ann:
        await ann.until_count("error", 2)
        await asyncio.sleep(1.0)
    assert env.cluster.records(topic) == []
    async with queue_members.working(env, "bob", fails, **options) as bob:
        (copy,) = await queue_members.read_topic(env, topic, 1)
        assert bob.calls == []
    text = "its 2 deliveries failed; the reasons are known only to the processes that made them"
    assert dict(copy.headers)["__dlq.errors.message"] == text.encode()

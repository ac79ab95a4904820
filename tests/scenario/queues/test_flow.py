"""How much a work queue holds: records, bytes, waiting records, metadata; a full partition pauses no other one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from typing import Any

import pytest

from asyncgroup.hashing.key_ranges import key_hash
from asyncgroup.workqueue import Delivery, Mode, WorkQueue
from asyncgroup.workqueue.partition_work import RECORD_OVERHEAD
from tests.scenario.support import now
from tests.stories.queue_members import Gates, acked, label, opened, send, stored, window_of, working
from tests.stories.virtual import VirtualEnvironment


def held(queue: WorkQueue, partition: int = 0) -> int:
    """Return the number of records of a partition that are held ready."""
    return next(each.queued for each in queue.statistics().partitions if each.tp == ("orders", partition))


async def test_records_held_ready(env: VirtualEnvironment):
    """Up to `receiver_queue` of a partition, refilled when half are delivered."""
    await send(env, *[b"v"] * 400)
    async with opened(env, receiver_queue=100) as queue:
        first = await queue.receive()
        await asyncio.sleep(5.0)
        assert 50 <= held(queue) <= 100
        most = held(queue)
        for _ in range(300):
            await (await queue.receive()).ack()
            await asyncio.sleep(0.01)
            most = max(most, held(queue))
        assert 50 <= most <= 100
        assert first.record.offset == 0


async def test_the_total_is_shared_by_the_partitions(env: VirtualEnvironment):
    for partition in range(4):
        await send(env, *[b"v"] * 50, partition=partition)
    async with opened(env, receiver_queue=1000, receiver_queue_total=40) as queue:
        await asyncio.sleep(5.0)
        assert [5 <= held(queue, partition) <= 10 for partition in range(4)] == [True] * 4


async def test_a_queue_that_holds_nothing(env: VirtualEnvironment):
    """With `receiver_queue=0` records are requested for the tasks that wait."""
    await send(env, *[b"%d" % number for number in range(10)])
    async with opened(env, receiver_queue=0) as queue:
        await asyncio.sleep(5.0)
        assert held(queue) == 0
        for offset in range(5):
            delivery = await queue.receive()
            assert delivery.record.offset == offset
            assert held(queue) == 0
            await delivery.ack()
            await asyncio.sleep(1.0)
        batch = await queue.batch_receive()
        assert [each.record.offset for each in batch] == [5, 6, 7, 8, 9]
        receiving = [asyncio.create_task(queue.receive()) for _ in range(3)]
        await asyncio.sleep(1.0)
        await send(env, b"a", b"b", b"c")
        taken = await asyncio.gather(*receiving)
        assert sorted(each.record.offset for each in taken) == [10, 11, 12]
        for delivery in (*batch, *taken):
            await delivery.ack()
    assert await acked(env) == list(range(13))


async def test_a_queue_that_holds_nothing_at_its_byte_limit(env: VirtualEnvironment):
    """A task that waits while the limit is reached gets a record when others are acknowledged."""
    await send(env, *[b"v" * 10_000] * 4)
    async with opened(env, receiver_queue=0, receive_buffer_bytes=4 * 5_000) as queue:
        first = await queue.receive()
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(5.0)
        assert not receiving.done()
        await first.ack()
        second = await receiving
        await second.ack()
    assert await acked(env) == [0, 1]


async def test_a_queue_that_holds_nothing_with_run(env: VirtualEnvironment):
    for partition in range(4):
        await send(env, *[b"v"] * 5, partition=partition)
    async with working(env, "ann", receiver_queue=0, concurrency=3) as ann:
        await ann.until_count("end", 20)
    assert [await acked(env, partition) for partition in range(4)] == [list(range(5))] * 4


async def test_a_blocked_partition_pauses_no_other(gates: Gates, env: VirtualEnvironment):
    """Its bytes are used up by open deliveries; the others go on, and it does when they are acknowledged."""
    await send(env, *[b"v" * 10_000] * 20, partition=0)

    async def work(delivery: Delivery) -> None:
        if delivery.record.partition == 0:
            await gates(delivery)

    async with working(
        env, "ann", work, receive_buffer_bytes=4 * 50_000, config={"max_poll_interval": 30.0}
    ) as ann:
        await asyncio.sleep(5.0)
        assert 5 <= len(ann.of("begin")) < 20
        blocked = len(ann.of("begin"))
        for partition in (1, 2, 3):
            await send(env, *[b"v" * 10_000] * 20, partition=partition)
        await ann.until_count("end", 60)
        await asyncio.sleep(200.0)  # the claim of the blocked one does not count as stuck
        assert ann.queue.health().state == "stable"
        assert len([text for text in ann.of("begin") if text.startswith("0@")]) == blocked
        gates.open()
        await ann.until_count("end", 80)
        assert all(text.endswith("#1") for text in ann.of("begin"))
    assert [await acked(env, partition) for partition in range(4)] == [list(range(20))] * 4


async def test_a_record_larger_than_the_budget(env: VirtualEnvironment):
    await send(env, *[b"v" * 200_000] * 3)
    async with working(env, "ann", receive_buffer_bytes=1000) as ann:
        await ann.until_count("end", 3)
        assert ann.of("end") == ["0@0#1", "0@1#1", "0@2#1"]
    assert await acked(env) == [0, 1, 2]


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        (Mode.SHARED, 10),
        pytest.param(Mode.EXCLUSIVE, 10, marks=pytest.mark.full),
        pytest.param(Mode.FAILOVER, 1000, marks=pytest.mark.full),
        pytest.param(Mode.KEY_SHARED, 1000, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("limit", [1 << 16, pytest.param(1 << 20, marks=pytest.mark.full)])
async def test_the_memory_of_a_small_budget(env: VirtualEnvironment, mode: Mode, size: int, limit: int):
    """Records of four partitions are delivered until the budget is used up; nothing is acknowledged."""
    values = [(b"%d" % number, b"v" * size) for number in range(limit // 512)]
    for partition in range(4):
        await send(env, *values, partition=partition)
    async with opened(env, mode=mode, receive_buffer_bytes=limit) as queue:
        deliveries: list[Delivery] = []
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(10.0):
                    deliveries.append(await queue.receive())
        assert len(deliveries) < 4 * len(values)
        taken = sum(len(each.value or b"") + len(each.key or b"") + RECORD_OVERHEAD for each in deliveries)
        assert 0.9 * limit <= taken <= 1.6 * limit


async def test_waiting_records_are_limited(env: VirtualEnvironment):
    """At `max_waiting` records that wait after a nack, the partition gets no more; other partitions do."""

    async def work(delivery: Delivery) -> None:
        if delivery.record.partition == 0 and delivery.attempt == 1:
            await delivery.nack(delay=300.0)

    await send(env, *[b"v"] * 500)
    options: dict[str, Any] = {"max_waiting": 20, "receiver_queue": 10, "config": {"max_poll_interval": 30.0}}
    async with working(env, "ann", work, **options) as ann:
        await asyncio.sleep(60.0)
        waiting = len(ann.of("end"))
        assert 20 <= waiting <= 40
        await send(env, *[b"v"] * 100, partition=1)
        await ann.until_count("end", waiting + 100)
        await asyncio.sleep(100.0)
        assert len(ann.of("end")) == waiting + 100
        assert ann.queue.health().state == "stable"
        await ann.until_count("end", waiting + 100 + 20)


async def test_a_hot_key_holds_no_other_partition(gates: Gates, env: VirtualEnvironment):
    await send(env, *[(b"hot", b"v")] * 200)
    await send(env, *[(b"k%d" % number, b"v") for number in range(50)], partition=1)

    async def work(delivery: Delivery) -> None:
        if delivery.key == b"hot":
            await gates(delivery)

    async with working(env, "ann", work, mode=Mode.KEY_SHARED, receiver_queue=20) as ann:
        await ann.until_count("end", 50)
        assert len([text for text in ann.of("begin") if text.startswith("0@")]) == 1
        gates.open()
        await ann.until_count("end", 250)


def limit_metadata(env: VirtualEnvironment, limit: int, *, is_described: bool) -> None:
    """Set `offset.metadata.max.bytes` of the brokers; `is_described`: DescribeConfigs names it."""
    for node in env.cluster._inner.nodes.values():
        offsets = node.coordinator.offsets
        offsets._config = dataclasses.replace(offsets._config, offset_metadata_max_size=limit)
    if is_described:

        def describe(response: Any) -> Any:
            for result in response.results:
                for config in result.configs:
                    if config.name == "offset.metadata.max.bytes":
                        config.value = str(limit)
            return response

        env.cluster.faults.on("DescribeConfigs", times=None).mutate(describe)


@pytest.mark.parametrize("is_described", [True, False])
async def test_metadata_pressure(env: VirtualEnvironment, is_described: bool):
    """A window that becomes too large for its commit holds up its own partition only; no acknowledgement is forgotten."""
    limit_metadata(env, 200, is_described=is_described)
    rng = random.Random(1)
    done: set[int] = set()
    failing = {offset for offset in range(2000) if rng.random() < 0.5}

    async def work(delivery: Delivery) -> None:
        await asyncio.sleep(0.005)
        if delivery.record.partition == 0 and delivery.record.offset in failing and delivery.attempt == 1:
            await delivery.nack(delay=5.0)
        elif delivery.record.partition == 0:
            done.add(delivery.record.offset)

    await send(env, *[b"v"] * 2000)
    async with working(env, "ann", work, concurrency=10) as ann:
        await asyncio.sleep(3.0)
        first = len(ann.of("end"))
        assert first < 1500, "no pressure"
        (statistics,) = (each for each in ann.queue.statistics().partitions if each.tp == ("orders", 0))
        assert statistics.is_full
        assert statistics.metadata_bytes <= 200
        await send(env, *[b"v"] * 300, partition=1)
        began = now()
        await ann.until_count("end", first + 300)
        assert now() - began < 3.0
        found = await stored(env)
        assert found is not None
        assert len(found.raw) <= 200
        # what the commit says is acknowledged is; nothing that it omits has to be
        assert set(await acked(env)) <= done
        await env.bell.until(lambda: len(done) == 2000, "all", 600.0)
        assert len(ann.of("begin")) == len(set(ann.of("begin")))
    assert (await window_of(env)).base == 2000


async def test_a_batch_is_limited_by_count_bytes_and_time(env: VirtualEnvironment):
    from asyncgroup.workqueue import BatchPolicy

    await send(env, *[b"v" * 100] * 10)
    async with opened(env) as queue:
        batch = await queue.batch_receive(BatchPolicy(max_records=3))
        assert list(map(label, batch)) == ["0@0#1", "0@1#1", "0@2#1"]
        batch = await queue.batch_receive(BatchPolicy(max_bytes=250))
        assert list(map(label, batch)) == ["0@3#1", "0@4#1"]
        began = now()
        batch = await queue.batch_receive(BatchPolicy(timeout=5.0))
        assert len(batch) == 5
        assert now() - began == pytest.approx(5.0)
        assert len(await queue.batch_receive(BatchPolicy(timeout=5.0))) == 0
        async with batch:
            await batch[1].nack(delay=0.0)
        again = await queue.batch_receive(BatchPolicy(max_records=1))
        assert list(map(label, again)) == ["0@6#2"]
        with pytest.raises(ValueError, match="no"):
            async with again:
                raise ValueError("no")
        assert repr(again) == "<DeliveryBatch: 1 deliveries, 0 open>"
    window = await window_of(env)
    assert (window.base, window.runs, window.attempts) == (0, [(5, 6), (7, 10)], {6: 2})


async def test_statistics_are_a_snapshot(env: VirtualEnvironment):
    await send(env, b"0", b"1")
    async with opened(env, "ann") as queue:
        await (await queue.receive()).ack()
        first = queue.statistics()
        await (await queue.receive()).ack()
        assert (first.counts.acked, queue.statistics().counts.acked) == (1, 2)


# --- records that are no longer held ready make room without a delivery --------------------------------------------------


async def test_parked_records_make_room(env: VirtualEnvironment):
    """A local consumer slower than the rest is given its parked records, and more are fetched at once."""
    keys = [key for number in range(200) if key_hash(key := b"k%d" % number) <= 32767][:40]
    await send(env, *((key, b"v") for key in keys))
    async with opened(env, mode=Mode.KEY_SHARED, receiver_queue=8) as queue:
        slow = queue.consumer("slow", key_ranges=[(0, 32767)], receiver_queue=1)
        queue.consumer("other", key_ranges=[(32768, 65535)])
        began = now()
        for _ in keys:
            async with await slow.receive():
                pass
        assert now() - began < 10.0


@pytest.mark.parametrize("size", [0, 1, 2])
async def test_records_of_a_busy_key_that_are_due_later_make_room(env: VirtualEnvironment, size: int):
    await send(env, (b"a", b"0"))
    await send(env, *[(b"a", b"later")] * max(1, size), deliver_after=3600.0)
    await send(env, (b"b", b"last"))
    async with opened(env, mode=Mode.KEY_SHARED, receiver_queue=size) as queue:
        first = await queue.receive()
        waiting = asyncio.create_task(queue.receive())
        await asyncio.sleep(5.0)
        await first.ack()
        began = now()
        assert (await waiting).value == b"last"
        assert now() - began < 10.0


async def test_waiting_records_that_are_acknowledged_make_room(env: VirtualEnvironment):
    """A cumulative acknowledgement ends them."""
    await send(env, *[b"%d" % number for number in range(40)])
    async with opened(env, mode=Mode.FAILOVER, receiver_queue=4, max_waiting=3) as queue:
        taken = [await queue.receive() for _ in range(4)]
        for each in taken[:3]:
            await each.nack(delay=1000)
        await asyncio.sleep(5.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                while True:
                    taken.append(await queue.receive())
        await taken[-1].ack_cumulative()
        began = now()
        assert (await queue.receive()).record.offset == taken[-1].record.offset + 1
        assert now() - began < 10.0

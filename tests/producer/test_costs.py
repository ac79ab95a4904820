"""Steps per record stay the same however many partitions have records: calls are counted, not time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from asyncgroup.hashing.murmur2 import partition_for_key
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.batch import BatchFormat, ProducerBatch
from asyncgroup.producer.batches.partition_queue import PartitionQueue
from asyncgroup.producer.batches.results import CallbackQueue, CallerFuture
from asyncgroup.producer.batches.schedule import SendSchedule
from tests.producer.batches.test_accumulator import made, put
from tests.producer.support import TOPIC, produced, stored, writing

LOOKS = ("next_batch", "expire", "next_deadline", "overdue")
"""Methods of a queue by which a plan looks at it."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often queues are looked at, by plans."""
    counts: Counter[str] = Counter()
    for name in LOOKS:
        method = getattr(PartitionQueue, name)

        def counted(self: PartitionQueue, *args: Any, _name: str = name, _method: Any = method) -> Any:
            counts[_name] += 1
            return _method(self, *args)

        monkeypatch.setattr(PartitionQueue, name, counted)
    return counts


def node_of(tp: TopicPartition) -> int:
    return tp.partition % 3


@pytest.mark.parametrize("partitions", [10, 1000])
def test_a_plan_looks_at_what_has_changed(partitions: int, looks: Counter[str]) -> None:
    """Batches linger in all partitions while one partition gets, sends and completes a batch 100 times."""
    accumulator, time = made(linger=10.0, batch_size=200, buffer_bytes=1 << 20, enable_idempotence=True)
    accumulator.set_producer_id(1)
    for number in range(partitions):
        put(accumulator, TopicPartition("t", number), b"lingers")
    accumulator.schedule.plan(time.now, node_of, ())
    looks.clear()
    for _ in range(100):
        time.now += 0.001
        put(accumulator, TopicPartition("t", 0), b"." * 100)  # fills the batch before it
        plan = accumulator.schedule.plan(time.now, node_of, ())
        for batch in (batch for batches in plan.requests.values() for batch in batches):
            accumulator.succeed(batch)
            accumulator.deallocate(batch)
            batch.complete(0)
    assert looks.total() < 100 * 10


@pytest.mark.parametrize("state", ["busy", "backing off", "leaderless"])
def test_a_plan_does_not_look_at_partitions_that_cannot_send(state: str, looks: Counter[str]) -> None:
    accumulator, time = made(linger=0.0, buffer_bytes=1 << 20, max_request_size=1 << 20)
    partitions = [TopicPartition("t", 2 + number * 3) for number in range(1000)]  # of node 2
    for tp in partitions:
        put(accumulator, tp, b"waits")
    busy = {2} if state == "busy" else set()

    def leader(tp: TopicPartition) -> int:
        return -1 if state == "leaderless" and tp.partition % 3 == 2 else tp.partition % 3

    if state == "backing off":
        while requests := accumulator.schedule.plan(time.now, leader, ()).requests:
            for batch in requests[2]:
                accumulator.retry(batch, time.now + 60.0)
    accumulator.schedule.plan(time.now, leader, busy)
    looks.clear()
    for _ in range(100):
        put(accumulator, TopicPartition("t", 0), b"goes")
        (batch,) = accumulator.schedule.plan(time.now, leader, busy).requests[0]
        accumulator.succeed(batch)
        accumulator.deallocate(batch)
    assert looks.total() < 100 * 10
    assert len(accumulator.incomplete) == 1000


def keys_for(partitions: int) -> list[bytes]:
    """Return a key that goes to each of these partitions."""
    keys: dict[int, bytes] = {}
    for number in itertools.count():
        keys.setdefault(partition_for_key(key := b"%d" % number, partitions), key)
        if len(keys) == partitions:
            return [keys[partition] for partition in range(partitions)]
    raise AssertionError


@pytest.mark.parametrize(
    ("how", "topics"),
    [
        ("partition=", 1),
        ("enqueue_all", 1),
        ("keyed", 1),
        pytest.param("round robin", 1, marks=pytest.mark.full),
        pytest.param("partition=", 100, marks=pytest.mark.full),
        pytest.param("keyed", 1000, marks=pytest.mark.full),
    ],
)
async def test_a_record_costs_no_plan(
    how: str, topics: int, monkeypatch: pytest.MonkeyPatch, looks: Counter[str]
) -> None:
    """3,000 records for 1,000 partitions, one after the other, share 1,000 batches."""
    plans, plan = 0, SendSchedule.plan

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal plans
        plans += 1
        return plan(*args, **kwargs)

    monkeypatch.setattr(SendSchedule, "plan", counted)
    partitions = 1000 // topics
    names = [TOPIC, *(f"{TOPIC}-{number}" for number in range(1, topics))]
    config = {"partitioner": "round_robin"} if how == "round robin" else {}
    async with writing(nodes=1, partitions=partitions, linger=0.005, **config) as (cluster, producer):
        for name in names[1:]:
            cluster.create_topic(name, partitions)
        await asyncio.gather(*(producer.send(name, b"known", partition=0) for name in names))
        before, earlier = plans, len(produced(cluster))
        looks.clear()
        keys: list[bytes | None] = list(keys_for(partitions)) if how == "keyed" else [None] * partitions
        chosen = list(range(partitions)) if how in ("partition=", "enqueue_all") else [None] * partitions
        records = [
            (name, b"v", key, (), number, None)
            for _ in range(3)
            for name in names
            for key, number in zip(keys, chosen, strict=True)
        ]
        if how == "enqueue_all":
            await producer.enqueue_all(records)
        else:
            for name, value, key, _, number, _ in records:
                await producer.enqueue(name, value, key=key, partition=number)
        await producer.flush()
        requests = produced(cluster)[earlier:]
        batches = [
            part for each in requests for topic in each.request.topic_data for part in topic.partition_data
        ]
        assert len(batches) == 1000
        assert plans - before < 100
        assert looks.total() < 10 * 1000


class Queues(dict[TopicPartition, PartitionQueue]):
    """The queues of all partitions, which must not be searched."""

    def __iter__(self) -> Any:
        raise AssertionError

    values = items = keys = __iter__


def test_an_idle_topic_is_forgotten_without_a_search() -> None:
    accumulator, _ = made()
    for number in range(100):
        accumulator.queue(TopicPartition(f"t{number}", 0))
    accumulator.queues = Queues(accumulator.queues)
    accumulator.forget("t7")
    assert len(accumulator.queues) == 99
    assert not accumulator.queues.get(TopicPartition("t7", 0))


@pytest.mark.real
async def test_callers_leave_no_objects_to_the_garbage_collector() -> None:
    """When the last of 1,000 callers is woken, what the others needed is freed: three objects each.

    More objects alive at a time mean more full collections, which stop all callers for 20 ms and more.
    """
    callbacks: Any = CallbackQueue()
    callbacks.start()
    batch = ProducerBatch(TopicPartition("t", 0), BatchFormat("none", 1 << 20), 0.0, 60.0)
    objects: list[int] = []
    all_woken = asyncio.Event()

    async def call(number: int) -> None:
        future = CallerFuture(loop=callbacks)
        batch.append(b"x", None, (), 1, 22, future)
        assert (await future).offset == number
        if number == 999:
            objects.append(len(gc.get_objects()))
            all_woken.set()

    calls = [asyncio.create_task(call(number)) for number in range(1000)]
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        callbacks.hold()
        asyncio.get_running_loop().call_soon(callbacks.call_held)
        batch.complete(0)
        await all_woken.wait()
    finally:
        gc.enable()
    await asyncio.wait(calls)
    assert objects[0] < before - 2500


async def test_a_record_does_not_look_at_all_lookups() -> None:
    """While added partitions were looked up, each record went through the lookups of all partitions."""
    few, many = [await _lines_of_a_record(lookups) for lookups in (10, 1000)]
    assert 0 < many == few


async def _lines_of_a_record(lookups: int) -> int:
    """Return the lines that run to enqueue a record while so many partitions are looked up, whose metadata is old."""
    lines = 0

    def count(_frame: FrameType, event: str, _value: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    async with writing(nodes=1, partitions=1, linger=10.0) as (cluster, producer):
        await producer.send(TOPIC, b"first", partition=0)
        held = cluster.faults.on("Metadata").hold()
        cluster.create_partitions(TOPIC, 1 + lookups)
        for number in range(1, 1 + lookups):
            producer.send_nowait(TOPIC, b"waits", partition=number)
        producer.send_nowait(TOPIC, b"warm up", partition=0)
        former = sys.gettrace()
        sys.settrace(count)
        try:
            producer.send_nowait(TOPIC, b"counted", partition=0)
        finally:
            sys.settrace(former)
        held.release()
        await producer.flush()
        assert len(stored(cluster)) == 3 + lookups
    return lines

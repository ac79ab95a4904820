"""ForeachBatch in consumer groups on an embedded cluster, with a fake Spark."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import MemberLost
from asyncgroup.model import Record
from asyncgroup.spark import BatchId, BatchInterrupted, ForeachBatch
from asyncgroup.wire import records
from tests.group.parts import end_session
from tests.spark.bridge.fakes import FakeSpark

RECORDS = 3_000
CONFIG = ConsumerConfig(auto_offset_reset="earliest", heartbeat_interval=0.1, session_timeout=5.0)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    """A cluster with a topic `numbers` of four partitions with the records 0 … RECORDS - 1."""
    async with EmbeddedCluster(2) as cluster:
        cluster.create_topic("numbers", 4)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                await producer.enqueue("numbers", b"%d" % number, partition=number % 4)
            await producer.flush()
        yield cluster


class Sink:
    """A sink that overwrites by (partition, start); `calls` counts the batches of all members."""

    def __init__(self, before: Callable[[BatchId], None] = lambda _: None) -> None:
        self.files: dict[tuple[int, int], list[int]] = {}
        self.calls = 0
        self._before = before
        self._lock = threading.Lock()

    def __call__(self, df: Any, batch_id: BatchId) -> None:
        self._before(batch_id)
        partitions, values = df["partition"].to_pylist(), df["value"].to_pylist()
        with self._lock:
            self.calls += 1
            for part in batch_id.ranges:
                rows = [int(v) for p, v in zip(partitions, values, strict=True) if p == part.partition]
                self.files[part.partition, part.start] = rows

    @property
    def numbers(self) -> Counter[int]:
        return Counter(number for rows in self.files.values() for number in rows)


def member(broker: EmbeddedCluster, sink: Sink, max_rows: int = 100) -> tuple[ConsumerGroup, ForeachBatch]:
    handler = ForeachBatch(FakeSpark(), sink, max_rows=max_rows, max_wait=0.02)  # type: ignore[arg-type]
    return ConsumerGroup(broker.bootstrap_servers, "sink", CONFIG), handler


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


def committed(broker: EmbeddedCluster) -> int:
    return sum(found.offset for found in broker.group("sink").offsets.values())


async def store_all(broker: EmbeddedCluster, group: ConsumerGroup, handler: ForeachBatch) -> None:
    """Run a member until all records are committed."""
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(lambda: committed(broker) == RECORDS)
        await group.aclose()
        await run


async def test_no_object_is_created_for_a_record(
    broker: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are decoded into columns; no Record object exists between the wire and the table for Spark."""

    def made(*_: object) -> None:
        raise AssertionError("an object for a record")

    monkeypatch.setattr(records, "Record", type("Made", (Record,), {"topic": property(None, made)}))
    sink = Sink()
    group, handler = member(broker, sink, max_rows=100_000)
    await store_all(broker, group, handler)
    assert sink.numbers == Counter(range(RECORDS))


async def test_every_record_is_stored_once_while_members_join_and_leave(broker: EmbeddedCluster) -> None:
    pace = threading.Semaphore(0)
    sink = Sink(lambda _: pace.acquire(timeout=60))
    first, first_handler = member(broker, sink)
    second, second_handler = member(broker, sink)
    async with first, second:
        runs = [asyncio.create_task(first.run("numbers", first_handler))]
        pace.release(5)
        await until(lambda: sink.calls == 5)
        runs.append(asyncio.create_task(second.run("numbers", second_handler)))
        # the first member is processing a batch when partitions are revoked
        await until(lambda: broker.group("sink").state == "PreparingRebalance")
        pace.release(10)
        await until(lambda: len(broker.group("sink").members) == 2 and sink.calls >= 12)
        pace.release(5)
        closing = asyncio.create_task(first.aclose())
        pace.release(1_000)
        await closing
        await until(lambda: committed(broker) == RECORDS)
        await second.aclose()
        await asyncio.gather(*runs)
    assert sink.numbers == Counter(range(RECORDS))
    assert sum(len(rows) for rows in sink.files.values()) == RECORDS, "no range was delivered twice"


async def test_run_raises_an_exception_of_fn_unchanged_and_no_record_is_lost(broker: EmbeddedCluster) -> None:
    def fail(batch_id: BatchId) -> None:
        if batch_id == 3:
            raise LookupError("the warehouse is closed")

    failing = Sink(fail)
    group, handler = member(broker, failing)
    async with group:
        with pytest.raises(LookupError, match="the warehouse is closed") as caught:
            await group.run("numbers", handler)
    notes = "\n".join(caught.value.__notes__)
    assert "while delivering <BatchId 3: numbers-" in notes
    assert "raised by consume_claim of numbers-" in notes
    stored = sum(len(rows) for rows in failing.files.values())
    assert committed(broker) == stored > 0
    assert repr(handler).endswith("no session>")
    assert not [t for t in threading.enumerate() if t.name.startswith("asyncgroup-")]

    # the next member continues there
    sink = Sink()
    sink.files.update(failing.files)
    group, handler = member(broker, sink)
    await store_all(broker, group, handler)
    assert sink.numbers == Counter(range(RECORDS))


async def test_a_lost_member_commits_nothing_and_its_batch_is_redelivered(broker: EmbeddedCluster) -> None:
    spark = FakeSpark()
    begun = threading.Event()

    def first_batch_hangs(batch_id: BatchId) -> None:
        if batch_id == 0:
            begun.set()
            assert spark.sparkContext.cancelled.wait(60)
            raise RuntimeError("job cancelled")

    sink = Sink(first_batch_hangs)
    handler = ForeachBatch(spark, sink, max_rows=500, max_wait=0.02)  # type: ignore[arg-type]
    async with ConsumerGroup(broker.bootstrap_servers, "sink", CONFIG) as group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(begun.is_set)
        assert group.session is not None
        end_session(group.session, MemberLost("as if the coordinator had expelled it"))
        await until(lambda: committed(broker) == RECORDS)
        await group.aclose()
        await run
    assert sink.numbers == Counter(range(RECORDS))


@pytest.mark.full
async def test_a_loop_around_run_continues_after_an_interrupted_batch(broker: EmbeddedCluster) -> None:
    """The loop of the guide: the group stays open, and the interrupted batch is redelivered."""
    spark, begun, interruptions = FakeSpark(), threading.Event(), 0

    def first_call_outlasts_the_rebalance(_batch_id: BatchId) -> None:
        if not begun.is_set():
            begun.set()
            assert spark.sparkContext.cancelled.wait(30)
            raise RuntimeError("job cancelled")

    async def run_on(group: ConsumerGroup, handler: ForeachBatch) -> None:
        nonlocal interruptions
        while True:
            try:
                await group.run("numbers", handler)
                break
            except BatchInterrupted:
                interruptions += 1

    slow, quick = Sink(first_call_outlasts_the_rebalance), Sink()
    config = replace(CONFIG, rebalance_timeout=2.0)
    handler = ForeachBatch(spark, slow, max_rows=500, max_wait=0.02)  # type: ignore[arg-type]
    first = ConsumerGroup(broker.bootstrap_servers, "sink", config)
    second = ConsumerGroup(broker.bootstrap_servers, "sink", config)
    async with first, second:
        running = asyncio.create_task(run_on(first, handler))
        await until(begun.is_set)
        other = ForeachBatch(FakeSpark(), quick, max_wait=0.02)  # type: ignore[arg-type]
        joining = asyncio.create_task(second.run("numbers", other))
        await until(lambda: committed(broker) == RECORDS)
        await first.aclose()
        await second.aclose()
        await asyncio.gather(running, joining)
    assert interruptions == 1
    assert slow.numbers + quick.numbers == Counter(range(RECORDS))

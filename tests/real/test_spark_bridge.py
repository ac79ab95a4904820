"""ForeachBatch with a real Spark and a real Kafka: restarts, rebalances during a batch, members that join and fail."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, OffsetManager
from asyncgroup.model import TopicPartition
from asyncgroup.spark import BatchId, BatchInterrupted, ForeachBatch, ParquetByRange, Retry
from tests.real.bridge_driver import connect_database, run_bridge
from tests.real.spark_driver import Driver
from tests.real.spark_support import Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4


class OverwritingStore:
    """A sink that overwrites by (partition, start), as every sink should; it calls `before` with each batch first."""

    def __init__(self, before: Callable[[Any, BatchId], None] = lambda _df, _id: None) -> None:
        self.files: dict[tuple[int, int], list[int]] = {}
        self.batches: list[BatchId] = []
        self._before = before
        self._lock = threading.Lock()

    def __call__(self, df: Any, batch_id: BatchId) -> None:
        with self._lock:
            self.batches.append(batch_id)
        self._before(df, batch_id)
        rows = df.select("partition", "offset").collect()
        with self._lock:
            for part in batch_id.ranges:
                mine = [row.offset for row in rows if row.partition == part.partition]
                self.files[part.partition, part.start] = mine

    @property
    def rows(self) -> Counter[tuple[int, int]]:
        return Counter((place[0], offset) for place, rows in self.files.items() for offset in rows)


def all_rows(rows_each: int) -> Counter[tuple[int, int]]:
    return Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(rows_each))


def group(kafka: Kafka, topic: str, **config: Any) -> ConsumerGroup:
    """Return a member of the group with the topic's name."""
    settings = {"auto_offset_reset": "earliest", "heartbeat_interval": 0.5, "rebalance_timeout": 10.0}
    return ConsumerGroup(kafka.servers, topic, ConsumerConfig(**{**settings, **config}))


async def committed(kafka: Kafka, topic: str) -> dict[int, tuple[int, str]]:
    """Return the committed offset and metadata of each partition."""
    async with OffsetManager(kafka.servers, topic) as offsets:
        found = await offsets.fetch([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    return {tp.partition: (at.offset, at.metadata) for tp, at in found.items()}


async def until_committed(kafka: Kafka, topic: str, rows_each: int, limit: float = 60.0) -> None:
    async with asyncio.timeout(limit):
        while [at[0] for at in (await committed(kafka, topic)).values()] != [rows_each] * PARTITIONS:
            await asyncio.sleep(0.1)


async def close_group(member: ConsumerGroup, run: asyncio.Task[None]) -> None:
    await member.aclose()
    await run


def run_endless_job(spark: SparkSession) -> None:
    """Run a job of very many tasks: Spark starts no more tasks of a cancelled job, but a running task runs to its end."""
    rows = spark.range(0, 10**11, 1, 10_000).selectExpr("id % 7 as x")
    rows.write.format("noop").mode("overwrite").save()


async def test_a_restarted_bridge_continues_offsets_and_batch_numbers(
    kafka: Kafka, spark: SparkSession
) -> None:
    topic = await kafka.topic(PARTITIONS)
    store = OverwritingStore()
    for life in (1, 2):
        await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), 2_000))
        async with group(kafka, topic) as member:
            handler = ForeachBatch(spark, store, max_rows=3_000)
            run = asyncio.create_task(member.run(topic, handler))
            await until_committed(kafka, topic, 2_000 * life)
            await close_group(member, run)
    assert store.rows == all_rows(4_000)
    numbers = [int(batch_id) for batch_id in store.batches]
    assert numbers == list(range(len(numbers))), "the second run continues the numbers"
    found = await committed(kafka, topic)
    assert f"foreachBatch/1:{numbers[-1]}@4000" in {metadata for _, metadata in found.values()}


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [3, 1_000])
async def test_a_rebalance_in_the_middle_of_a_batch(kafka: Kafka, spark: SparkSession, seconds: int) -> None:
    """A batch within the timeout is awaited and committed.

    The job of a longer one is cancelled, the session fails, and the other member gets the rows.
    """
    topic = await kafka.topic(PARTITIONS)
    await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), 1_000))
    begun, waited = threading.Event(), threading.Event()

    def slow(_df: Any, batch_id: BatchId) -> None:
        if batch_id == 0:
            begun.set()
            if seconds > 100:
                run_endless_job(spark)
            assert not waited.wait(seconds)

    first_store, second_store = OverwritingStore(slow), OverwritingStore()
    limit = 8.0 if seconds > 100 else 60.0  # the first job may take long on a busy machine
    first, second = (group(kafka, topic, rebalance_timeout=limit) for _ in range(2))
    async with first, second:
        handler = ForeachBatch(spark, first_store)
        run = asyncio.create_task(first.run(topic, handler))
        await asyncio.to_thread(begun.wait, 60)
        other = asyncio.create_task(second.run(topic, ForeachBatch(spark, second_store)))
        if seconds > 100:
            with pytest.raises(BatchInterrupted, match="rebalance timeout had passed"):
                await run
            await first.aclose()
        await until_committed(kafka, topic, 1_000)
        assert handler.statistics().interrupted == (seconds > 100)
        if seconds < 100:
            await close_group(first, run)
        await close_group(second, other)
    assert first_store.rows + second_store.rows == all_rows(1_000), "no row was stored twice"
    assert (not first_store.files) == (seconds > 100)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_repeatedly_killed_bridge_stores_every_row_exactly_once(kafka: Kafka, tmp_path: Path) -> None:
    """kill -9 of Python and Java before the sink's transaction, and after it, when nothing is committed to Kafka."""
    topic = await kafka.topic(PARTITIONS)
    rows_each = 25_000
    await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), rows_each))
    settings = {
        "servers": kafka.servers,
        "topic": topic,
        "rows": rows_each * PARTITIONS,
        "target": str(tmp_path / "db"),
    }
    lives: list[list[int]] = []
    for hold in ([2, "before"], [3, "after"], [1, "after"], None):
        numbers: list[int] = []
        async with Driver(run_bridge, settings | {"hold": hold}) as driver:
            while not (line := await driver.line()).startswith(("done", "holding")):
                numbers.append(int(line.removeprefix("batch ")))
            if hold is not None:
                driver.kill()
        lives.append(numbers)
    assert lives[0] == [0, 1]
    assert lives[1] == [1, 2, 3], "batch 1 was not committed"
    assert lives[2] == [3], "batch 3 was committed to the sink, but not to Kafka"
    assert lives[3] == list(range(3, 3 + len(lives[3])))
    await until_committed(kafka, topic, rows_each)
    with contextlib.closing(connect_database(settings["target"])) as connection:
        stored = Counter(connection.execute('SELECT "partition", "offset" FROM numbers').fetchall())
    assert stored == all_rows(rows_each)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_joining_and_failing_members_store_every_row_once(
    kafka: Kafka, spark: SparkSession, tmp_path: Path
) -> None:
    topic = await kafka.topic(PARTITIONS)
    rng = random.Random(4)
    rows_each = 60_000
    await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), rows_each))
    files = ParquetByRange(spark, str(tmp_path / "lake"), compact_after=20)

    def store(df: Any, batch_id: BatchId) -> None:
        if rng.random() < 0.1:
            df.selectExpr("raise_error('the warehouse is closed')").collect()
        files(df, batch_id)
        if rng.random() < 0.1:
            raise OSError("failed after the rows were written")

    async def live(seconds: float) -> None:
        """Run one member for `seconds`, or until all is committed."""
        async with group(kafka, topic, rebalance_timeout=60.0) as member:
            handler = ForeachBatch(
                spark, store, max_rows=5_000, on_error=Retry(times=20, backoff=0.05, backoff_max=0.5)
            )
            run = asyncio.create_task(member.run(topic, handler))
            await asyncio.wait({run, done}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            await close_group(member, run)

    done = asyncio.create_task(until_committed(kafka, topic, rows_each, limit=450))
    steady = asyncio.create_task(live(500))
    while not done.done() and not steady.done():
        await live(rng.uniform(1, 15))
    await steady
    await done
    found = await asyncio.to_thread(
        lambda: (
            ParquetByRange.read(spark, str(tmp_path / "lake"))
            .groupBy("partition")
            .agg({"offset": "count"})
            .collect()
        )
    )
    assert {row[0]: row[1] for row in found} == dict.fromkeys(range(PARTITIONS), rows_each)
    distinct = await asyncio.to_thread(
        lambda: (
            ParquetByRange.read(spark, str(tmp_path / "lake"))
            .select("partition", "offset")
            .distinct()
            .count()
        )
    )
    assert distinct == rows_each * PARTITIONS

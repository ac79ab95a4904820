"""The bridge with a real Spark."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import GroupClosed, MemberLost
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.spark import (
    BatchId,
    BatchInterrupted,
    ForeachBatch,
    OffsetRange,
    Retry,
)
from asyncgroup.spark.arrow import frame_schema
from asyncgroup.spark.bridge import jobs
from asyncgroup.spark.bridge.frames import create_frame
from tests.spark.bridge.fakes import TOPIC, FakeClaim, FakeSession, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("include_headers", [False, True])
def test_a_frame_has_the_schema_and_values_of_sparks_kafka_source(
    spark: SparkSession, include_headers: bool
) -> None:
    rows = [
        Record("t", 3, 7, 1_700_000_000_123, 1, None, b"v", [("h", b"1"), ("n", None)]),
        Record("t", 3, 9, -1, -1, b"k", None),
    ]
    frame = create_frame(spark, [Batch("t", 3, rows).to_arrow(include_headers=include_headers)])
    printed = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int"
    )
    headers = ",headers:array<struct<key:string,value:binary>>" if include_headers else ""
    assert frame.schema.simpleString() == printed + headers + ">"
    assert frame.schema == frame_schema(include_headers=include_headers)
    assert all(field.nullable for field in frame.schema.fields)
    first, second = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.partition, first.offset) == (None, b"v", "t", 3, 7)
    assert first.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert (first.timestampType, second.timestampType) == (1, -1)
    assert (second.key, second.value) == (b"k", None)
    # Spark's source gives -1 ms for a record without a timestamp
    assert frame.selectExpr("unix_millis(timestamp)").collect()[1][0] == -1
    if include_headers:
        assert [tuple(header) for header in first.headers] == [("h", b"1"), ("n", None)]
        assert second.headers is None


def test_a_frame_has_a_partition_per_core_and_leaves_the_settings_alone(spark: SparkSession) -> None:
    keys = (
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.execution.arrow.localRelationThreshold",
    )
    before = [spark.conf.get(key) for key in keys]
    chunks = [Batch(TOPIC, p, records(p, 0, 2_000)).to_arrow() for p in range(6)]
    frame = create_frame(spark, chunks)
    assert frame.rdd.getNumPartitions() == 2
    assert frame.count() == 12_000
    assert create_frame(spark, chunks[:1]).rdd.getNumPartitions() == 1
    assert [spark.conf.get(key) for key in keys] == before


@pytest.mark.parametrize("is_promoted", [False, True])
async def test_the_jvm_keeps_nothing_of_finished_batches(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_promoted: bool
) -> None:
    """This includes slow batches, whose Python objects have been promoted to an older generation of the garbage collector."""
    held: list[weakref.ref[Any]] = []
    monkeypatch.setattr(jobs, "MAX_UNCOLLECTED_BYTES", 1)

    def store(df: Any, _batch_id: BatchId) -> None:
        held.append(weakref.ref(df._jdf))
        held.append(weakref.ref(df.select("value")._jdf))
        assert df.count() == 10
        if is_promoted:
            gc.collect(0)
            gc.collect(1)

    claim = FakeClaim(0)
    claim.feed(0, 30)
    session = FakeSession(claim)
    gc.disable()
    try:
        handler = ForeachBatch(spark, store, max_rows=10)
        task = asyncio.create_task(handler.consume_claim(session, claim))  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            while len(session.commits) < 3:
                await asyncio.sleep(0.01)
        assert [ref() for ref in held] == [None] * 6
        session.end(GroupClosed("closed"))
        await task
    finally:
        gc.enable()


@pytest.mark.full
async def test_batches_reach_a_sink_that_overwrites_by_range(spark: SparkSession, tmp_path: Path) -> None:
    def store(df: Any, batch_id: BatchId) -> None:
        for part in batch_id.ranges:
            place = tmp_path / f"partition={part.partition}" / f"start={part.start}"
            part.rows(df).write.mode("overwrite").parquet(str(place))

    async def deliver(*spans: tuple[int, int, int]) -> None:
        claims = [FakeClaim(partition, initial_offset=start) for partition, start, _ in spans]
        session = FakeSession(*claims)
        for claim, (_, start, end) in zip(claims, spans, strict=True):
            claim.feed(start, end - start)
        handler = ForeachBatch(spark, store)
        tasks = [asyncio.create_task(handler.consume_claim(session, claim)) for claim in claims]  # type: ignore[arg-type]
        wanted = {TopicPartition(TOPIC, partition): end for partition, _, end in spans}
        async with asyncio.timeout(60):
            while wanted not in session.commits:
                await asyncio.sleep(0.01)
        session.end(GroupClosed("closed"))
        await asyncio.gather(*tasks)

    await deliver((0, 0, 100), (1, 0, 50))
    # redelivered with another end, then continued from there
    await deliver((0, 0, 60), (1, 0, 70))
    await deliver((0, 60, 100))
    found = await asyncio.to_thread(
        lambda: [(r.partition, r.offset) for r in spark.read.parquet(str(tmp_path)).collect()]
    )
    assert sorted(found) == [(0, offset) for offset in range(100)] + [(1, offset) for offset in range(70)]


async def test_the_spark_job_of_a_lost_member_is_cancelled(spark: SparkSession) -> None:
    begun = threading.Event()

    def endless(_df: Any, _batch_id: BatchId) -> None:
        begun.set()
        endless_job(spark)

    claim = FakeClaim(0)
    session = FakeSession(claim)
    claim.feed(0, 10)
    task = asyncio.create_task(ForeachBatch(spark, endless).consume_claim(session, claim))  # type: ignore[arg-type]
    await asyncio.to_thread(begun.wait, 30)
    session.end(MemberLost("lost"))
    async with asyncio.timeout(30):
        await task
    assert session.marks == {}
    assert not [t for t in threading.enumerate() if t.name.startswith("asyncgroup-")]


def endless_job(spark: SparkSession) -> None:
    """Run a job of many tasks: Spark starts no more tasks of a cancelled job, but finishes the running ones."""
    rows = spark.range(0, 10**11, 1, 10_000).selectExpr("id % 7 as x")
    rows.write.format("noop").mode("overwrite").save()


async def test_a_spark_job_that_outlasts_a_rebalance_is_cancelled_and_its_rows_redelivered(
    spark: SparkSession,
) -> None:
    begun = threading.Event()
    counted: dict[tuple[int, int], int] = {}

    def endless(_df: Any, _batch_id: BatchId) -> None:
        begun.set()
        endless_job(spark)

    def count(df: Any, batch_id: BatchId) -> None:
        for part in batch_id.ranges:
            counted[part.partition, part.start] = part.rows(df).count()

    config = ConsumerConfig(auto_offset_reset="earliest", rebalance_timeout=5.0, heartbeat_interval=0.2)
    async with EmbeddedCluster(1) as cluster:
        cluster.create_topic("numbers", 2)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(100):
                await producer.enqueue("numbers", b"%d" % number, partition=number % 2)
        first = ConsumerGroup(cluster.bootstrap_servers, "g", config)
        second = ConsumerGroup(cluster.bootstrap_servers, "g", config)
        async with first, second:
            run = asyncio.create_task(first.run("numbers", ForeachBatch(spark, endless)))
            await asyncio.to_thread(begun.wait, 60)
            other = asyncio.create_task(second.run("numbers", ForeachBatch(spark, count)))
            with pytest.raises(BatchInterrupted, match="rebalance timeout had passed"):
                await run
            await first.aclose()
            async with asyncio.timeout(60):
                while sum(found.offset for found in cluster.group("g").offsets.values()) < 100:
                    await asyncio.sleep(0.02)
            await second.aclose()
            await other
    assert sum(counted.values()) == 100
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


async def test_a_batch_that_fails_in_spark_is_retried_with_the_same_rows(spark: SparkSession) -> None:
    seen: list[tuple[int, tuple[Any, ...], int]] = []

    def store(df: Any, batch_id: BatchId) -> None:
        seen.append((int(batch_id), batch_id.ranges, df.count()))
        if len(seen) == 1:
            df.selectExpr("raise_error('not now')").collect()

    claim = FakeClaim(0)
    claim.feed(0, 10)
    session = FakeSession(claim)
    handler = ForeachBatch(spark, store, on_error=Retry(backoff=0.01))
    task = asyncio.create_task(handler.consume_claim(session, claim))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while not session.commits:
            await asyncio.sleep(0.01)
    session.end(GroupClosed("closed"))
    await task
    assert len(seen) == 2
    assert seen[0] == seen[1] == (0, (OffsetRange(TOPIC, 0, 0, 10),), 10)
    assert "not now" in str(handler.statistics().last_error)


async def test_an_error_of_spark_is_raised_unchanged(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    def wrong(df: Any, _batch_id: BatchId) -> None:
        df.select("no_such_column").collect()

    claim = FakeClaim(0)
    claim.feed(0, 10)
    session = FakeSession(claim)
    with pytest.raises(AnalysisException, match="no_such_column"):
        await ForeachBatch(spark, wrong).consume_claim(session, claim)  # type: ignore[arg-type]
    assert session.commits == []

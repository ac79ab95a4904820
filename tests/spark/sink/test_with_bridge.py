"""The sinks with a consumer group: rows are stored once even if a member dies between storing and committing."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pyspark.sql import DataFrame, SparkSession, functions as F

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.spark import BatchId, DbApiMerge, ForeachBatch, OffsetsInSink, ParquetByRange, Upsert
from asyncgroup.spark.sink.sql import transaction

pytestmark = pytest.mark.timeout(600)

RECORDS = 400
PARTITIONS = 2
CONFIG = ConsumerConfig(auto_offset_reset="earliest", session_timeout=45.0)
COMMIT_WAIT = 400.0

Rows = list[tuple[int, int, str]]


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    """A cluster with a topic `numbers` with the values `<partition>-<offset>`."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("numbers", PARTITIONS)
        async with Producer(cluster.bootstrap_servers) as producer:
            for number in range(RECORDS):
                partition, offset = number % PARTITIONS, number // PARTITIONS
                await producer.enqueue("numbers", b"%d-%d" % (partition, offset), partition=partition)
        yield cluster


EXPECTED: Rows = sorted(
    (n % PARTITIONS, n // PARTITIONS, f"{n % PARTITIONS}-{n // PARTITIONS}") for n in range(RECORDS)
)


class CrashError(Exception):
    """Raised in place of a crash, after a batch was stored and before it was committed."""


class Member:
    """Calls a sink; notices the last record, or raises after the batch `crash_after`."""

    def __init__(self, sink: Any, crash_after: int | None) -> None:
        self._sink, self._crash_after = sink, crash_after
        self._loop = asyncio.get_running_loop()
        self.ends: dict[int, int] = {}
        self.complete = asyncio.Event()
        if hasattr(sink, "start_offsets"):
            self.start_offsets = sink.start_offsets

    def __call__(self, df: DataFrame, batch_id: BatchId) -> None:
        self._sink(df, batch_id)
        self.ends |= {part.partition: part.end for part in batch_id.ranges}
        if self._crash_after is not None:
            self._crash_after -= 1
            if self._crash_after < 0:
                raise CrashError
        if sum(self.ends.values()) == RECORDS:
            self._loop.call_soon_threadsafe(self.complete.set)


async def consume(broker: EmbeddedCluster, spark: SparkSession, sink: Any) -> None:
    """Run two members: the first crashes between storing and committing; the second one has batches of another size."""
    async with asyncio.timeout(COMMIT_WAIT):
        with pytest.raises(CrashError):
            async with ConsumerGroup(broker.bootstrap_servers, "store", CONFIG) as group:
                await group.run("numbers", ForeachBatch(spark, Member(sink, 1), max_rows=100, max_wait=0.05))
        member = Member(sink, None)
        async with ConsumerGroup(broker.bootstrap_servers, "store", CONFIG) as group:
            running = asyncio.create_task(
                group.run("numbers", ForeachBatch(spark, member, max_rows=160, max_wait=0.05))
            )
            await asyncio.wait(
                {running, done := asyncio.create_task(member.complete.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            done.cancel()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


def table_rows(df: DataFrame) -> DataFrame:
    return df.select("topic", "partition", "offset", F.col("value").cast("string").alias("text"))


def make_table(tmp_path: Path, key: str) -> Callable[[], sqlite3.Connection]:
    connect = functools.partial(sqlite3.connect, str(tmp_path / "db"), timeout=60.0)
    with transaction(connect) as connection:
        connection.execute(f'CREATE TABLE numbers (topic, "partition", "offset", text {key})')
    return connect


def stored(connect: Callable[[], sqlite3.Connection]) -> Rows:
    with transaction(connect) as connection:
        return connection.execute('SELECT "partition", "offset", text FROM numbers ORDER BY 1, 2').fetchall()


async def test_parquet(broker: EmbeddedCluster, spark: SparkSession, tmp_path: Path) -> None:
    sink = await asyncio.to_thread(
        ParquetByRange, spark, str(tmp_path), transform=table_rows, compact_after=2
    )
    await consume(broker, spark, sink)
    rows = await asyncio.to_thread(lambda: ParquetByRange.read(spark, str(tmp_path)).collect())
    assert sorted((row.partition, row.offset, row.text) for row in rows) == EXPECTED


async def test_upsert(broker: EmbeddedCluster, spark: SparkSession, tmp_path: Path) -> None:
    connect = make_table(tmp_path, ', PRIMARY KEY (topic, "partition", "offset")')
    await consume(broker, spark, Upsert(DbApiMerge(connect, "numbers"), transform=table_rows))
    assert stored(connect) == EXPECTED


async def test_offsets_in_the_sink(broker: EmbeddedCluster, spark: SparkSession, tmp_path: Path) -> None:
    connect = make_table(
        tmp_path, ""
    )  # the table has no key, so a row that is stored twice would be there twice
    sink = OffsetsInSink(connect, "numbers", name="store", transform=table_rows)
    sink.create_offsets_table()
    await consume(broker, spark, sink)
    assert stored(connect) == EXPECTED

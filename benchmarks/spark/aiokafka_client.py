"""aiokafka's consumer with the same Spark work: what users would write without the bridge.

The records of a batch are collected in lists, converted to an Arrow table and then, in a thread, to a DataFrame, while
the next batch is collected; offsets are committed when Spark is done.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from benchmarks.spark.batch_meter import BatchMeter
from benchmarks.spark.cases import BridgeSettings, LatencySettings
from benchmarks.spark.latency import BatchTimer, Commits, single_batches
from benchmarks.spark.process_tree import tree_cpu

if TYPE_CHECKING:
    import pyarrow as pa
    from aiokafka import AIOKafkaConsumer, ConsumerRecord
    from pyspark.sql import SparkSession

__all__ = ["latency", "rate"]

CORES: Final = 2
"""Cores of `local_session`."""
POLL: Final = 1000
"""Milliseconds that a poll waits for records."""
LARGE: Final = 16 << 20
"""Bytes of a batch from which a full garbage collection, tens of milliseconds, is worthwhile."""


class _Rows:
    """A batch as lists, one for each column of Spark's Kafka source; `ends` are the offsets to commit."""

    def __init__(self) -> None:
        self.ends: dict[Any, int] = {}
        self.columns: tuple[list[Any], ...] = ([], [], [], [], [], [], [])

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, tp: Any, records: Iterable[ConsumerRecord]) -> None:
        """Append records of one partition."""
        keys, values, topics, partitions, offsets, times, kinds = self.columns
        for record in records:
            keys.append(record.key)
            values.append(record.value)
            topics.append(record.topic)
            partitions.append(record.partition)
            offsets.append(record.offset)
            times.append(record.timestamp * 1000)
            kinds.append(record.timestamp_type)
        self.ends[tp] = self.columns[4][-1] + 1

    def table(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        import pyarrow as pa

        names = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
        types = (
            pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.int32()
        )  # fmt: skip
        arrays = [pa.array(column, type_) for column, type_ in zip(self.columns, types, strict=True)]
        return pa.table(arrays, names=list(names))


@contextmanager
def _tuned(spark: SparkSession, rows: int) -> Iterator[None]:
    """Let a DataFrame from Arrow have one Spark partition per `rows` rows, and decode no rows in the driver."""
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
        "spark.sql.execution.arrow.localRelationThreshold": "0",
    }
    before = {key: str(spark.conf.get(key)) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def _store(spark: SparkSession, table: pa.Table, called: Callable[[], object]) -> None:
    """Do the work: create a DataFrame and let Spark read all rows; `called` is called before the write starts.

    Java keeps the rows of a DataFrame until Python's garbage collector frees the py4j objects, which are in reference
    cycles: without a collection Java runs out of memory after a few large batches.
    """
    frame = spark.createDataFrame(table)
    called()
    frame.write.format("noop").mode("overwrite").save()
    size = table.nbytes
    del frame
    gc.collect(2 if size > LARGE else 1)


def _consumer(settings: BridgeSettings | LatencySettings) -> AIOKafkaConsumer:
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        settings.topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


def rate(spark: SparkSession, given: dict[str, Any]) -> dict[str, float | None]:
    """Measure rows per second, without the first and the last batch."""
    settings = BridgeSettings(**given)
    with _tuned(spark, -(-settings.batch // CORES)):
        return asyncio.run(_rate(spark, settings))


async def _rate(spark: SparkSession, settings: BridgeSettings) -> dict[str, float | None]:
    meter, loop = BatchMeter(settings.rows, settings.batch), asyncio.get_running_loop()
    left = settings.rows

    async def work(consumer: AIOKafkaConsumer, rows: _Rows) -> None:
        await loop.run_in_executor(thread, _store, spark, rows.table(), int)
        meter.add(len(rows), time.perf_counter(), tree_cpu(os.getpid()))
        await consumer.commit(rows.ends)

    async with asyncio.timeout(settings.limit), _consumer(settings) as consumer:
        with ThreadPoolExecutor(1) as thread:
            under_way = asyncio.create_task(asyncio.sleep(0))
            while left > 0:
                rows = _Rows()
                while len(rows) < min(settings.batch, left):
                    found = await consumer.getmany(timeout_ms=POLL, max_records=settings.batch - len(rows))
                    for tp, records in found.items():
                        rows.add(tp, records)
                left -= len(rows)
                await under_way
                under_way = asyncio.create_task(work(consumer, rows))
            await under_way
    return meter.figures()


def latency(spark: SparkSession, given: dict[str, Any]) -> dict[str, float]:
    """Measure the seconds from producing a small batch until it is committed."""
    settings = LatencySettings(**given)
    with _tuned(spark, settings.rows):
        return asyncio.run(_latency(spark, settings))


async def _latency(spark: SparkSession, settings: LatencySettings) -> dict[str, float]:
    from asyncgroup import TopicPartition

    commits, timer, loop = Commits(), BatchTimer(), asyncio.get_running_loop()

    async def read(consumer: AIOKafkaConsumer, thread: ThreadPoolExecutor) -> None:
        while True:
            rows = _Rows()
            for tp, records in (await consumer.getmany(timeout_ms=POLL)).items():
                rows.add(tp, records)
            if not len(rows):
                continue
            await loop.run_in_executor(thread, _store, spark, rows.table(), timer.called)
            timer.returned()
            await consumer.commit(rows.ends)
            for tp, end in rows.ends.items():
                commits.add(TopicPartition(tp.topic, tp.partition), end)

    async with asyncio.timeout(settings.limit), _consumer(settings) as consumer:
        with ThreadPoolExecutor(1) as thread:
            running = asyncio.create_task(read(consumer, thread))
            try:
                await single_batches(settings, timer, commits, running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    return timer.figures(settings.warm_up)

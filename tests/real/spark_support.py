"""Helpers of the Spark tests on a real Kafka: unique topics, running queries, and the rows that these have stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from asyncgroup import TopicPartition
from asyncgroup.spark import register
from asyncgroup.wire import messages as m
from tests.stories.admin import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["LIMIT", "Kafka", "Query", "RowPosition", "StoredBatches", "failure", "run_now", "stream"]

LIMIT: Final = 60.0
"""Seconds that a step of a test may take."""

RowPosition = tuple[str, int, int]
"""Topic, partition, offset."""

_numbers = itertools.count()


class Kafka:
    """A broker, with operations on its topics."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = Admin(servers)

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, servers: str) -> AsyncIterator[Kafka]:
        kafka = cls(servers)
        async with kafka.admin.cluster:
            yield kafka

    async def topic(self, partitions: int, prefix: str = "spark") -> str:
        """Create a topic with a unique name."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        await self.admin.create_topic(name, partitions)
        return name

    async def produce(self, topic: str, rows: Mapping[int, int], batch: int = 1000) -> None:
        """Produce `rows` records, by partition; all values are different."""
        for partition, count in rows.items():
            values = [b"%d" % next(_numbers) for _ in range(count)]
            await self.admin.produce(TopicPartition(topic, partition), values, batch=batch)

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before an offset."""
        tp = TopicPartition(topic, partition)
        cls = m.DeleteRecordsRequest
        part = cls.DeleteRecordsPartition(partition, before)
        request = cls(topics=[cls.DeleteRecordsTopic(topic, [part])], timeout_ms=30_000)
        response = await self.admin.cluster.network.request(await self.admin.leader(tp), request)
        assert not response.topics[0].partitions[0].error_code

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until the metadata no longer has it."""
        await self.admin.delete_topic(topic)
        async with asyncio.timeout(LIMIT):
            while topic in await self.admin.cluster.all_topics():
                await asyncio.sleep(0.05)


class StoredBatches:
    """A function for foreachBatch that stores each batch's rows by its number, as a sink that overwrites does.

    While it is `held` it stores the rows and does not return, so that a test can change Kafka while the query waits.
    """

    def __init__(self, *, held: bool = False) -> None:
        self.batches: dict[int, list[RowPosition]] = {}
        self._released = threading.Event()
        if not held:
            self._released.set()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        rows = df.select("topic", "partition", "offset").collect()
        self.batches[batch_id] = [(row.topic, row.partition, row.offset) for row in rows]
        if not self._released.wait(LIMIT):
            raise TimeoutError("the batch was not released in time")

    def release(self) -> None:
        """Let batches return."""
        self._released.set()

    @property
    def rows(self) -> Counter[RowPosition]:
        """All rows, with the number of times that each was stored."""
        return Counter(row for rows in list(self.batches.values()) for row in rows)


def stream(spark: SparkSession, format_: str, servers: str, **options: Any) -> DataFrame:
    """Return a streaming DataFrame of one of the sources."""
    register(spark)
    reading = spark.readStream.format(format_).option("kafka.bootstrap.servers", servers)
    return reading.options(**options).load()


def run_now(frame: DataFrame, checkpoint: Path, store: Any, limit: float = LIMIT) -> None:
    """Read all available records, batch by batch. Blocks."""
    writing = frame.writeStream.foreachBatch(store).option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(round(limit)), query.status
    finally:
        query.stop()


class Query:
    """A query that runs until the context ends; its rows are in `stored`."""

    def __init__(self, frame: DataFrame, checkpoint: Path, *, held: bool = False) -> None:
        self.stored = StoredBatches(held=held)
        self._frame = frame
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None

    async def __aenter__(self) -> Self:
        writing = self._frame.writeStream.foreachBatch(self.stored)
        writing = writing.option("checkpointLocation", str(self._checkpoint))
        self._query = await asyncio.to_thread(writing.start)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stored.release()
        assert self._query is not None
        await asyncio.to_thread(self._query.stop)

    @property
    def query(self) -> StreamingQuery:
        """Spark's own handle."""
        assert self._query is not None
        return self._query

    async def wait_for_rows(self, rows: int) -> None:
        """Wait until at least `rows` rows are stored; raises an error if the query has ended."""
        await self._until(lambda: self.stored.rows.total() >= rows)

    async def wait_for_row(self, place: RowPosition) -> None:
        """Wait until this row is stored; raises an error if the query has ended."""
        await self._until(lambda: place in self.stored.rows)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                if not self.query.isActive:
                    error = AssertionError(f"the query has ended with {self.stored.rows.total()} rows")
                    raise error from failure(self.query)
                await asyncio.sleep(0.05)

    async def wait_failed(self) -> str:
        """Wait until the query fails, and return its error message."""
        async with asyncio.timeout(LIMIT):
            while self.query.isActive:
                await asyncio.sleep(0.05)
        error = failure(self.query)
        assert error is not None
        return str(error)


def failure(query: StreamingQuery) -> Exception | None:
    """Return the error with which a query has ended, or None."""
    error: Exception | None = query.exception()
    return error

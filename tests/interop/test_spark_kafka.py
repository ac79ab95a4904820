"""Spark's own Kafka source and sink with the embedded cluster: batch write, batch read, availableNow stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup.broker import EmbeddedCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 100
LIMIT = 100.0


class Job:
    """Blocking Spark jobs: write and read the topic `written`, and stream it to `streamed`."""

    def __init__(self, spark: SparkSession, servers: str, scratch: Path) -> None:
        self._spark = spark
        self._kafka = {"kafka.bootstrap.servers": servers}
        self._scratch = scratch

    def write(self, first: int) -> None:
        """Write a batch of rows."""
        numbers = self._spark.range(first, first + ROWS)
        rows = numbers.selectExpr("cast(id as string) key", "concat('v', id) value")
        rows.write.format("kafka").options(**self._kafka).option("topic", "written").save()

    def stream(self) -> None:
        """Run the stream from its checkpoint to the current end of the topic."""
        reader = self._spark.readStream.format("kafka").options(**self._kafka)
        rows = reader.options(subscribe="written", startingOffsets="earliest").load().select("key", "value")
        writer = rows.writeStream.format("kafka").options(**self._kafka, topic="streamed")
        checkpoint = str(self._scratch / "checkpoint")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(int(LIMIT))

    def read(self) -> set[tuple[bytes, bytes, int, int]]:
        """Return (key, value, partition, offset) of the records in partition 0, from offset 5 on, and partition 1."""
        starts = '{"written":{"0":5,"1":-2}}'
        reader = self._spark.read.format("kafka").options(**self._kafka)
        rows = reader.options(assign='{"written":[0,1]}', startingOffsets=starts).load()
        return {(bytes(r.key), bytes(r.value), r.partition, r.offset) for r in rows.collect()}


@pytest.mark.parametrize("times", [2, pytest.param(5, marks=pytest.mark.soak)])
async def test_spark_writes_reads_and_streams(
    spark_with_kafka: SparkSession, tmp_path: Path, times: int
) -> None:
    async with EmbeddedCluster(nodes=3) as cluster, asyncio.timeout(LIMIT):
        for topic in ("written", "streamed"):
            cluster.create_topic(topic, 3)
        job = Job(spark_with_kafka, cluster.bootstrap_servers, tmp_path)
        for run in range(times):
            await asyncio.to_thread(job.write, run * ROWS)
            await asyncio.to_thread(job.stream)
        read = await asyncio.to_thread(job.read)
        written = cluster.records("written")
        expected = {(b"%d" % number, b"v%d" % number) for number in range(times * ROWS)}
        assert {(record.key, record.value) for record in written} == expected
        assert len(written) == len(expected)
        values = sorted(record.value or b"" for record in cluster.records("streamed"))
        assert values == sorted(value for _, value in expected)
        starts = {0: 5, 1: 0}
        records = {(r.key, r.value, r.partition, r.offset) for r in written}
        assert read == {each for each in records if each[3] >= starts.get(each[2], 1 << 60)}

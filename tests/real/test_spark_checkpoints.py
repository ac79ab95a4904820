"""Checkpoints of streaming queries on a real Kafka: moved between Spark's source and ours, and used after a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from asyncgroup import TopicPartition
from tests.real.spark_driver import Driver, overwriting
from tests.real.spark_support import LIMIT, Kafka, stream
from tests.real.support import RunningKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS: Final = 4


async def topic_with_numbers(kafka: Kafka, rows: int) -> str:
    """Create a topic with the numbers below `rows` as values, partition by partition."""
    topic = await kafka.topic(PARTITIONS, "spark-checkpoint")
    share = rows // PARTITIONS
    for partition in range(PARTITIONS):
        values = [b"%d" % number for number in range(partition * share, (partition + 1) * share)]
        await kafka.admin.produce(TopicPartition(topic, partition), values, batch=5_000)
    return topic


def check_each_once(found: DataFrame, rows: int) -> None:
    """Check that every number below `rows` was read once, at the partition and offset where it was written."""
    import pyarrow.compute as pc

    share = rows // PARTITIONS
    table = found.selectExpr(
        "cast(cast(value as string) as bigint) number", f"partition * {share}L + offset place"
    ).toArrow()
    numbers = table["number"]
    assert numbers.equals(table["place"])
    counted = (table.num_rows, pc.count_distinct(numbers).as_py(), pc.min_max(numbers).as_py())
    assert counted == (rows, rows, {"min": 0, "max": rows - 1})


# -- from one source to another ------------------------------------------------------------------------------


async def run_part(frame: DataFrame, target: Path, checkpoint: Path, batches: int | None) -> int:
    """Run a query that writes Parquet, to its end or for `batches` batches; return the number of finished ones.

    It is stopped at any point: the next source has to repeat a batch that was started, from the checkpoint alone.
    """
    writing = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    if batches is None:
        writing = writing.trigger(availableNow=True)
    query = await asyncio.to_thread(writing.start, str(target))
    try:
        async with asyncio.timeout(5 * LIMIT):
            while query.isActive and (batches is None or finished_batches(query) < batches):
                await asyncio.sleep(0.02)
    finally:
        await asyncio.to_thread(query.stop)
    error = query.exception()
    if error is not None:
        raise error
    return finished_batches(query)


def finished_batches(query: StreamingQuery) -> int:
    """Return the number of finished batches with rows."""
    return sum(1 for progress in query.recentProgress if progress.numInputRows)


@pytest.mark.parametrize(
    ("rows", "batch"),
    [
        pytest.param(6_000, 1_000, marks=pytest.mark.timeout(300)),
        pytest.param(1_000_000, 100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
async def test_a_checkpoint_moves_from_sparks_source_to_ours_and_back(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, rows: int, batch: int
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await topic_with_numbers(kafka, rows)
        target, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"

        async def read(source: str, batches: int | None) -> int:
            options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": batch}
            frame = stream(spark_with_kafka, source, kafka.servers, **options)
            return await run_part(frame, target, checkpoint, batches)

        batches = [
            await read(source, wanted)
            for source, wanted in (("kafka", 2), ("asyncgroup", 2), ("kafka", None))
        ]
        assert min(batches) > 0
        assert sum(batches) <= rows // batch + 2, "only a batch in which a query was stopped is repeated"
        await asyncio.to_thread(lambda: check_each_once(spark_with_kafka.read.parquet(str(target)), rows))


# -- after a kill of the driver ------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_driver_is_killed_twice_in_one_batch(
    spark: SparkSession, apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    """kill -9 of Python and Java after a batch's rows are written and before its commit: they are written again."""
    rows, batch, fatal = 2_000_000, 300_000, 3
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await topic_with_numbers(kafka, rows)
        settings = {
            "servers": kafka.servers,
            "options": {
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(batch),
                "kafka.group.id": f"{topic}-group",
            },
            "target": str(tmp_path / "rows"),
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        lines: list[str] = []
        for hold in (fatal, fatal, None):
            async with Driver(overwriting, settings | {"hold": hold}) as driver:
                while (line := await driver.line()) not in ("done", f"holding {fatal}"):
                    lines.append(line)
                if hold is not None:
                    driver.kill()
        assert lines == [
            *(f"batch {n}" for n in range(fatal + 1)),
            f"batch {fatal}",
            *(f"batch {n}" for n in range(fatal, -(-rows // batch))),
        ]
        await asyncio.to_thread(lambda: check_each_once(spark.read.parquet(str(tmp_path / "rows")), rows))
        committed = await kafka.admin.committed(
            f"{topic}-group", [TopicPartition(topic, number) for number in range(PARTITIONS)]
        )
        assert sum(committed.values()) == rows, "the last batch is committed, too"

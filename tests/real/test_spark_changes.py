"""Topics that grow, lose records, vanish and come anew while a query of Spark reads them, with both settings of
failOnDataLoss: our source does what Spark's own does.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.real.spark_support import Kafka, Place, Query, stream
from tests.real.support import RunningKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(300),
]
OURS, THEIRS = "asyncgroup", "kafka"


class Pair(NamedTuple):
    """Two queries on one topic: for one a loss of data is an error, for the other it is not."""

    strict: Query
    lenient: Query

    async def hold(self, rows: int) -> None:
        """Both have stored so many rows."""
        for query in self:
            await query.holds(rows)

    def release(self) -> None:
        """Both go on."""
        for query in self:
            query.stored.release()


@contextlib.asynccontextmanager
async def queries(
    spark: SparkSession, source: str, kafka: Kafka, scratch: Path, **options: Any
) -> AsyncIterator[Pair]:
    """Both, each held in its first batch."""

    def query(strict: bool) -> Query:
        settings = {"startingOffsets": "earliest", "failOnDataLoss": strict, **options}
        frame = stream(spark, source, kafka.servers, **settings)
        return Query(frame, scratch / f"strict={strict}", held=True)

    async with query(True) as strict, query(False) as lenient:
        yield Pair(strict, lenient)


def loss(source: str, kind: str) -> str:
    """What an error says: ours the code that Spark's own has as its condition, Spark's own a text for all of them."""
    return f"[KAFKA_DATA_LOSS.{kind}]" if source == "asyncgroup" else "Some data may have been lost"


def rows(topic: str, partition: int, start: int, end: int) -> Counter[Place]:
    """One of each of these."""
    return Counter((topic, partition, offset) for offset in range(start, end))


async def test_a_topic_grows_and_loses_records(
    spark: SparkSession, apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    """Both at once; each alone, and beside Spark's own source, in the stories below."""
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 100}, batch=10)
        limits = {"maxOffsetsPerTrigger": 40, "fetchBytes": 1}
        async with queries(spark, OURS, kafka, tmp_path, subscribe=topic, **limits) as pair:
            await pair.hold(40)
            await kafka.admin.create_partitions(topic, 2)
            await kafka.produce(topic, {1: 10})
            await kafka.delete_records(topic, 0, before=90)
            pair.release()
            assert loss(OURS, "COULD_NOT_READ_OFFSET_RANGE") in await pair.strict.fails()
            await pair.lenient.reaches((topic, 0, 99))
            await pair.lenient.reaches((topic, 1, 9))
            stored = pair.lenient.stored.rows
            assert stored >= rows(topic, 0, 0, 40) + rows(topic, 0, 90, 100) + rows(topic, 1, 0, 10)
            assert stored < rows(topic, 0, 0, 100) + rows(topic, 1, 0, 10), "none twice"


@pytest.mark.soak
@pytest.mark.parametrize("source", [OURS, THEIRS])
async def test_new_partitions_are_read_from_their_start(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, source: str
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 20})
        async with queries(spark_with_kafka, source, kafka, tmp_path, subscribe=topic) as pair:
            await pair.hold(20)
            await kafka.admin.create_partitions(topic, 2)
            await kafka.produce(topic, {0: 5, 1: 10})
            pair.release()
            await pair.hold(35)
            for query in pair:
                assert query.stored.rows == rows(topic, 0, 0, 25) + rows(topic, 1, 0, 10)


@pytest.mark.soak
@pytest.mark.parametrize("source", [OURS, THEIRS])
async def test_a_new_partition_that_has_lost_its_start(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, source: str
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 20})
        async with queries(spark_with_kafka, source, kafka, tmp_path, subscribe=topic) as pair:
            await pair.hold(20)
            await kafka.admin.create_partitions(topic, 2)
            await kafka.produce(topic, {1: 10})
            await kafka.delete_records(topic, 1, before=4)
            pair.release()
            said = await pair.strict.fails()
            assert loss(source, "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO") in said
            assert f"{topic}-1" in said
            await pair.lenient.holds(26)
            assert pair.lenient.stored.rows == rows(topic, 0, 0, 20) + rows(topic, 1, 4, 10)


@pytest.mark.soak
@pytest.mark.parametrize("source", [OURS, THEIRS])
async def test_records_are_deleted_before_they_are_read(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, source: str
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 300}, batch=10)
        # little is fetched at a time, lest what is deleted has been read ahead of its batch
        limits = {"maxOffsetsPerTrigger": 30, "kafka.max.partition.fetch.bytes": 1, "fetchBytes": 1}
        limited = queries(spark_with_kafka, source, kafka, tmp_path, subscribe=topic, **limits)
        async with limited as pair:
            await pair.hold(30)
            await kafka.delete_records(topic, 0, before=270)
            pair.release()
            said = await pair.strict.fails()
            assert loss(source, "COULD_NOT_READ_OFFSET_RANGE") in said
            assert f"{topic}-0" in said
            await pair.lenient.reaches((topic, 0, 299))
            stored = pair.lenient.stored.rows
            assert stored >= rows(topic, 0, 0, 30) + rows(topic, 0, 270, 300)
            assert stored < rows(topic, 0, 0, 300), "none twice"


@pytest.mark.soak
@pytest.mark.parametrize("source", [OURS, THEIRS])
async def test_one_of_two_topics_is_deleted(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, source: str
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        stays = await kafka.topic(1, "spark-deletion")
        goes = await kafka.topic(1, f"{stays}-goes")
        for topic in (stays, goes):
            await kafka.produce(topic, {0: 20})
        async with queries(spark_with_kafka, source, kafka, tmp_path, subscribePattern=f"{stays}.*") as pair:
            await pair.hold(40)
            await kafka.deleted(goes)
            await kafka.produce(stays, {0: 5})
            pair.release()
            said = await pair.strict.fails()
            assert loss(source, "PARTITIONS_DELETED") in said
            assert f"{goes}-0" in said
            await pair.lenient.holds(45)
            assert pair.lenient.stored.rows == rows(stays, 0, 0, 25) + rows(goes, 0, 0, 20)


@pytest.mark.soak
@pytest.mark.parametrize("source", [OURS, THEIRS])
async def test_a_topic_is_made_anew_with_fewer_records(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka, tmp_path: Path, source: str
) -> None:
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 50})
        async with queries(spark_with_kafka, source, kafka, tmp_path, subscribe=topic) as pair:
            await pair.hold(50)
            await kafka.deleted(topic)
            await kafka.admin.recreate_topic(topic, 1)
            await kafka.produce(topic, {0: 10})
            pair.release()
            said = await pair.strict.fails()
            assert loss(source, "PARTITION_OFFSET_CHANGED") in said
            assert f"{topic}-0" in said
            await kafka.produce(topic, {0: 10})
            if source == THEIRS:  # takes the new records for old ones, and reads those that come from now on
                await pair.lenient.holds(60)
                return
            await pair.lenient.holds(70)
            assert pair.lenient.stored.rows == rows(topic, 0, 0, 50) + rows(topic, 0, 0, 20)


@pytest.mark.soak
async def test_a_topic_is_made_anew_with_more_records(
    spark: SparkSession, apache_kafka: RunningKafka, tmp_path: Path
) -> None:
    """By its offsets it could be the old one (Spark's source reads on in the middle of it), but not by its id."""
    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(1)
        await kafka.produce(topic, {0: 20})
        async with queries(spark, OURS, kafka, tmp_path, subscribe=topic) as pair:
            await pair.hold(20)
            await kafka.deleted(topic)
            await kafka.admin.recreate_topic(topic, 1)
            await kafka.produce(topic, {0: 50})
            pair.release()
            said = await pair.strict.fails()
            assert "[KAFKA_DATA_LOSS." in said
            assert f"{topic}-0" in said
            await pair.lenient.holds(70)
            assert pair.lenient.stored.rows == rows(topic, 0, 0, 20) + rows(topic, 0, 0, 50)

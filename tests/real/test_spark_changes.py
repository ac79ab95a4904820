"""Topics that grow, lose records, are deleted or recreated while a Spark query reads them, as with Spark's own source.

Each test runs two queries, one for each value of failOnDataLoss.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.real.spark_support import Kafka, Query, RowPosition, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
OURS, THEIRS = "asyncgroup", "kafka"


class QueryPair(NamedTuple):
    """Two queries on one topic: a loss of data is an error for the strict one only."""

    strict: Query
    lenient: Query

    async def wait_for_rows(self, rows: int) -> None:
        """Wait until both have stored at least `rows` rows."""
        for query in self:
            await query.wait_for_rows(rows)

    def release(self) -> None:
        """Let both continue after their first batch."""
        for query in self:
            query.stored.release()


class Environment(NamedTuple):
    """A Kafka, and the Spark source that reads from it."""

    kafka: Kafka
    spark: SparkSession
    source: str
    scratch: Path

    async def topic(self, rows: int, batch: int = 1000) -> str:
        """Create a topic of one partition with `rows` records."""
        topic = await self.kafka.topic(1)
        await self.kafka.produce(topic, {0: rows}, batch=batch)
        return topic

    @contextlib.asynccontextmanager
    async def queries(self, **options: Any) -> AsyncIterator[QueryPair]:
        """Run both queries, each held in its first batch."""

        def query(strict: bool) -> Query:
            settings = {"startingOffsets": "earliest", "failOnDataLoss": strict, **options}
            frame = stream(self.spark, self.source, self.kafka.servers, **settings)
            return Query(frame, self.scratch / f"strict={strict}", held=True)

        async with query(True) as strict, query(False) as lenient:
            yield QueryPair(strict, lenient)

    async def recreate_topic(self, topic: str, rows: int) -> None:
        """Delete the topic, and create another one with the same name and `rows` records."""
        await self.kafka.delete_topic(topic)
        await self.kafka.admin.recreate_topic(topic, 1)
        await self.kafka.produce(topic, {0: rows})

    async def assert_data_loss(self, query: Query, kind: str, place: str) -> None:
        """Check the query's error: ours has the error condition of Spark's own source, which itself has one text for all."""
        code = f"[KAFKA_DATA_LOSS.{kind}" if self.source == OURS else "Some data may have been lost"
        message = await query.wait_failed()
        assert code in message
        assert place in message


@pytest.fixture
def environment(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> Environment:
    return Environment(kafka, spark, getattr(request, "param", OURS), tmp_path)


def with_sparks_source(story: Callable[..., Any]) -> Callable[..., Any]:
    """Run a long test with our source and with Spark's own."""
    story = pytest.mark.parametrize("environment", [OURS, THEIRS], indirect=True)(story)
    return pytest.mark.soak(pytest.mark.usefixtures("spark_with_kafka")(story))


def rows(topic: str, partition: int, start: int, end: int) -> Counter[RowPosition]:
    """Return these rows, each once."""
    return Counter((topic, partition, offset) for offset in range(start, end))


@pytest.mark.full
async def test_a_topic_grows_and_loses_records(environment: Environment) -> None:
    """Both changes together; the tests below have each alone, and compare with Spark's own source."""
    topic = await environment.topic(100, batch=10)
    async with environment.queries(subscribe=topic, maxOffsetsPerTrigger=40, fetchBytes=1) as pair:
        await pair.wait_for_rows(40)
        await environment.kafka.admin.create_partitions(topic, 2)
        await environment.kafka.produce(topic, {1: 10})
        await environment.kafka.delete_records(topic, 0, before=90)
        pair.release()
        await environment.assert_data_loss(pair.strict, "COULD_NOT_READ_OFFSET_RANGE]", f"{topic}-0")
        await pair.lenient.wait_for_row((topic, 0, 99))
        await pair.lenient.wait_for_row((topic, 1, 9))
        stored = pair.lenient.stored.rows
        assert stored >= rows(topic, 0, 0, 40) + rows(topic, 0, 90, 100) + rows(topic, 1, 0, 10)
        assert stored < rows(topic, 0, 0, 100) + rows(topic, 1, 0, 10), "no row is stored twice"


@with_sparks_source
async def test_new_partitions_are_read_from_their_start(environment: Environment) -> None:
    topic = await environment.topic(20)
    async with environment.queries(subscribe=topic) as pair:
        await pair.wait_for_rows(20)
        await environment.kafka.admin.create_partitions(topic, 2)
        await environment.kafka.produce(topic, {0: 5, 1: 10})
        pair.release()
        await pair.wait_for_rows(35)
        for query in pair:
            assert query.stored.rows == rows(topic, 0, 0, 25) + rows(topic, 1, 0, 10)


@with_sparks_source
async def test_a_new_partition_that_has_lost_its_start(environment: Environment) -> None:
    topic = await environment.topic(20)
    async with environment.queries(subscribe=topic) as pair:
        await pair.wait_for_rows(20)
        await environment.kafka.admin.create_partitions(topic, 2)
        await environment.kafka.produce(topic, {1: 10})
        await environment.kafka.delete_records(topic, 1, before=4)
        pair.release()
        kind = "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO]"
        await environment.assert_data_loss(pair.strict, kind, f"{topic}-1")
        await pair.lenient.wait_for_rows(26)
        assert pair.lenient.stored.rows == rows(topic, 0, 0, 20) + rows(topic, 1, 4, 10)


@with_sparks_source
async def test_records_are_deleted_before_they_are_read(environment: Environment) -> None:
    topic = await environment.topic(300, batch=10)
    # small fetches, so that the deleted records have not been fetched before
    limits = {"maxOffsetsPerTrigger": 30, "kafka.max.partition.fetch.bytes": 1, "fetchBytes": 1}
    async with environment.queries(subscribe=topic, **limits) as pair:
        await pair.wait_for_rows(30)
        await environment.kafka.delete_records(topic, 0, before=270)
        pair.release()
        await environment.assert_data_loss(pair.strict, "COULD_NOT_READ_OFFSET_RANGE]", f"{topic}-0")
        await pair.lenient.wait_for_row((topic, 0, 299))
        stored = pair.lenient.stored.rows
        assert stored >= rows(topic, 0, 0, 30) + rows(topic, 0, 270, 300)
        assert stored < rows(topic, 0, 0, 300), "no row is stored twice"


@with_sparks_source
async def test_one_of_two_topics_is_deleted(environment: Environment) -> None:
    stays = await environment.topic(20)
    goes = await environment.kafka.topic(1, f"{stays}-goes")
    await environment.kafka.produce(goes, {0: 20})
    async with environment.queries(subscribePattern=f"{stays}.*") as pair:
        await pair.wait_for_rows(40)
        await environment.kafka.delete_topic(goes)
        await environment.kafka.produce(stays, {0: 5})
        pair.release()
        await environment.assert_data_loss(pair.strict, "PARTITIONS_DELETED]", f"{goes}-0")
        await pair.lenient.wait_for_rows(45)
        assert pair.lenient.stored.rows == rows(stays, 0, 0, 25) + rows(goes, 0, 0, 20)


@with_sparks_source
async def test_a_topic_is_recreated_with_fewer_records(environment: Environment) -> None:
    topic = await environment.topic(50)
    async with environment.queries(subscribe=topic) as pair:
        await pair.wait_for_rows(50)
        await environment.recreate_topic(topic, 10)
        pair.release()
        await environment.assert_data_loss(pair.strict, "PARTITION_OFFSET_CHANGED]", f"{topic}-0")
        await environment.kafka.produce(topic, {0: 10})
        if environment.source == THEIRS:
            # Spark's source takes the new records for the old ones, and reads only later ones
            await pair.lenient.wait_for_rows(60)
            return
        await pair.lenient.wait_for_rows(70)
        assert pair.lenient.stored.rows == rows(topic, 0, 0, 50) + rows(topic, 0, 0, 20)


@pytest.mark.soak
async def test_a_topic_is_recreated_with_more_records(environment: Environment) -> None:
    """Its offsets could be those of the old topic (Spark's own source continues in the middle of it), but not its id."""
    topic = await environment.topic(20)
    async with environment.queries(subscribe=topic) as pair:
        await pair.wait_for_rows(20)
        await environment.recreate_topic(topic, 50)
        pair.release()
        await environment.assert_data_loss(pair.strict, "", f"{topic}-0")
        await pair.lenient.wait_for_rows(70)
        assert pair.lenient.stored.rows == rows(topic, 0, 0, 20) + rows(topic, 0, 0, 50)

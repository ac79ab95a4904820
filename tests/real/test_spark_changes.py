"""Topics that grow, lose records, vanish and come anew while a query of Spark reads them, with both settings of
failOnDataLoss: our source does what Spark's own does.
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
            await query.wait_for_rows(rows)

    def release(self) -> None:
        """Both go on."""
        for query in self:
            query.stored.release()


class Stage(NamedTuple):
    """Where a story takes place: a Kafka, and a source of Spark that reads from it."""

    kafka: Kafka
    spark: SparkSession
    source: str
    scratch: Path

    async def topic(self, rows: int, batch: int = 1000) -> str:
        """A topic of one partition with so many rows."""
        topic = await self.kafka.topic(1)
        await self.kafka.produce(topic, {0: rows}, batch=batch)
        return topic

    @contextlib.asynccontextmanager
    async def queries(self, **options: Any) -> AsyncIterator[Pair]:
        """Both, each held in its first batch."""

        def query(strict: bool) -> Query:
            settings = {"startingOffsets": "earliest", "failOnDataLoss": strict, **options}
            frame = stream(self.spark, self.source, self.kafka.servers, **settings)
            return Query(frame, self.scratch / f"strict={strict}", held=True)

        async with query(True) as strict, query(False) as lenient:
            yield Pair(strict, lenient)

    async def make_anew(self, topic: str, rows: int) -> None:
        """Another topic of this name, with so many rows."""
        await self.kafka.delete_topic(topic)
        await self.kafka.admin.recreate_topic(topic, 1)
        await self.kafka.produce(topic, {0: rows})

    async def ends_by_loss(self, query: Query, kind: str, place: str) -> None:
        """What the query says: ours the code that Spark's own has as its condition, Spark's own a text for all of them."""
        code = f"[KAFKA_DATA_LOSS.{kind}" if self.source == OURS else "Some data may have been lost"
        said = await query.wait_failed()
        assert code in said
        assert place in said


@pytest.fixture
def stage(kafka: Kafka, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    return Stage(kafka, spark, getattr(request, "param", OURS), tmp_path)


def beside_sparks_own(story: Callable[..., Any]) -> Callable[..., Any]:
    """A long story, told of our source and of Spark's own."""
    story = pytest.mark.parametrize("stage", [OURS, THEIRS], indirect=True)(story)
    return pytest.mark.soak(pytest.mark.usefixtures("spark_with_kafka")(story))


def rows(topic: str, partition: int, start: int, end: int) -> Counter[RowPosition]:
    """One of each of these."""
    return Counter((topic, partition, offset) for offset in range(start, end))


async def test_a_topic_grows_and_loses_records(stage: Stage) -> None:
    """Both at once; each alone, and beside Spark's own source, in the stories below."""
    topic = await stage.topic(100, batch=10)
    async with stage.queries(subscribe=topic, maxOffsetsPerTrigger=40, fetchBytes=1) as pair:
        await pair.hold(40)
        await stage.kafka.admin.create_partitions(topic, 2)
        await stage.kafka.produce(topic, {1: 10})
        await stage.kafka.delete_records(topic, 0, before=90)
        pair.release()
        await stage.ends_by_loss(pair.strict, "COULD_NOT_READ_OFFSET_RANGE]", f"{topic}-0")
        await pair.lenient.wait_for_row((topic, 0, 99))
        await pair.lenient.wait_for_row((topic, 1, 9))
        stored = pair.lenient.stored.rows
        assert stored >= rows(topic, 0, 0, 40) + rows(topic, 0, 90, 100) + rows(topic, 1, 0, 10)
        assert stored < rows(topic, 0, 0, 100) + rows(topic, 1, 0, 10), "none twice"


@beside_sparks_own
async def test_new_partitions_are_read_from_their_start(stage: Stage) -> None:
    topic = await stage.topic(20)
    async with stage.queries(subscribe=topic) as pair:
        await pair.hold(20)
        await stage.kafka.admin.create_partitions(topic, 2)
        await stage.kafka.produce(topic, {0: 5, 1: 10})
        pair.release()
        await pair.hold(35)
        for query in pair:
            assert query.stored.rows == rows(topic, 0, 0, 25) + rows(topic, 1, 0, 10)


@beside_sparks_own
async def test_a_new_partition_that_has_lost_its_start(stage: Stage) -> None:
    topic = await stage.topic(20)
    async with stage.queries(subscribe=topic) as pair:
        await pair.hold(20)
        await stage.kafka.admin.create_partitions(topic, 2)
        await stage.kafka.produce(topic, {1: 10})
        await stage.kafka.delete_records(topic, 1, before=4)
        pair.release()
        kind = "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO]"
        await stage.ends_by_loss(pair.strict, kind, f"{topic}-1")
        await pair.lenient.wait_for_rows(26)
        assert pair.lenient.stored.rows == rows(topic, 0, 0, 20) + rows(topic, 1, 4, 10)


@beside_sparks_own
async def test_records_are_deleted_before_they_are_read(stage: Stage) -> None:
    topic = await stage.topic(300, batch=10)
    # little is fetched at a time, lest what is deleted has been read ahead of its batch
    limits = {"maxOffsetsPerTrigger": 30, "kafka.max.partition.fetch.bytes": 1, "fetchBytes": 1}
    async with stage.queries(subscribe=topic, **limits) as pair:
        await pair.hold(30)
        await stage.kafka.delete_records(topic, 0, before=270)
        pair.release()
        await stage.ends_by_loss(pair.strict, "COULD_NOT_READ_OFFSET_RANGE]", f"{topic}-0")
        await pair.lenient.wait_for_row((topic, 0, 299))
        stored = pair.lenient.stored.rows
        assert stored >= rows(topic, 0, 0, 30) + rows(topic, 0, 270, 300)
        assert stored < rows(topic, 0, 0, 300), "none twice"


@beside_sparks_own
async def test_one_of_two_topics_is_deleted(stage: Stage) -> None:
    stays = await stage.topic(20)
    goes = await stage.kafka.topic(1, f"{stays}-goes")
    await stage.kafka.produce(goes, {0: 20})
    async with stage.queries(subscribePattern=f"{stays}.*") as pair:
        await pair.hold(40)
        await stage.kafka.delete_topic(goes)
        await stage.kafka.produce(stays, {0: 5})
        pair.release()
        await stage.ends_by_loss(pair.strict, "PARTITIONS_DELETED]", f"{goes}-0")
        await pair.lenient.wait_for_rows(45)
        assert pair.lenient.stored.rows == rows(stays, 0, 0, 25) + rows(goes, 0, 0, 20)


@beside_sparks_own
async def test_a_topic_is_made_anew_with_fewer_records(stage: Stage) -> None:
    topic = await stage.topic(50)
    async with stage.queries(subscribe=topic) as pair:
        await pair.hold(50)
        await stage.make_anew(topic, 10)
        pair.release()
        await stage.ends_by_loss(pair.strict, "PARTITION_OFFSET_CHANGED]", f"{topic}-0")
        await stage.kafka.produce(topic, {0: 10})
        if stage.source == THEIRS:
            # takes the new records for old ones, and reads those that come from now on
            await pair.lenient.wait_for_rows(60)
            return
        await pair.lenient.wait_for_rows(70)
        assert pair.lenient.stored.rows == rows(topic, 0, 0, 50) + rows(topic, 0, 0, 20)


@pytest.mark.soak
async def test_a_topic_is_made_anew_with_more_records(stage: Stage) -> None:
    """By its offsets it could be the old one (Spark's source reads on in the middle of it), but not by its id."""
    topic = await stage.topic(20)
    async with stage.queries(subscribe=topic) as pair:
        await pair.hold(20)
        await stage.make_anew(topic, 50)
        pair.release()
        await stage.ends_by_loss(pair.strict, "", f"{topic}-0")
        await pair.lenient.wait_for_rows(70)
        assert pair.lenient.stored.rows == rows(topic, 0, 0, 20) + rows(topic, 0, 0, 50)

"""The flights pipeline on Spark and the embedded cluster: what comes out is what the CSV says, however it was run."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup import Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cli.demo.expected import HourKey, PipelineFigures
from asyncgroup.cli.demo.flights import Flight, find_data, in_order, read_flights
from asyncgroup.cli.demo.queries import figures

pytest.importorskip(
    "google.protobuf", reason="transformWithState needs protobuf: pip install 'asyncgroup[demo]'"
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncgroup.spark.examples.flights.pipeline import Pipeline, QueryProgress

LIMIT = 400.0
FLIGHTS = 8_000
LATE = {"row": 0, "carrier": "UA", "dep_delay": 3, "time_hour": "2012-12-01T10:00:00Z", "minute": 0}
"""Of a time that the watermark has passed already when it comes."""


def flights() -> list[Flight]:
    return in_order(itertools.islice(read_flights(find_data()), FLIGHTS))


class Driver:
    """What Spark does, called in threads."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self.pipeline, self.session = pipeline, pipeline.session(spark)
        self.dropped = Counter[str]()
        """Rows that came too late, by query, over all starts."""

    def run(self) -> dict[str, QueryProgress]:
        """Both queries to the topic's end; on a busy machine Spark may need several starts for that."""
        from pyspark.errors import StreamingQueryException

        from asyncgroup.spark.examples.flights.pipeline import is_worker_timeout

        for _ in range(4):
            try:
                return self._run_once()
            except StreamingQueryException as error:
                if not is_worker_timeout(error):
                    raise
        return self._run_once()

    def _run_once(self) -> dict[str, QueryProgress]:
        from asyncgroup.spark.examples.flights.pipeline import QueryProgress

        queries = self.pipeline.start(self.session)
        try:
            for query in queries:
                assert query.awaitTermination(int(LIMIT))
            return {str(query.name): QueryProgress.of(query) for query in queries}
        finally:
            for query in queries:
                self.dropped[str(query.name)] += QueryProgress.of(query).dropped
                query.stop()

    def found(self) -> PipelineFigures:
        return figures(self.pipeline.delays(self.session), self.pipeline.streaks(self.session))

    def in_one_batch(self) -> PipelineFigures:
        """The same functions over the same records, as a batch."""
        from asyncgroup.spark.examples.flights import delays, events

        read = self.session.read.format("asyncgroup").options(
            **{"kafka.bootstrap.servers": self.pipeline.bootstrap_servers}, subscribe=self.pipeline.topic
        )
        hours = delays.delays_by_hour(events.flights(read.load()))
        return figures(hours, self.pipeline.streaks(self.session))

    def streak_records(self) -> int:
        read = self.session.read.format("asyncgroup").options(
            **{"kafka.bootstrap.servers": self.pipeline.bootstrap_servers},
            subscribe=self.pipeline.streaks_topic,
        )
        return read.load().count()


def forget_the_last_commit(checkpoint: Path) -> int:
    """As a crash between the writing of a batch and Spark's note that it was written; returns the batch."""
    commits = [place for place in (checkpoint / "commits").iterdir() if place.name.isdigit()]
    last = max(commits, key=lambda place: int(place.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


@pytest.fixture(autouse=True)
def first_session_again(spark: SparkSession) -> Iterator[None]:
    """A pipeline has a session of its own, which pyspark then takes for the active one of the whole process."""
    yield
    spark.createDataFrame([], "nothing int")


@pytest.mark.soak
@pytest.mark.asyncio
@pytest.mark.timeout(480)
async def test_the_results_are_those_of_the_csv_also_after_a_crash(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The demonstration has both queries stop, go on and agree with the CSV in ordinary runs (`test_whole_demo`)."""
    from asyncgroup.spark.examples.flights.events import heartbeat
    from asyncgroup.spark.examples.flights.pipeline import Pipeline

    known = await asyncio.to_thread(flights)
    async with EmbeddedCluster() as cluster, asyncio.timeout(LIMIT):
        for topic, partitions in (("flights", 3), ("flights-streaks", 1)):
            cluster.create_topic(topic, partitions)
        pipeline = Pipeline(
            bootstrap_servers=cluster.bootstrap_servers,
            output=tmp_path.as_uri(),
            rows_per_trigger=FLIGHTS // 2,
            tasks=2,
        )
        driver = await asyncio.to_thread(Driver, spark, pipeline)
        async with Producer(cluster.bootstrap_servers) as producer:
            for flight in known:
                await producer.enqueue("flights", flight.value, key=flight.carrier.encode())
            await producer.flush()
            first = await asyncio.to_thread(driver.run)
            assert driver.dropped.total() == 0
            replayed = {name: forget_the_last_commit(tmp_path / "checkpoints" / name) for name in first}
            last = max(flight.scheduled for flight in known)
            await producer.send("flights", json.dumps(LATE).encode(), key=b"UA")
            await producer.send("flights", heartbeat(60 * (last + 30 * 24 * 60)))
        second = await asyncio.to_thread(driver.run)
        found = await asyncio.to_thread(driver.found)
        assert PipelineFigures.of(known).differences(found) == []
        assert found.streaks
        for name, progress in second.items():
            assert progress.records == FLIGHTS + 2
            assert driver.dropped[name] == 1, "the one that came late"
            assert progress.batches > replayed[name] + 1
        # the group that each query commits to shows what it has done, its last batch too
        for name in second:
            committed = cluster.group(f"flights-pipeline-{name}").offsets
            assert sum(each.offset for each in committed.values()) == FLIGHTS + 2
        batch = await asyncio.to_thread(driver.in_one_batch)
        late = HourKey("UA", 22_572_600)
        assert set(batch.hours.items()) - set(found.hours.items()) == {(late, batch.hours[late])}

"""The flights pipeline with Spark and the embedded cluster: its results equal those computed from the CSV."""

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
from asyncgroup.demo.expected import HourKey, PipelineFigures
from asyncgroup.demo.flights import Flight, find_data, in_order, read_flights
from asyncgroup.demo.queries import figures

pytest.importorskip(
    "google.protobuf", reason="transformWithState needs protobuf: pip install 'asyncgroup[demo]'"
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncgroup.spark.examples.flights.pipeline import Pipeline, QueryProgress

LIMIT = 400.0
FLIGHTS = 8_000
LATE = {"row": 0, "carrier": "UA", "dep_delay": 3, "time_hour": "2012-12-01T10:00:00Z", "minute": 0}
"""A flight whose event time is older than the watermark when it comes."""


def flights() -> list[Flight]:
    return in_order(itertools.islice(read_flights(find_data()), FLIGHTS))


class Driver:
    """Runs Spark's operations in threads."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self.pipeline, self.session = pipeline, pipeline.session(spark)
        self.dropped = Counter[str]()
        """Rows older than the watermark by query, over all starts."""

    def run(self) -> dict[str, QueryProgress]:
        """Run both queries to the topic's end; on a busy machine this may need several starts."""
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
        """Compute the results with the same functions in a batch query."""
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
    """Simulate a crash between the writing of a batch and Spark's record of its completion; return the batch."""
    commits = [place for place in (checkpoint / "commits").iterdir() if place.name.isdigit()]
    last = max(commits, key=lambda place: int(place.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


@pytest.fixture(autouse=True)
def first_session_again(spark: SparkSession) -> Iterator[None]:
    """Restore the active session: pyspark makes the pipeline's own session active for the whole process."""
    yield
    spark.createDataFrame([], "nothing int")


@pytest.mark.java
@pytest.mark.soak
@pytest.mark.timeout(480)
async def test_the_results_equal_those_of_the_csv_also_after_a_crash(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Runs without a crash, in which both queries stop and continue, are tested with the demo (`test_whole_demo`)."""
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
            assert driver.dropped[name] == 1, "the late flight"
            assert progress.batches > replayed[name] + 1
        # the offsets in the group of each query include its last batch
        for name in second:
            committed = cluster.group(f"flights-pipeline-{name}").offsets
            assert sum(each.offset for each in committed.values()) == FLIGHTS + 2
        batch = await asyncio.to_thread(driver.in_one_batch)
        late = HourKey("UA", 22_572_600)
        assert set(batch.hours.items()) - set(found.hours.items()) == {(late, batch.hours[late])}

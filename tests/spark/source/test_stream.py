"""Streaming queries of `format("asyncgroup")` with a real Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgroup.cluster.requests.list_offsets import LATEST
from asyncgroup.spark import register
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, committed, offsets, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.kafka(topics={TOPIC: 2}), pytest.mark.timeout(300)]

SECONDS = 120


class Stream:
    """A query with its own checkpoint; `rows` are those of its batches: (batch, partition, offset, value)."""

    def __init__(self, spark: SparkSession, kafka: KafkaServer, scratch: Path, **options: Any) -> None:
        self._spark, self.checkpoint = spark, scratch / "checkpoint"
        servers = kafka.bootstrap_servers
        self._options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
        }
        self._options |= options
        self.rows: list[tuple[int, int, int, bytes]] = []
        self.batches: list[int] = []

    def start(self, source: str = "asyncgroup", **trigger: Any) -> StreamingQuery:
        reading = self._spark.readStream.format(source).options(**self._options)
        writing = reading.load().writeStream.foreachBatch(self._keep)
        if trigger:
            writing = writing.trigger(**trigger)
        return writing.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self, source: str = "asyncgroup", **trigger: Any) -> StreamingQuery:
        """Run the query to the present end of the topic."""
        query = self.start(source, **trigger or {"availableNow": True})
        assert query.awaitTermination(SECONDS)
        return query

    def written(self, kind: str, batch: int) -> list[str]:
        """Return the lines of a file of the checkpoint."""
        return (self.checkpoint / kind / str(batch)).read_text().splitlines()

    def forget_commit(self, batch: int) -> None:
        """Simulate that the driver died after the batch, before its completion was stored."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def places(self) -> list[tuple[int, int]]:
        """Return partition and offset of each row, in order."""
        return sorted((partition, offset) for _, partition, offset, _ in self.rows)

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self.batches.append(batch)
        self.rows += [(batch, row.partition, row.offset, bytes(row.value)) for row in frame.collect()]


@pytest.fixture
def stream(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Callable[..., Stream]:
    register(spark)
    return lambda **options: Stream(spark, kafka_server, tmp_path, **options)


def places(first: int, second: int) -> list[tuple[int, int]]:
    return [(0, offset) for offset in range(first)] + [(1, offset) for offset in range(second)]


@pytest.mark.full
def test_two_runs_of_a_stream(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    produce(kafka_server, 15)
    produce(kafka_server, 5, partition=1)
    query = stream(maxOffsetsPerTrigger=12, tasks=1, **{"kafka.group.id": "reports"})
    first = query.run()
    assert query.places() == places(15, 5)
    assert query.batches == [0, 1]
    assert [progress.numInputRows for progress in first.recentProgress if progress.numInputRows] == [12, 8]
    source = first.recentProgress[0].sources[0]
    assert json.loads(source.endOffset) == {TOPIC: {"0": 9, "1": 3}}
    assert json.loads(source.latestOffset) == {TOPIC: {"0": 15, "1": 5}}  # the lag, for monitoring
    assert committed(kafka_server, "reports") == offsets(15, 5)
    produce(kafka_server, 4)
    query.run()
    assert query.places() == places(19, 5)
    assert committed(kafka_server, "reports") == offsets(19, 5)
    assert kafka_server.group("reports").state == "Empty"


@pytest.mark.full
def test_a_topic_recreated_between_two_runs(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    """With Trigger.AvailableNow, whose process ends with each run: the next run detects it by the group's commits."""
    produce(kafka_server, 100)
    group = {"kafka.group.id": "reports"}
    query = stream(**group)
    query.run()
    assert query.places() == places(100, 0)
    kafka_server.delete_topic(TOPIC)
    kafka_server.create_topic(TOPIC, 2)
    produce(kafka_server, 150)
    with pytest.raises(Exception, match=r"ASYNCGROUP_GROUP_LACKS_OFFSETS.*orders-0@100"):
        query.run()
    again = stream(**group, failOnDataLoss="false")
    again.run()
    assert again.places() == places(150, 0)
    assert committed(kafka_server, "reports") == offsets(150, 0)


@pytest.mark.soak
def test_tasks_reuse_connections(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    produce(kafka_server, 20)
    kafka_server.call(lambda cluster: cluster.history.clear())
    query = stream(maxOffsetsPerTrigger=1, tasks=1)
    query.run()
    assert len(query.batches) == 20
    made = len(kafka_server.history.of("ApiVersions"))
    assert made < 20, "those of the driver and of one or two workers, not one for each task"


def test_a_repeated_first_batch(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    """The driver dies in the first batch, records are produced, and "latest" is another offset after the restart."""
    produce(kafka_server, 5)
    query = stream(startingOffsets="latest")
    query.run()
    assert query.batches == [0]
    query.forget_commit(0)
    produce(kafka_server, 3)
    query.run()
    assert query.batches == [0, 0, 1]
    assert query.places() == [(0, 5), (0, 6), (0, 7)]


def test_a_repeated_batch_is_the_same(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    produce(kafka_server, 5)
    query = stream()
    query.run()
    query.forget_commit(0)
    produce(kafka_server, 3)
    query.run()
    assert [(batch, offset) for batch, _, offset, _ in query.rows] == [
        *((0, offset) for offset in range(5)),
        *((0, offset) for offset in range(5)),
        *((1, offset) for offset in range(5, 8)),
    ]


@pytest.mark.parametrize("outage", [0.2, pytest.param(20.0, marks=pytest.mark.soak)])
def test_a_running_stream_and_its_end(
    kafka_server: KafkaServer, stream: Callable[..., Stream], outage: float
) -> None:
    """A broker restart does not fail the query, even with commitFailure=fail."""
    query = stream(maxOffsetsPerTrigger=2, commitFailure="fail", **{"kafka.group.id": "reports"})
    running = query.start()
    try:
        for _ in range(2):
            produce(kafka_server, 5)
            kafka_server.stop_node(1)
            time.sleep(outage)
            kafka_server.start_node(1)
            running.processAllAvailable()
        assert query.places() == places(10, 0)
        assert committed(kafka_server, "reports") == offsets(10, 0)
    finally:
        running.stop()
    assert running.exception() is None


@pytest.mark.kafka(topics={TOPIC: 2}, unknown_topics=True)
def test_an_error_keeps_its_code(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    from pyspark.errors import StreamingQueryException

    query = stream(subscribe="nowhere", **{"fetchOffset.numRetries": 1})
    with pytest.raises(StreamingQueryException, match=r"\[ASYNCGROUP_TOPICS_NOT_FOUND\] .*nowhere"):
        query.run()


@pytest.mark.full
@pytest.mark.parametrize("fail", ["true", "false"])
def test_available_now_with_an_end_below_the_checkpoint(
    kafka_server: KafkaServer, stream: Callable[..., Stream], fail: str
) -> None:
    """A new leader answers so for a moment (KAFKA-7703): it is no loss, and nothing is read twice."""

    def lower(response: Any) -> Any:
        for part in (part for topic in response.topics for part in topic.partitions):
            part.offset = min(part.offset, 6)
        return response

    def asks_for_ends(request: Any) -> bool:
        return all(part.timestamp == LATEST for topic in request.topics for part in topic.partitions)

    produce(kafka_server, 10)
    query = stream(failOnDataLoss=fail, tasks=1)
    query.run()
    produce(kafka_server, 5)
    fault = kafka_server.faults.on("ListOffsets", where=asks_for_ends, mutate=lower)
    query.run()
    assert fault.hits == 1
    assert query.places() == places(15, 0)
    assert json.loads(query.written("offsets", 1)[-1]) == {TOPIC: {"0": 15, "1": 0}}


def test_trigger_once(kafka_server: KafkaServer, stream: Callable[..., Stream]) -> None:
    produce(kafka_server, 5)
    query = stream(maxOffsetsPerTrigger=2)
    query.run(once=True)
    assert query.places() == places(5, 0)


def test_a_checkpoint_can_be_used_by_sparks_kafka_source_and_this_one(
    spark_with_kafka: SparkSession, kafka_server: KafkaServer, stream: Callable[..., Stream]
) -> None:
    query = stream()
    for turn, source in enumerate(("kafka", "asyncgroup", "kafka"), 1):
        produce(kafka_server, 10)
        produce(kafka_server, 3, partition=1)
        query.run(source)
        assert query.places() == places(10 * turn, 3 * turn)
    batches = len(list((query.checkpoint / "commits").glob("[0-9]*")))
    kept = [json.loads(query.written("offsets", batch)[-1]) for batch in range(batches)]
    assert kept[-1] == {TOPIC: {"0": 30, "1": 9}}


@pytest.mark.full
@pytest.mark.kafka(nodes=3, topics={})
@pytest.mark.parametrize("source", ["asyncgroup", "kafka"])
def test_a_query_that_starts_while_a_partition_is_offline(
    kafka_server: KafkaServer, spark_with_kafka: SparkSession, tmp_path: Path, source: str
) -> None:
    """The others are read; another run continues its checkpoint, also one of Spark's own source."""
    register(spark_with_kafka)
    kafka_server.create_topic(TOPIC, 2, 1)
    produce(kafka_server, 4)
    produce(kafka_server, 3, partition=1)
    node = kafka_server.leader(TOPIC, 1)
    kafka_server.stop_node(node)
    query = Stream(spark_with_kafka, kafka_server, tmp_path)
    running = query.start()
    running.processAllAvailable()
    assert query.places() == places(4, 0)
    assert json.loads(query.written("offsets", 0)[-1]) == {TOPIC: {"0": 4, "1": -2}}
    running.stop()
    kafka_server.start_node(node)
    query.run(source)
    assert query.places() == places(4, 3)
    query.run()
    assert query.places() == places(4, 3)

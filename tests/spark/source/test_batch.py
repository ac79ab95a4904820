"""Batch queries of `format("asyncgroup")` with a real Spark."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgroup import OffsetManager, Producer
from asyncgroup.model import TopicPartition
from asyncgroup.spark import register
from asyncgroup.spark.arrow import frame_schema
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.parser import read_settings
from asyncgroup.spark.source.readers import AsyncGroupReader
from asyncgroup.testing import KafkaServer
from tests.spark.source.driver_support import TOPIC, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka(topics={TOPIC: 2}), pytest.mark.timeout(300)]


def frame(spark: SparkSession, kafka: KafkaServer, **options: Any) -> DataFrame:
    register(spark)
    reading = spark.read.format("asyncgroup").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    return reading.options(**{"subscribe": TOPIC} | options).load()


def planned(kafka: KafkaServer, **options: Any) -> dict[TopicPartition, tuple[int, int]]:
    """Return the planned range of each partition."""
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC} | options
    reader = AsyncGroupReader(read_settings(given, stream=False))
    ranges = [piece for partition in reader.partitions() for piece in partition.value]
    return {TopicPartition(one.topic, one.partition): (one.start, one.end) for one in ranges}


def test_all_of_a_topic(spark: SparkSession, kafka_server: KafkaServer) -> None:
    produce(kafka_server, 10, at=1_700_000_000_123)
    produce(kafka_server, 4, partition=1)
    found = frame(spark, kafka_server, includeHeaders="true")
    assert found.schema == frame_schema(include_headers=True)
    rows = sorted(found.collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, row.offset) for row in rows] == [
        *((0, offset) for offset in range(10)),
        *((1, offset) for offset in range(4)),
    ]
    assert {row.topic for row in rows} == {TOPIC}
    assert rows[0].timestamp.timestamp() == 1_700_000_000.123
    assert (rows[0].key, bytes(rows[0].value), rows[0].timestampType, rows[0].headers) == (
        None,
        b"v",
        0,
        None,
    )


def test_rows_and_columns_equal_those_of_sparks_own_source(
    spark_with_kafka: SparkSession, kafka_server: KafkaServer
) -> None:
    kafka_server.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})

    async def send() -> None:
        async with Producer(kafka_server.bootstrap_servers) as producer:
            for number in range(12):
                await producer.send(
                    "stamped" if number % 3 == 2 else TOPIC,
                    None if number % 4 == 1 else b"\x00value %d" % number,
                    key=None if number % 2 else "schlüssel".encode(),
                    headers=[("h", b"\xff"), ("h", None), ("", b"")][: number % 4],
                    partition=number % 2 if number % 3 < 2 else 0,
                    timestamp=1_700_000_000_123 + number,
                )

    asyncio.run(send())
    register(spark_with_kafka)
    options = {"kafka.bootstrap.servers": kafka_server.bootstrap_servers, "subscribe": f"{TOPIC},stamped"}
    theirs, ours = (
        spark_with_kafka.read.format(source).options(**options, includeHeaders="true").load()
        for source in ("kafka", "asyncgroup")
    )
    assert ours.schema == theirs.schema
    rows, others = (
        sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))
        for frame in (ours, theirs)
    )
    assert rows == others
    assert len(rows) == 12
    assert {row.timestampType for row in rows} == {0, 1}


def test_an_empty_topic_has_no_rows(spark: SparkSession, kafka_server: KafkaServer) -> None:
    assert frame(spark, kafka_server).count() == 0


def test_a_schema_of_the_users_is_refused(spark: SparkSession, kafka_server: KafkaServer) -> None:
    from pyspark.errors import PySparkException

    register(spark)
    reading = spark.read.format("asyncgroup").schema("value string")
    options = {"kafka.bootstrap.servers": kafka_server.bootstrap_servers, "subscribe": TOPIC}
    with pytest.raises(PySparkException, match="columns are fixed"):
        reading.options(**options).load().count()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "earliest"}, "startingOffset"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "minOffsetsPerTrigger"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribePattern": "o.*"}, "subscribePattern"),
        (
            {"startingOffsets": json.dumps({"other": {"0": 1}})},
            "startingOffsets.*other is not in subscribe",
        ),
        ({"kafkaConsumer.pollTimeoutMs": "-1"}, "kafkaConsumer.pollTimeoutMs"),
    ],
)
def test_bad_options_are_refused_when_the_source_is_loaded(
    spark: SparkSession, options: dict[str, str], says: str
) -> None:
    from pyspark.errors import PySparkException

    register(spark)
    reading = spark.readStream.format("asyncgroup").option("kafka.bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(PySparkException, match=f"OptionError.*{says}"):
        reading.options(**{"subscribe": TOPIC} | options).load()


def places(first: int, second: int) -> str:
    return json.dumps({TOPIC: {"0": first, "1": second}})


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({}, (0, 10), (0, 4)),
        ({"startingOffsets": places(3, -2), "endingOffsets": places(7, -1)}, (3, 7), (0, 4)),
        ({"startingTimestamp": "1005", "endingTimestamp": "1008"}, (5, 8), None),
        ({"startingOffsetsByTimestamp": places(1002, 1), "endingOffsets": "latest"}, (2, 10), (0, 4)),
        ({"startingTimestamp": "1000", "startingOffsets": "earliest"}, (0, 10), (0, 4)),
        ({"endingTimestamp": "9999"}, (0, 10), (0, 4)),
    ],
)
def test_starts_and_ends(
    kafka_server: KafkaServer,
    options: dict[str, str],
    first: tuple[int, int],
    second: tuple[int, int] | None,
) -> None:
    for number in range(10):
        produce(kafka_server, 1, at=1000 + number)
    produce(kafka_server, 4, partition=1, at=1010)
    found = planned(kafka_server, **options)
    assert found.get(TopicPartition(TOPIC, 0)) == first
    assert found.get(TopicPartition(TOPIC, 1)) == second


def test_starting_at_the_groups_offsets(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 10)

    async def commit() -> None:
        async with OffsetManager(kafka_server.bootstrap_servers, "reports") as manager:
            (await manager.manage(TOPIC, 0)).mark_offset(6)
            await manager.commit()

    asyncio.run(commit())
    found = planned(kafka_server, startingOffsets="group", **{"kafka.group.id": "reports"})
    assert found == {TopicPartition(TOPIC, 0): (6, 10)}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"startingOffsets": places(11, 0)}, "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"),
        (
            {"startingOffsets": places(5, 0), "endingOffsets": places(4, 0)},
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        ),
        (
            {
                "startingTimestamp": "1000",
                "endingOffsets": places(0, 0),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        ),
        (
            {"startingOffsets": json.dumps({TOPIC: {"0": 0}})},
            "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
        ),
        ({"startingTimestamp": "9999"}, "ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP"),
    ],
)
def test_starts_after_ends_are_refused(kafka_server: KafkaServer, options: dict[str, str], code: str) -> None:
    produce(kafka_server, 5, at=990)
    produce(kafka_server, 5, at=1000)
    with pytest.raises(SourceError) as caught:
        planned(kafka_server, **options)
    assert caught.value.code == code


def test_ranges_are_combined_in_tasks(kafka_server: KafkaServer) -> None:
    produce(kafka_server, 30)
    produce(kafka_server, 10, partition=1)
    given = {"kafka.bootstrap.servers": kafka_server.bootstrap_servers, "subscribe": TOPIC}

    def tasks(**options: str) -> list[list[int]]:
        partitions = AsyncGroupReader(read_settings(given | options, stream=False)).partitions()
        return sorted(
            sorted(piece.end - piece.start for piece in partition.value) for partition in partitions
        )

    assert tasks() == [[10], [30]]
    assert tasks(tasks="1") == [[10, 30]]
    assert tasks(minPartitions="4") == [[10], [10], [10], [10]]
    assert tasks(maxRecordsPerPartition="15") == [[10], [15], [15]]

"""Offsets that contradict each other or the log: our source rejects the same ones as Spark's own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from asyncgroup.spark import register
from tests.real.spark_support import Kafka
from tests.real.support import RunningKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 5
"""Rows of each of the two partitions."""
FUTURE: Final = str(1 << 42)
"""A timestamp (ms) that no record has reached."""


def rejected_options(topic: str) -> list[tuple[dict[str, str], str, str]]:
    """Return options of a batch query, the error condition of our source, and words of the error of Spark's own."""

    def offsets(zero: int, one: int) -> str:
        return json.dumps({topic: {"0": zero, "1": one}})

    one_partition = json.dumps({topic: {"0": 1}})
    assigned, unequal = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "don't match what are assigned"
    return [
        ({"startingOffsets": one_partition}, assigned, unequal),
        ({"endingOffsets": one_partition}, assigned, unequal),
        (
            {"startingOffsetsByTimestamp": one_partition},
            "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            unequal,
        ),
        (
            {"startingOffsets": offsets(3, 0), "endingOffsets": offsets(2, 5)},
            "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            "start offset 3 is greater than the end offset 2",
        ),
        (
            {"startingOffsets": offsets(ROWS + 1, 0)},
            "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
            "start offset 6 is greater than the resolved end offset 5",
        ),
        ({"startingTimestamp": FUTURE}, "ASYNCGROUP_NO_OFFSET_AT_TIMESTAMP", "No offset matched"),
    ]


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_both_sources_reject_the_same_offsets(
    spark_with_kafka: SparkSession, apache_kafka: RunningKafka
) -> None:
    spark = spark_with_kafka
    register(spark)

    def error_of(source: str, options: dict[str, Any]) -> str:
        reading = spark.read.format(source).option("kafka.bootstrap.servers", kafka.servers)
        with pytest.raises(Exception) as raised:  # their errors have no common class
            reading.options(subscribe=topic, **options).load().collect()
        return str(raised.value)

    async with Kafka.at(apache_kafka.bootstrap_servers) as kafka:
        topic = await kafka.topic(2)
        await kafka.produce(topic, {0: ROWS, 1: ROWS})
        for options, code, words in rejected_options(topic):
            assert f"[{code}]" in await asyncio.to_thread(error_of, "asyncgroup", options)
            assert words in await asyncio.to_thread(error_of, "kafka", options)

"""A streaming query waits while brokers of a real Kafka are down; it neither fails nor loses or repeats rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgroup import TopicPartition
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.spark_support import LIMIT, Kafka, Query, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


async def wait_until_all_is_read(kafka: Kafka, query: Query, topic: str, offsets: dict[int, int]) -> None:
    """Wait until the query has stored each row below these offsets once, and its group has committed the offsets."""
    await query.wait_for_rows(sum(offsets.values()))
    expected = Counter((topic, number, at) for number, end in offsets.items() for at in range(end))
    assert query.stored.rows == expected
    partitions = {TopicPartition(topic, number): end for number, end in offsets.items()}
    async with asyncio.timeout(LIMIT):
        while await kafka.admin.committed(f"{topic}-group", partitions) != partitions:
            await asyncio.sleep(0.1)


async def test_the_only_broker_is_killed_and_restarted(
    spark: SparkSession, kafka_to_break: ApacheKafka, tmp_path: Path
) -> None:
    async with Kafka.at(kafka_to_break.bootstrap_servers) as kafka:
        topic = await kafka.topic(2)
        await kafka.produce(topic, {0: 20, 1: 20})
        options = {"subscribe": topic, "startingOffsets": "earliest", "kafka.group.id": f"{topic}-group"}
        async with Query(stream(spark, "asyncgroup", kafka.servers, **options), tmp_path) as query:
            await wait_until_all_is_read(kafka, query, topic, {0: 20, 1: 20})
            kafka_to_break.kill(1)
            # the query's requests fail for some seconds, until the broker has started
            await asyncio.to_thread(kafka_to_break.start_node, 1)
            await kafka.produce(topic, {0: 5, 1: 7})
            await wait_until_all_is_read(kafka, query, topic, {0: 25, 1: 27})


async def test_leaders_move_while_a_batch_is_read(
    spark: SparkSession, apache_kafka_3: ApacheKafka, tmp_path: Path
) -> None:
    """The nodes are restarted one after the other while a backlog is read in small batches."""
    async with Kafka.at(apache_kafka_3.bootstrap_servers) as kafka:
        topic = await kafka.topic(3)
        rows = dict.fromkeys(range(3), 40_000)
        await kafka.produce(topic, rows)
        options = {
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 3_000,
            "kafka.group.id": f"{topic}-group",
        }
        async with Query(stream(spark, "asyncgroup", kafka.servers, **options), tmp_path) as query:
            await query.wait_for_rows(3_000)
            for node in apache_kafka_3.node_ids:
                await asyncio.to_thread(apache_kafka_3.restart, node)
            await wait_until_all_is_read(kafka, query, topic, rows)

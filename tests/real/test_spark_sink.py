"""The sink on a real Kafka: the rows that a query writes to a topic, and those that a crash repeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from asyncgroup import Consumer, PartitionConsumer
from tests.real.sink_driver import copy_topic
from tests.real.spark_driver import Driver
from tests.real.spark_support import Kafka

PARTITIONS, ROWS_EACH, COPIES = 4, 8_000, 3
ROWS = PARTITIONS * ROWS_EACH
BATCH = 6_000
"""The maximum of rows of a batch."""

LIMIT = 240.0
"""Seconds; Spark's first batch may take long on a busy machine."""


async def read(partition: PartitionConsumer, keys: Counter[bytes | None]) -> None:
    async for record in partition:
        keys[record.key] += 1


async def wait_until_written(keys: Counter[bytes | None], records: int) -> None:
    async with asyncio.timeout(LIMIT):
        while keys.total() < records:
            await asyncio.sleep(0.01)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_repeatedly_killed_query_writes_every_row(kafka: Kafka, tmp_path: Path) -> None:
    """At least once: no row is missing, and each kill repeats at most one batch."""
    topic, copy = await kafka.topic(PARTITIONS), await kafka.topic(COPIES)
    await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), ROWS_EACH))
    settings = {
        "servers": kafka.servers,
        "options": {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)},
        "copy": copy,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    keys: Counter[bytes | None] = Counter()
    async with Consumer(kafka.servers) as consumer:
        copies = [await consumer.partition(copy, partition, "earliest") for partition in range(COPIES)]
        reading = [asyncio.create_task(read(partition, keys)) for partition in copies]
        kills = (0.05, 0.4, 0.8)
        for share in kills:
            async with Driver(copy_topic, settings) as driver:
                assert await driver.line() == "started"
                await wait_until_written(keys, max(round(share * ROWS), keys.total() + 100))
                driver.kill()
        async with Driver(copy_topic, settings) as driver:
            assert [await driver.line() for _ in range(2)] == ["started", "done"]
        async with asyncio.timeout(LIMIT):
            while len(keys) < ROWS or any(partition.lag for partition in copies):
                await asyncio.sleep(0.05)
        for partition in copies:
            await partition.aclose()
        await asyncio.gather(*reading)
    assert set(keys) == {b"%d-%d" % (part, at) for part in range(PARTITIONS) for at in range(ROWS_EACH)}
    assert keys.total() - ROWS <= len(kills) * BATCH

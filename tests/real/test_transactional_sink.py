"""The transactional sink on a real Kafka: drivers and Python workers are killed, and each row is committed once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import Consumer, ConsumerConfig, PartitionConsumer
from tests.real.spark_driver import Driver
from tests.real.spark_support import Kafka
from tests.real.transactional_sink_driver import BETWEEN_ENDS, HELD, WORKERS, copy_in_transactions

PARTITIONS, COPIES = 4, 3
LIMIT = 240.0
"""Seconds; Spark's first batch may take long on a busy machine."""

pytestmark = pytest.mark.timeout(1800)


class Copy:
    """The records of the copy, as readers of all and of committed records see them."""

    def __init__(self) -> None:
        self.written: Counter[bytes | None] = Counter()
        self.committed: Counter[bytes | None] = Counter()
        self._partitions: list[PartitionConsumer] = []

    @contextlib.asynccontextmanager
    async def reading(self, servers: str, topic: str) -> AsyncIterator[Copy]:
        config = ConsumerConfig(isolation_level="read_committed")
        async with Consumer(servers) as plain, Consumer(servers, config) as stable:
            tasks = []
            for consumer, keys in ((plain, self.written), (stable, self.committed)):
                for number in range(COPIES):
                    partition = await consumer.partition(topic, number, "earliest")
                    self._partitions.append(partition)
                    tasks.append(asyncio.create_task(self._read(partition, keys)))
            yield self
            for partition in self._partitions:
                await partition.aclose()
            await asyncio.gather(*tasks)

    async def _read(self, partition: PartitionConsumer, keys: Counter[bytes | None]) -> None:
        async for record in partition:
            keys[record.key] += 1

    async def wait_written(self, records: int) -> None:
        """Wait until this number of further records is written, committed or not."""
        goal = self.written.total() + records
        async with asyncio.timeout(LIMIT):
            while self.written.total() < goal:
                await asyncio.sleep(0.005)

    async def wait_complete(self, rows: int) -> None:
        async with asyncio.timeout(LIMIT):
            while len(self.committed) < rows or any(partition.lag for partition in self._partitions):
                await asyncio.sleep(0.05)


async def kill_between_ends(driver: Driver, faults: Path) -> None:
    (faults / BETWEEN_ENDS).touch()
    async with asyncio.timeout(LIMIT):
        while not (faults / HELD).exists():
            await asyncio.sleep(0.01)
    driver.kill()
    os.kill(int((faults / HELD).read_text()), signal.SIGKILL)
    (faults / HELD).unlink()


async def run_with_kills(
    kafka: Kafka, directory: Path, rows_each: int, batch: int, kills: list[str], seed: int = 1
) -> Copy:
    """Copy a topic with these kills in order; return what was written."""
    rng, start = random.Random(seed), time.monotonic()
    topic, target = await kafka.topic(PARTITIONS), await kafka.topic(COPIES)
    await kafka.produce(topic, dict.fromkeys(range(PARTITIONS), rows_each))
    faults = directory / "faults"
    faults.mkdir()
    settings: dict[str, Any] = {
        "servers": kafka.servers,
        "config": {"spark.master": "local[2,4]"},  # four attempts of a task
        "options": {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(batch)},
        "sink": {"topic": target, "transactional.id.prefix": target, "faults": str(faults)},
        "checkpoint": str(directory / "checkpoint"),
    }
    async with Copy().reading(kafka.servers, target) as copy:
        for kill in kills:
            async with Driver(copy_in_transactions, settings) as driver:
                assert await driver.line() == "started"
                print(
                    f"{time.monotonic() - start:.1f} s: started, {copy.committed.total()} rows; kill {kill}"
                )
                if kill == BETWEEN_ENDS:
                    await kill_between_ends(driver, faults)
                else:
                    await copy.wait_written(rng.randint(1, batch))
                    driver.kill()
        for name in WORKERS:
            (faults / name).touch()
        async with Driver(copy_in_transactions, settings) as driver:
            assert [await driver.line() for _ in range(2)] == ["started", "done"]
        print(f"{time.monotonic() - start:.1f} s: done")
        assert not list(faults.iterdir())
        await copy.wait_complete(PARTITIONS * rows_each)
    expected = {b"%d-%d" % (part, at) for part in range(PARTITIONS) for at in range(rows_each)}
    assert set(copy.committed) == expected
    assert copy.committed.total() == len(expected)
    assert copy.written.total() > len(expected)  # what was killed had written something
    return copy


@pytest.mark.soak
async def test_each_row_is_committed_once(kafka: Kafka, tmp_path: Path) -> None:
    await run_with_kills(kafka, tmp_path, 2_000, 2_000, ["mid-batch", BETWEEN_ENDS])


@pytest.mark.soak
async def test_each_row_is_committed_once_with_many_kills(kafka: Kafka, tmp_path: Path) -> None:
    kills = [
        "mid-batch",
        BETWEEN_ENDS,
        "mid-batch",
        "mid-batch",
        BETWEEN_ENDS,
        "mid-batch",
        BETWEEN_ENDS,
        "mid-batch",
    ]
    copy = await run_with_kills(kafka, tmp_path, 10_000, 4_000, kills)
    print(f"{copy.committed.total()} committed once, {copy.written.total()} written")

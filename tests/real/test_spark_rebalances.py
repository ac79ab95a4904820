"""ForeachBatch with a real Spark and a real Kafka: a cooperative or consumer group rebalances in the middle of a batch.

Each batch of the first member has records of a single partition, which stays with it or moves to the second member.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from asyncgroup import Claim, ConsumerGroup
from asyncgroup.spark import BatchId, ForeachBatch
from tests.real.spark_support import LIMIT, Kafka
from tests.real.test_spark_bridge import (
    PARTITIONS,
    OverwritingStore,
    committed,
    group,
    run_endless_job,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAYS, MOVES = 0, 3
"""The first member keeps 0 and 1 when the second one joins, and gives 2 and 3 away."""

ROWS = 1_000

CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "cooperative": {"assignors": ("cooperative-sticky",)},
    "consumer": {"group_protocol": "consumer", "heartbeat_interval": None},
}

pytestmark = [pytest.mark.full, pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)]


class Scene:
    """Two members with a bridge each; the second one joins during the first batch of the first one."""

    def __init__(
        self,
        kafka: Kafka,
        spark: SparkSession,
        topic: str,
        config: dict[str, Any],
        during: Callable[[], None],
    ) -> None:
        self.kafka = kafka
        self.topic = topic
        self.begun = threading.Event()
        self.stores = OverwritingStore(self._before), OverwritingStore()
        self.handlers = [ForeachBatch(spark, store) for store in self.stores]
        self.first, self.second = self.groups = [group(kafka, topic, **config) for _ in self.stores]
        self._during = during

    def _before(self, _df: Any, _batch_id: BatchId) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self._during()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run both members until the end of the block."""
        async with self.first, self.second:
            runs = [asyncio.create_task(self.first.run(self.topic, self.handlers[0]))]
            assert await asyncio.to_thread(self.begun.wait, LIMIT)
            runs.append(asyncio.create_task(self.second.run(self.topic, self.handlers[1])))
            yield
            for member in self.groups:
                await member.aclose()
            await asyncio.gather(*runs)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not is_so():
                await asyncio.sleep(0.05)

    async def produce_to_all(self) -> None:
        """Produce as many records to every partition as the first batch has."""
        await self.kafka.produce(self.topic, dict.fromkeys(range(PARTITIONS), ROWS))

    async def claim(self, member: ConsumerGroup, partition: int) -> Claim:
        """Wait until the member has a claim of the partition."""
        found: list[Claim] = []

        def is_found() -> bool:
            claims = member.session.claims if member.session is not None else []
            found.extend(claim for claim in claims if claim.partition == partition)
            return bool(found)

        await self.until(is_found)
        return found[0]

    def ranges(self, partition: int) -> list[list[tuple[int, int]]]:
        """Return the ranges of a partition that each member's function was called with."""
        return [
            [
                (part.start, part.end)
                for each in store.batches
                for part in each.ranges
                if part.partition == partition
            ]
            for store in self.stores
        ]

    @property
    def interrupted(self) -> list[int]:
        return [handler.statistics().interrupted for handler in self.handlers]


def partitions_of(member: ConsumerGroup) -> set[int]:
    return {tp.partition for tp in member.session.partitions} if member.session is not None else set()


def wait_for(event: threading.Event) -> None:
    assert event.wait(LIMIT)


def counts(partition: int) -> dict[int, int]:
    """Return the number of records of each partition in the end."""
    return {number: ROWS * (1 + (number == partition)) for number in range(PARTITIONS)}


def all_stored(rows: dict[int, int]) -> Counter[tuple[int, int]]:
    """Return each record of the topic once."""
    return Counter((number, offset) for number, count in rows.items() for offset in range(count))


async def until_all_committed(kafka: Kafka, topic: str, rows: dict[int, int]) -> None:
    async with asyncio.timeout(LIMIT):
        while {number: at[0] for number, at in (await committed(kafka, topic)).items()} != rows:
            await asyncio.sleep(0.1)


async def test_the_batch_of_a_partition_that_stays_runs_over_the_rebalance(
    kafka: Kafka, spark: SparkSession, config: dict[str, Any]
) -> None:
    """It is neither cancelled nor delivered again, and the second member handles its partitions while the batch runs."""
    topic = await kafka.topic(PARTITIONS)
    await kafka.produce(topic, {STAYS: ROWS})
    go = threading.Event()
    scene = Scene(kafka, spark, topic, config, lambda: wait_for(go))
    async with scene.running():
        session, claim = scene.first.session, await scene.claim(scene.first, STAYS)
        await scene.produce_to_all()
        await scene.until(lambda: [partitions_of(member) for member in scene.groups] == [{0, 1}, {2, 3}])
        await scene.until(lambda: len(scene.stores[1].rows) == 2 * ROWS)
        assert scene.handlers[0].statistics().running == 0
        go.set()
        await until_all_committed(kafka, topic, counts(STAYS))
        assert scene.first.session is session
        assert await scene.claim(scene.first, STAYS) is claim
        assert scene.interrupted == [0, 0]
    assert scene.ranges(STAYS) == [[(0, ROWS), (ROWS, 2 * ROWS)], []]
    assert scene.stores[0].rows + scene.stores[1].rows == all_stored(counts(STAYS))


async def test_the_batch_of_a_partition_that_moves_is_committed_before_it_is_given_away(
    kafka: Kafka, spark: SparkSession, config: dict[str, Any]
) -> None:
    topic = await kafka.topic(PARTITIONS)
    await kafka.produce(topic, {MOVES: ROWS})
    go = threading.Event()
    scene = Scene(kafka, spark, topic, config | {"rebalance_timeout": LIMIT}, lambda: wait_for(go))
    async with scene.running():
        session, claim = scene.first.session, await scene.claim(scene.first, MOVES)
        await scene.until(lambda: claim.ended)
        await scene.produce_to_all()
        assert MOVES not in partitions_of(scene.second)
        assert MOVES not in await committed(kafka, topic)
        go.set()
        begins = await scene.claim(scene.second, MOVES)
        assert (begins.initial_offset, begins.initial_metadata) == (ROWS, f"foreachBatch/1:0@{ROWS}")
        await until_all_committed(kafka, topic, counts(MOVES))
        assert scene.first.session is session
        assert scene.interrupted == [0, 0]
    assert scene.ranges(MOVES) == [[(0, ROWS)], [(ROWS, 2 * ROWS)]]
    assert scene.stores[0].rows + scene.stores[1].rows == all_stored(counts(MOVES))


async def test_the_batch_of_a_partition_that_moves_is_delivered_again_if_it_takes_too_long(
    kafka: Kafka, spark: SparkSession, config: dict[str, Any]
) -> None:
    """Its Spark jobs are cancelled; the session and its other claims go on."""
    topic = await kafka.topic(PARTITIONS)
    await kafka.produce(topic, {MOVES: ROWS})
    scene = Scene(kafka, spark, topic, config | {"rebalance_timeout": 8.0}, lambda: run_endless_job(spark))
    async with scene.running():
        session, claim = scene.first.session, await scene.claim(scene.first, MOVES)
        await scene.until(lambda: claim.ended)
        assert MOVES not in partitions_of(scene.second)
        await scene.until(lambda: scene.interrupted == [1, 0])
        await scene.produce_to_all()
        await until_all_committed(kafka, topic, counts(MOVES))
        assert scene.first.session is session
    first, second = scene.ranges(MOVES)
    assert first == [(0, ROWS)]
    assert second[0][0] == 0
    assert second[-1][1] == 2 * ROWS
    assert scene.stores[0].rows + scene.stores[1].rows == all_stored(counts(MOVES))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []

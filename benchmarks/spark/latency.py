"""Small batches one by one: produced at once, timed until they are committed."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Final

from asyncgroup import BrokerError, Cluster, TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import BatchBuilder
from benchmarks.spark.cases import LatencySettings

__all__ = ["BatchTimer", "Commits", "single_batches"]

PAUSE: Final = 0.05
"""Seconds between a commit and the next batch: its fetch shall be waiting at the broker, as in a quiet stream."""
BY_NAME: Final = 12
"""The last Produce version in which a topic goes by its name."""


class Commits:
    """The offsets that a group has committed, waited for."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._news = asyncio.Event()

    def add(self, tp: TopicPartition, offset: int) -> None:
        """The group's coordinator has taken an offset."""
        self._offsets[tp] = offset
        self._news.set()

    async def wait(self, tp: TopicPartition, offset: int) -> None:
        """Wait until so much is committed."""
        while self._offsets.get(tp, -1) < offset:
            self._news.clear()
            await self._news.wait()


class BatchTimer:
    """When each batch was produced, when the function was called and returned, and when all was committed."""

    def __init__(self) -> None:
        self._produced = self._called = self._returned = 0.0
        self._batches: list[tuple[float, float, float]] = []

    def produce(self) -> None:
        """A batch is about to be sent to the broker."""
        self._called = 0.0
        self._produced = time.perf_counter()

    def called(self) -> None:
        """The function begins; where a batch comes in parts, the first of them counts."""
        self._called = self._called or time.perf_counter()

    def returned(self) -> None:
        """The function has stored what it was given."""
        self._returned = time.perf_counter()

    def committed(self) -> None:
        """The batch is over."""
        end = time.perf_counter()
        self._batches.append(
            (self._called - self._produced, self._returned - self._called, end - self._returned)
        )

    def figures(self, warm_up: int) -> dict[str, float]:
        """Medians in seconds without the first `warm_up` batches: the whole, its worst, and its three parts."""
        batches = self._batches[warm_up:]
        before, inside, after = (statistics.median(batch[part] for batch in batches) for part in range(3))
        totals = [sum(batch) for batch in batches]
        return {
            "total": statistics.median(totals),
            "worst": max(totals),
            "before": before,
            "inside": inside,
            "after": after,
        }


async def single_batches(
    settings: LatencySettings, timer: BatchTimer, commits: Commits, running: asyncio.Task[None]
) -> None:
    """Produce batches, each to the next partition, and wait for each; raises what the `running` reader raised."""
    rng = random.Random(0)
    async with Cluster(settings.bootstrap_servers) as cluster:
        cluster.track([settings.topic])
        for number in range(settings.warm_up + settings.times):
            tp = TopicPartition(settings.topic, number % settings.partitions)
            leader, records = await cluster.leader(tp), _records(rng, settings)
            await asyncio.sleep(PAUSE)
            timer.produce()
            start = await _send(cluster, leader, tp, records)
            waiting = asyncio.create_task(commits.wait(tp, start + settings.rows))
            await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                waiting.cancel()
                await running
            await waiting
            timer.committed()


def _records(rng: random.Random, settings: LatencySettings) -> bytes:
    builder = BatchBuilder(size_limit=settings.rows * (settings.size + 100))
    for _ in range(settings.rows):
        assert builder.append(-1, None, rng.randbytes(settings.size))
    return builder.build()


async def _send(cluster: Cluster, leader: int, tp: TopicPartition, records: bytes) -> int:
    """The offset that the first record got."""
    part = m.ProduceRequest.PartitionProduceData(tp.partition, records)
    topic = m.ProduceRequest.TopicProduceData(name=tp.topic, partition_data=[part])
    request = m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])
    response = await cluster.request(leader, request, highest=BY_NAME)
    answer = response.responses[0].partition_responses[0]
    if answer.error_code:
        raise BrokerError(answer.error_code, f"producing to {tp}")
    return answer.base_offset

"""Latency of small batches: each is produced in one request and timed until it is committed."""

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
"""Seconds between a commit and the next batch, so that the next fetch waits at the broker, as in an idle stream."""
BY_NAME: Final = 12
"""The last Produce version that names a topic instead of giving its id."""


class Commits:
    """The committed offsets of a group, to wait for."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._news = asyncio.Event()

    def add(self, tp: TopicPartition, offset: int) -> None:
        """Record a committed offset."""
        self._offsets[tp] = offset
        self._news.set()

    async def wait(self, tp: TopicPartition, offset: int) -> None:
        """Wait until at least this offset is committed."""
        while self._offsets.get(tp, -1) < offset:
            self._news.clear()
            await self._news.wait()


class BatchTimer:
    """The times at which each batch was produced, the function was called and returned, and the batch was committed."""

    def __init__(self) -> None:
        self._produced = self._called = self._returned = 0.0
        self._batches: list[tuple[float, float, float]] = []

    def produce(self) -> None:
        """Start a batch; call this before sending it to the broker."""
        self._called = 0.0
        self._produced = time.perf_counter()

    def called(self) -> None:
        """Record the start of the function; if a batch arrives in parts, the first one counts."""
        self._called = self._called or time.perf_counter()

    def returned(self) -> None:
        """Record the end of the function."""
        self._returned = time.perf_counter()

    def committed(self) -> None:
        """Record the commit, the end of the batch."""
        end = time.perf_counter()
        self._batches.append(
            (self._called - self._produced, self._returned - self._called, end - self._returned)
        )

    def figures(self, warm_up: int) -> dict[str, float]:
        """Return medians in seconds of the total and its three parts, and the worst total, without `warm_up` batches."""
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
    """Produce batches to all partitions in turn and wait for each commit; raise what the `running` reader raised."""
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
    """Produce a record batch; return the offset of its first record."""
    part = m.ProduceRequest.PartitionProduceData(tp.partition, records)
    topic = m.ProduceRequest.TopicProduceData(name=tp.topic, partition_data=[part])
    request = m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])
    response = await cluster.request(leader, request, highest=BY_NAME)
    answer = response.responses[0].partition_responses[0]
    if answer.error_code:
        raise BrokerError(answer.error_code, f"producing to {tp}")
    return answer.base_offset

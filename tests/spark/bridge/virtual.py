"""Helpers of the tests of ForeachBatch in virtual time: members of one group, and a sink.

Calls of the function run on the event loop (`LoopJobs`); the test sets their duration.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.spark import BatchId, ForeachBatch
from asyncgroup.testing import VirtualKafka
from tests.spark.bridge.fakes import FakeSpark

CONFIG = ConsumerConfig(auto_offset_reset="earliest", rebalance_timeout=30.0, close_timeout=10.0)
GROUP = "sink"

IN_VIRTUAL_TIME = (
    pytest.mark.virtual,
    pytest.mark.usefixtures("loop_jobs"),
    pytest.mark.kafka(topics={"numbers": 4}),
)
"""Markers of these tests: virtual time, a topic of four partitions, calls that run on the event loop."""


class Sink:
    """A sink that overwrites by (partition, start); `seconds(n)` returns the duration of the n-th call, or raises."""

    def __init__(self, seconds: Callable[[int], float] = lambda _: 0.1) -> None:
        self.seconds = seconds
        self.calls: list[tuple[float, BatchId]] = []
        self.files: dict[tuple[int, int], list[bytes]] = {}

    def __call__(self, batches: list[Any], batch_id: BatchId) -> float:
        self.calls.append((asyncio.get_running_loop().time(), batch_id))
        seconds = self.seconds(len(self.calls))
        for part in batch_id.ranges:
            rows = [batch for batch in batches if batch["partition"][0].as_py() == part.partition]
            self.files[part.partition, part.start] = [v for batch in rows for v in batch["value"].to_pylist()]
        return seconds

    @property
    def values(self) -> list[int]:
        return sorted(int(value) for rows in self.files.values() for value in rows)


def raises_until(call: int, error: Exception) -> Callable[[int], float]:
    def seconds(number: int) -> float:
        if number < call:
            raise error
        return 0.1

    return seconds


async def produce(kafka: VirtualKafka, count: int, start: int = 0) -> None:
    async with Producer(kafka.bootstrap_servers) as producer:
        for number in range(start, start + count):
            await producer.enqueue("numbers", b"%d" % number, partition=number % 4)
        await producer.flush()


def member(kafka: VirtualKafka, sink: Any, **options: Any) -> tuple[ConsumerGroup, ForeachBatch]:
    handler = ForeachBatch(FakeSpark(), sink, **{"max_wait": 0.05, **options})  # type: ignore[arg-type]
    handler._random.seed(1)
    return ConsumerGroup(kafka.bootstrap_servers, GROUP, CONFIG), handler


def committed(kafka: VirtualKafka) -> dict[int, int]:
    return {tp.partition: found.offset for tp, found in kafka.group(GROUP).offsets.items()}


def metadata(kafka: VirtualKafka) -> dict[int, str]:
    return {tp.partition: found.metadata for tp, found in kafka.group(GROUP).offsets.items()}


async def until(is_so: Callable[[], bool], limit: float = 600.0) -> None:
    async with asyncio.timeout(limit):
        while not is_so():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def second_joins_in_a_batch(
    first: tuple[ConsumerGroup, ForeachBatch], second: tuple[ConsumerGroup, ForeachBatch], sink: Sink
) -> AsyncIterator[None]:
    """Run `first`, and `second` when the first call of `sink` begins; close both at the end of the block."""
    async with first[0], second[0]:
        runs = [asyncio.create_task(first[0].run("numbers", first[1]))]
        await until(lambda: len(sink.calls) == 1)
        runs.append(asyncio.create_task(second[0].run("numbers", second[1])))
        yield
        await first[0].aclose()
        await second[0].aclose()
        await asyncio.gather(*runs)


async def run_until(
    kafka: VirtualKafka, sink: Any, is_so: Callable[[], bool], **options: Any
) -> ForeachBatch:
    """Run one member until `is_so()`, then close it."""
    group, handler = member(kafka, sink, **options)
    async with group:
        run = asyncio.create_task(group.run("numbers", handler))
        await until(is_so)
        await group.aclose()
        await run
    return handler

"""A producer in a process of its own: `python -m tests.real.chaos.producing SETTINGS` (JSON).

It writes the numbers from 0 on as values, `rate` records a second to the partitions in turn, until `records` are written and
standard input is closed. Each line on standard output is the number of records so far; the last one says how many of them
were acknowledged, and what failed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from asyncgroup import Producer, ProducerConfig, RecordMetadata
from asyncgroup.errors import QueueFull

__all__ = ["ProducingSettings"]

STEP = 0.02
"""Seconds between two groups of records."""


@dataclass(frozen=True, kw_only=True)
class ProducingSettings:
    """What is written where."""

    servers: str
    topic: str
    partitions: int
    records: int
    rate: int


class Results:
    """Counts the results of `send_nowait`."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failed: Counter[str] = Counter()

    def add(self, future: asyncio.Future[RecordMetadata]) -> None:
        """Count a record that is done."""
        error = future.exception()
        if error is None:
            self.acknowledged += 1
        else:
            self.failed[f"{type(error).__name__}: {error}"] += 1


async def closed_input() -> None:
    """Wait until standard input is closed."""
    await asyncio.to_thread(sys.stdin.read)


async def write(settings: ProducingSettings) -> dict[str, Any]:
    """Write the records, and return what became of them."""
    results, count = Results(), 0
    ending = asyncio.create_task(closed_input())
    loop = asyncio.get_running_loop()
    config = ProducerConfig(compression_type="lz4", linger=0.01, batch_size=16_384)
    async with Producer(settings.servers, config) as producer:
        while count < settings.records or not ending.done():
            for number in range(count, count + int(settings.rate * STEP)):
                value, partition = b"%d" % number, number % settings.partitions
                future = await accepted(producer, settings.topic, value, partition)
                future.add_done_callback(results.add)
            count += int(settings.rate * STEP)
            print(count, flush=True)
            await asyncio.sleep(STEP)
        await producer.flush()
    await asyncio.sleep(0)
    return {
        "records": count,
        "acknowledged": results.acknowledged,
        "failed": dict(results.failed),
        "time": loop.time(),
    }


async def accepted(
    producer: Producer, topic: str, value: bytes, partition: int
) -> asyncio.Future[RecordMetadata]:
    """Write a record as soon as there is room for it."""
    while True:
        try:
            return producer.send_nowait(topic, value, partition=partition)
        except QueueFull:
            await asyncio.sleep(STEP)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(write(ProducingSettings(**json.loads(sys.argv[1]))))), flush=True)

"""The topics of the benchmark: records with keys, some of them poison, and fresh records while a client runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Final

from asyncgroup import Cluster, Producer, ProducerConfig
from benchmarks.queue.cases import Case
from benchmarks.topic import Topic

__all__ = ["load", "produce_fresh"]

STEP: Final = 1000
"""Records between two steps of the progress bar."""


async def load(
    cluster: Cluster, topic: Topic, case: Case, records: int, advance: Callable[[int], object]
) -> int:
    """Create the topic and write its records; return their number. `advance(n)` is called after every n records.

    Records of the kind `fresh` are not written, only the poison records beside them.
    """
    await topic.create()
    poison = case.poison_records(records)
    healthy = 0 if case.kind == "fresh" else records
    async with Producer(cluster) as producer:
        for number, (partition, key) in enumerate(_keys(case, healthy, poison, topic.partitions)):
            text = json.dumps({"n": number})
            value = text[:-1] + f', "pad": "{"x" * max(0, case.size - len(text) - 10)}"' + "}"
            await producer.enqueue(topic.name, value.encode(), key=key, partition=partition)
            if number % STEP == STEP - 1:
                advance(STEP)
        await producer.flush()
    await topic.find_coordinator(topic.name)
    return healthy + poison


def _keys(case: Case, healthy: int, poison: int, partitions: int) -> Iterator[tuple[int, bytes]]:
    """Yield the partition and the key of each record; poison records are spread evenly among the healthy ones.

    Each stands before the healthy ones of its share, so that all were delivered when the last healthy one is handled.
    """
    written = 0
    for number in range(healthy):
        while written * healthy < poison * (number + 1):
            yield written % partitions, b"poison-%d" % written
            written += 1
        key = number % case.keys
        yield key % partitions, b"key-%d" % key
    for number in range(written, poison):
        yield number % partitions, b"poison-%d" % number


async def produce_fresh(cluster: Cluster, topic: Topic, records: int, rate: float) -> None:
    """Produce records at a rate per second, each with the time of its production."""
    async with Producer(cluster, ProducerConfig(linger=0.0)) as producer:
        started = time.perf_counter()
        for number in range(records):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            value = json.dumps({"at": time.monotonic_ns()}).encode()
            await producer.send(
                topic.name, value, key=b"key-%d" % number, partition=number % topic.partitions
            )

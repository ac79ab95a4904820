"""aiokafka: `send_and_wait` in the modes that wait for each acknowledgement, else `send`, or batches that it builds itself.

`send` returns a future; in the bulk mode nothing waits for it but `flush`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from aiokafka import AIOKafkaProducer

from benchmarks.produce.load import Load

__all__ = ["run", "run_batches"]


def _producer(load: Load) -> AIOKafkaProducer:
    settings = load.settings
    options: dict[str, Any] = {}
    if settings.mode == "round-robin":
        numbers = itertools.count()
        options["partitioner"] = lambda _key, partitions, _available: partitions[
            next(numbers) % len(partitions)
        ]
    return AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        enable_idempotence=True,
        compression_type=load.codec,
        linger_ms=round(load.linger * 1000),
        max_batch_size=settings.batch_bytes,
        **options,
    )


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Write for the given time; return the figures."""
    load = Load(given)
    topic, headers = load.settings.topic, load.headers
    async with _producer(load) as producer:
        first = (producer.send_and_wait(name, load.values[0], headers=headers) for name in load.topics)
        await asyncio.gather(*first)
        if load.settings.mode == "stopped":
            await load.fill(lambda value: producer.send(topic, value))
        load.begin()
        if load.settings.mode == "bulk":
            for values in load.steps():
                for value in values:
                    await producer.send(topic, value, headers=headers)
            await producer.flush()
        elif load.is_spread:
            for pairs in load.spread_steps():
                for value, (name, key, partition) in pairs:
                    await producer.send(name, value, key=key, partition=partition, headers=headers)
            await producer.flush()
        else:
            await load.call_concurrently(lambda value: producer.send_and_wait(topic, value, headers=headers))
        return load.end()


async def run_batches(given: dict[str, Any]) -> dict[str, Any]:
    """Write with `create_batch` and `send_batch`: the caller fills batches and chooses their partitions."""
    load = Load(given)
    topic, headers = load.settings.topic, load.headers
    async with _producer(load) as producer:
        await producer.send_and_wait(topic, load.values[0], headers=headers)
        partitions = sorted(await producer.partitions_for(topic))
        load.begin()
        batch, number = producer.create_batch(), 0
        for values in load.steps():
            for value in values:
                if batch.append(timestamp=None, key=None, value=value, headers=headers) is None:
                    await producer.send_batch(batch, topic, partition=partitions[number])
                    batch, number = producer.create_batch(), (number + 1) % len(partitions)
                    batch.append(timestamp=None, key=None, value=value, headers=headers)
        await producer.send_batch(batch, topic, partition=partitions[number])
        await producer.flush()
        return load.end()

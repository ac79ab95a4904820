"""asyncgroup: `send` in the modes that wait for each acknowledgement, else `enqueue`."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup import BatchResult, Hook, Producer, ProducerConfig
from benchmarks.produce.load import Load

__all__ = ["run"]


class BatchCounter(Hook):
    """The number of batches that were written."""

    def __init__(self) -> None:
        self.count = 0

    def on_batch_done(self, done: BatchResult) -> None:  # noqa: ARG002
        """Count a batch."""
        self.count += 1


def _config(load: Load) -> ProducerConfig:
    settings = load.settings
    codec: Any = settings.codec
    partitioner = "round_robin" if settings.mode == "round-robin" else "default"
    return ProducerConfig(
        compression_type=codec,
        partitioner=partitioner,
        linger=settings.linger,
        batch_size=settings.batch_bytes,
        buffer_bytes=settings.buffer_bytes,
    )


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Write for the given time; return the figures."""
    load = Load(given)
    topic, headers = load.settings.topic, load.headers
    batches = BatchCounter()
    hooks = [batches] if load.is_spread else []
    async with Producer(load.settings.bootstrap_servers, _config(load), hooks=hooks) as producer:
        await asyncio.gather(*(producer.send(name, load.values[0], headers=headers) for name in load.topics))
        if load.settings.mode == "stopped":
            await load.fill(lambda value: producer.enqueue(topic, value))
        load.begin()
        batches.count = 0
        if load.settings.mode == "bulk":
            for values in load.steps():
                for value in values:
                    await producer.enqueue(topic, value, headers=headers)
            await producer.flush()
        elif load.is_spread:
            for pairs in load.spread_steps():
                for value, (name, key, partition) in pairs:
                    await producer.enqueue(name, value, key=key, partition=partition, headers=headers)
            await producer.flush()
        else:
            await load.call_concurrently(lambda value: producer.send(topic, value, headers=headers))
        load.batches = batches.count if hooks else None
        return load.end()

"""The topics of `benchmarks.pulsar`: created, loaded, and deleted at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

from asyncgroup.pulsar import PulsarProducer, PulsarProducerConfig
from asyncgroup.testing.apache_pulsar import PulsarAdmin

__all__ = ["backlog_of", "loaded_topic", "new_topic"]

_STEP: Final = 1000
_KEEPER: Final = "keeper"
"""A subscription that is never read, so that the broker keeps the messages."""
_PAUSE: Final = 0.1
_LIMIT: Final = 5.0


@asynccontextmanager
async def new_topic(admin: PulsarAdmin, partitions: int = 0) -> AsyncIterator[str]:
    """Yield the name of a new topic; 0 partitions is one without any."""
    name = f"benchmark-{uuid4().hex[:12]}"
    if partitions:
        await admin.create_partitioned_topic(name, partitions)
    else:
        await admin.create_topic(name)
    try:
        yield name
    finally:
        await admin.delete_topic(name)


@asynccontextmanager
async def loaded_topic(
    url: str,
    admin: PulsarAdmin,
    messages: int,
    size: int,
    advance: Callable[[int], object],
    partitions: int = 0,
) -> AsyncIterator[str]:
    """Yield the name of a topic with messages; `advance(n)` is called after every n of them."""
    async with new_topic(admin, partitions) as name:
        await admin.create_subscription(name, _KEEPER, "earliest")
        # batches are full, also where the machine is too slow for the default delay
        config = PulsarProducerConfig(batching_max_delay=1.0)
        value = bytes(range(256)) * (1 + size // 256)
        async with PulsarProducer(url, name, config) as producer:
            for number in range(messages):
                await producer.enqueue(value[:size], key=f"key-{number % 1000}")
                if not number % _STEP:
                    advance(_STEP)
            await producer.flush()
        yield name


async def backlog_of(admin: PulsarAdmin, topic: str, subscription: str, partitions: int = 0) -> int:
    """Return the entries that a subscription has not acknowledged, and delete it; wait some seconds for none."""
    end = asyncio.get_running_loop().time() + _LIMIT
    while True:
        stats = await (admin.partitioned_stats(topic) if partitions else admin.stats(topic))
        backlog = int(stats["subscriptions"][subscription]["msgBacklog"])
        if not backlog or asyncio.get_running_loop().time() > end:
            break
        await asyncio.sleep(_PAUSE)
    await admin.delete_subscription(topic, subscription)
    return backlog

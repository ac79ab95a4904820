"""What a topic without a retention keeps after it was unloaded: the same in Apache Pulsar and in the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig

__all__ = ["KEPT", "read_all", "values_kept"]

KEPT: Final[Mapping[int | None, list[bytes]]] = {
    None: [b"3"],
    0: [b"1", b"2", b"3"],
    1: [b"1", b"2", b"3"],
    2: [b"3"],
}
"""By the number of messages that a subscription has acknowledged, None without a subscription."""


async def values_kept(
    client: PulsarClient,
    topic: str,
    acked: int | None,
    unload: Callable[[str], Awaitable[None]],
    seconds: float,
) -> list[bytes | None]:
    """Send two messages, and a third one after the topic was unloaded; return what a reader finds some seconds later."""
    early = PulsarConsumerConfig(initial_position="earliest")
    async with client.producer(topic, PulsarProducerConfig(batching=False)) as producer:
        for value in (b"1", b"2"):
            await producer.send(value)
        if acked is not None:
            async with client.subscribe(topic, "s", config=early) as consumer:
                for _ in range(acked):
                    consumer.ack(await consumer.receive())
                await consumer.flush()
        await unload(topic)
        await producer.send(b"3")
    await asyncio.sleep(seconds)
    return await read_all(client, topic)


async def read_all(client: PulsarClient, topic: str) -> list[bytes | None]:
    """Return the values that a reader finds, from the earliest on."""
    found = []
    async with client.reader(topic, start="earliest") as reader:
        while await reader.has_message_available():
            found.append((await reader.read()).value)
    return found

"""Chunks of a value whose first ones are acknowledged: what comes of them, and of the messages after them."""

from __future__ import annotations

import asyncio

from asyncgroup.pulsar.wire.enums import SubType
from tests.pulsar_broker.wire_client import WireClient, WireConsumer, WireProducer

__all__ = ["first_chunks_are_acknowledged", "owner_has_left"]


async def _stored(client: WireClient, topic: str) -> tuple[WireProducer, WireConsumer]:
    """Send a value in three chunks and another message; return the producer, and a consumer that has the first two chunks."""
    first = await client.subscribe(topic, "s", SubType.SHARED, 2)
    producer = await client.produce_to(topic)
    for number in range(3):
        await producer.send(b"c%d" % number, chunk=(number, 3))
    await producer.send(b"x")
    assert await first.received(2) == ["0:c0", "1:c1"]
    return producer, first


async def _next_one(client: WireClient, topic: str, producer: WireProducer) -> list[str]:
    """Subscribe once more, and send another message; return what the consumer gets."""
    second = await client.subscribe(topic, "s", SubType.SHARED)
    await asyncio.sleep(1)
    await producer.send(b"y")
    await asyncio.sleep(1)
    return await second.received()


async def first_chunks_are_acknowledged(client: WireClient, topic: str) -> list[str]:
    """Have the first chunks acknowledged by a consumer that leaves; return what the next one gets."""
    producer, first = await _stored(client, topic)
    await first.ack(0, 1)
    await first.close()
    return await _next_one(client, topic, producer)


async def owner_has_left(client: WireClient, topic: str) -> list[str]:
    """Have a consumer leave that has the first chunks and has not acknowledged them; return what the next one gets."""
    producer, first = await _stored(client, topic)
    await first.close()
    return await _next_one(client, topic, producer)

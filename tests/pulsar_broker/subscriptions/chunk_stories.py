"""Chunks of a value whose first ones are acknowledged: what comes of them, and of the messages after them."""

from __future__ import annotations

import asyncio
from typing import Final

from asyncgroup.pulsar.wire.enums import SubType
from tests.pulsar_broker.wire_client import WireClient, WireConsumer, WireProducer

__all__ = ["PERMITS_OF_CHUNKS", "first_chunks_are_acknowledged", "owner_has_left", "owner_without_permits"]


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


PERMITS_OF_CHUNKS: Final = [["0:c0"], [], ["1:c1"], [], ["2:c2", "3:c3", "4:c4"], ["5:x"]]
"""What `owner_without_permits` finds: while a chunk waits for permits, nothing after it goes to the other consumer."""


async def owner_without_permits(client: WireClient, topic: str) -> list[list[str]]:
    """Grant the consumer that has the first chunks of a value few permits; return what it and another one get."""
    consumers = [await client.subscribe(topic, "s", SubType.SHARED, 1) for _ in range(2)]
    producer = await client.produce_to(topic)
    for number in range(5):
        await producer.send(b"c%d" % number, chunk=(number, 5))
    await producer.send(b"x")
    await producer.send(b"y")
    found = [await each.received() for each in consumers]
    if not found[0]:
        consumers.reverse()
        found.reverse()
    for permits in (1, 3):
        consumers[0].flow(permits)
        found += [await each.received() for each in consumers]
    return found

"""Work queues on a pattern of topics on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from asyncgroup import DeadLetter, RetryTopic, WorkQueue
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar import PulsarClient
from asyncgroup.workqueue import PulsarSource
from tests.pulsar_broker.reading.test_topic_patterns import embedded, produce

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

ORDERS = re.compile("orders-.*")


async def receive(queue: WorkQueue, count: int, seconds: float = 70) -> set[bytes | None]:
    found: set[bytes | None] = set()
    async with asyncio.timeout(seconds):
        while len(found) < count:
            delivery = await queue.receive()
            delivery.ack()
            found.add(delivery.value)
    return found


def queue_of(client: PulsarClient, **options: Any) -> WorkQueue:
    return WorkQueue(PulsarSource(client, "s", ORDERS), mode="shared", **options)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_topics_come_and_go(partitions: int) -> None:
    async with embedded() as (pulsar, client), queue_of(client) as queue:
        await asyncio.sleep(1)
        assert (queue.health().ready, queue.health().state) == (True, "stable"), "there are no topics yet"
        for name in ("orders-1", "orders-2"):
            pulsar.create_topic(name, partitions)
            await produce(client, name, *(b"%s-%d" % (name.encode(), number) for number in range(5)))
        assert len(await receive(queue, 10, 5)) == 10
        pulsar.delete_topic("orders-1")
        await asyncio.sleep(10)
        assert not any("orders-1" in topic for topic in await client.topics())
        assert not queue.health().problems
        pulsar.create_topic("orders-1", partitions)
        await produce(client, "orders-1", b"1")
        await produce(client, "orders-2", b"2")
        assert await receive(queue, 2, 5) == {b"1", b"2"}


async def test_a_topic_is_deleted_while_its_messages_are_handled() -> None:
    async with embedded() as (pulsar, client), queue_of(client) as queue:
        await produce(client, "orders-1", b"1", b"2", b"3")
        delivery = await queue.receive()
        pulsar.delete_topic("orders-1")
        await asyncio.sleep(5)
        assert delivery.state.name == "LOST"
        await produce(client, "orders-2", b"4")
        assert await receive(queue, 1) == {b"4"}


async def test_copies_need_topics_of_their_own() -> None:
    with pytest.raises(ConfigError, match="a pattern does not give the name of another topic"):
        WorkQueue(PulsarSource("pulsar://10.0.0.1", "s", ORDERS), retry=True)
    with pytest.raises(ConfigError, match=r"a dead letter topic that .* does not match"):
        WorkQueue(
            PulsarSource("pulsar://10.0.0.1", "s", ORDERS), dead_letter=DeadLetter(2, topic="orders-dead")
        )
    with pytest.raises(ConfigError, match="tenant/namespace/pattern"):
        PulsarSource("pulsar://10.0.0.1", "s", re.compile("a/.*"))


async def test_a_retry_topic_that_the_pattern_matches() -> None:
    async with embedded() as (_, client):
        queue = queue_of(client, retry=RetryTopic("orders-retry"), dead_letter=DeadLetter(3, topic="dead"))
        async with queue:
            await produce(client, "orders-1", b"1")
            delivery = await queue.receive()
            delivery.reconsume_later(1)
            again = await queue.receive()
            assert (again.value, again.attempt) == (b"1", 2)
            again.ack()

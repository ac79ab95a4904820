"""Seeks into a batch: the messages before the position are acknowledged, for all consumers of the subscription."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.pulsar import MessageId, PulsarClient, PulsarTopicConsumer
from asyncgroup.pulsar_broker import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.subscriptions.seek_stories import (
    positions,
    positions_expected,
    seeks,
    seeks_expected,
)
from tests.pulsar_broker.support import early, embedded
from tests.pulsar_broker.wire_client import WireClient

pytestmark = pytest.mark.virtual


async def test_what_is_pushed() -> None:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650) as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        assert await seeks(client, "t") == seeks_expected()
        assert await positions(client, "p") == positions_expected()


async def written(client: PulsarClient) -> list[MessageId]:
    """Send three batches of four messages, and one message; return the ids of all."""
    ids: list[MessageId] = []
    async with client.producer("t") as producer:
        for entry in range(3):
            values = [b"%d%d" % (entry, index) for index in range(4)]
            ids += await asyncio.gather(*(producer.send(value) for value in values))
        ids.append(await producer.send(b"30"))
    return ids


async def shared_by_two(first: PulsarTopicConsumer, second: PulsarTopicConsumer) -> list[bytes]:
    """Receive and acknowledge with both until nothing more comes."""
    found = []

    async def receive(consumer: PulsarTopicConsumer) -> None:
        async with asyncio.timeout(30):
            async for message in consumer:
                found.append(message.value)
                consumer.ack(message)

    await asyncio.gather(*map(receive, (first, second)), return_exceptions=True)
    await asyncio.gather(first.flush(), second.flush())
    return sorted(found)


@pytest.mark.parametrize(
    ("number", "inclusive", "expected"),
    [(5, True, 5), (4, True, 4), (5, False, 6), (7, False, 8), (11, False, 12), (12, True, 12)],
)
async def test_no_consumer_gets_what_is_before_it(number: int, inclusive: bool, expected: int) -> None:
    async with embedded() as (pulsar, client):
        ids = await written(client)
        subscribe = {"type": "shared", "config": early(receiver_queue_size=1)}
        async with (
            client.subscribe("t", "s", **subscribe) as first,
            client.subscribe("t", "s", **subscribe) as second,
        ):
            await shared_by_two(first, second)
            await first.seek(ids[number], inclusive=inclusive)
            values = [b"%d%d" % (each // 4, each % 4) for each in range(expected, 13)]
            assert await shared_by_two(first, second) == values
            assert runtime_of(pulsar).subscription("t", "s").backlog == 0


async def test_the_next_connection_begins_there_as_well() -> None:
    async with embedded() as (pulsar, client):
        ids = await written(client)
        async with client.subscribe("t", "s", config=early()) as first:
            await first.seek(ids[6])
            await asyncio.sleep(5)
            runtime_of(pulsar).nodes[1].cut()
            assert (await first.receive()).value == b"12"
        async with client.subscribe("t", "s", config=early()) as second:
            assert (await second.receive()).value == b"12"


async def test_a_batch_of_unknown_size_is_left_out_by_the_consumer_itself() -> None:
    async with embedded() as (_, client):
        ids = await written(client)
        async with client.subscribe("t", "s", config=early()) as consumer:
            for target, inclusive, expected in (
                (ids[6], True, b"12"),
                (ids[6], False, b"13"),
                (ids[7], False, b"20"),
            ):
                await consumer.seek(MessageId.parse(str(target)), inclusive=inclusive)
                assert (await consumer.receive()).value == expected


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
async def test_a_message_comes_again_that_alone_of_its_batch_was_acknowledged(kind: str) -> None:
    """The broker keeps that acknowledgement in the shared ones: with an ack set of this message only it would push nothing."""
    async with embedded() as (_, client):
        ids = await written(client)
        async with client.subscribe("t", "s", type=kind, config=early()) as consumer, asyncio.timeout(60):
            found = [await consumer.receive() for _ in range(8)]
            for _ in range(2):
                assert found[-1].message_id == ids[7]
                consumer.ack(found[-1])
                await consumer.flush()
                await consumer.seek(found[-1])
                found = [await consumer.receive()]
            assert found[0].value == b"13"

"""Seeks into a batch: the messages before the position are acknowledged, for all consumers of the subscription."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.pulsar import MessageId, PulsarClient, PulsarTopicConsumer
from asyncgroup.pulsar_broker import EmbeddedPulsar
from tests.profiles import thinned
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.subscriptions.seek_stories import (
    positions,
    positions_expected,
    seeks,
    seeks_expected,
)
from tests.pulsar_broker.support import early, embedded
from tests.pulsar_broker.wire_client import WireClient

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


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


@pytest.mark.parametrize("number", [4, 6, 7, 12])
@pytest.mark.parametrize("inclusive", [True, False])
async def test_a_subscription_is_moved_back_after_the_seek(number: int, inclusive: bool) -> None:
    """By the admin API, or another consumer: what is before the start is wanted again, and was acknowledged without delivery."""
    async with embedded() as (pulsar, client):
        ids = await written(client)
        async with client.subscribe("t", "s", config=early()) as consumer, asyncio.timeout(60):
            await consumer.seek(ids[number], inclusive=inclusive)
            await asyncio.sleep(5)
            subscription = runtime_of(pulsar).subscription("t", "s")
            runtime_of(pulsar).nodes[1].close_consumers(subscription)
            subscription.seek(1 if number < 8 and inclusive else 0)
            await asyncio.sleep(5)
            found = [await consumer.receive()]
            while found[-1].value != b"30":
                found.append(await consumer.receive())
            assert len(found) == (9 if number < 8 and inclusive else 13)


@pytest.mark.parametrize("seed", thinned(range(60), 15))
async def test_random_seeks_of_a_subscription_that_two_share(seed: int) -> None:
    """With lost connections and unloads in between, both get all messages from the position on, and none before."""
    rng = random.Random(seed)
    async with embedded() as (pulsar, client):
        ids = await written(client)
        config = early(receiver_queue_size=rng.choice([1, 3, 1000]))
        subscribe = {"type": rng.choice(["shared", "key_shared"]), "config": config}
        async with (
            client.subscribe("t", "s", **subscribe) as first,
            client.subscribe("t", "s", **subscribe) as second,
        ):
            has_sought: set[PulsarTopicConsumer] = set()
            entries = set()
            for _ in range(4):
                await shared_by_two(first, second)
                seeker, other = rng.sample([first, second], 2)
                number, inclusive = rng.randrange(len(ids)), rng.random() < 0.5
                entry = ids[number][:2]
                if entry in entries or any(
                    each.partitions[0].position.has_acked_in(entry) for each in (first, second)
                ):
                    continue  # the broker, or the other consumer, may leave out more
                has_sought.add(seeker)
                entries.add(entry)
                disturbing = asyncio.create_task(disturb(pulsar, rng))
                await seeker.seek(ids[number], inclusive=inclusive)
                await disturbing
                found = set(await shared_by_two(first, second))
                begin = number if inclusive else number + 1
                if other in has_sought:  # it may ignore an ack set, as that may be of before its own seek
                    found -= {b"%d%d" % (begin // 4, each) for each in range(begin % 4)}
                assert sorted(found) == [b"%d%d" % (each // 4, each % 4) for each in range(begin, 13)]
                assert runtime_of(pulsar).subscription("t", "s").backlog == 0


async def disturb(pulsar: EmbeddedPulsar, rng: random.Random) -> None:
    for _ in range(rng.randrange(3)):
        await asyncio.sleep(rng.choice([0, 0.001, 0.05, 0.3, 2]))
        if rng.random() < 0.5:
            runtime_of(pulsar).nodes[1].cut()
        else:
            pulsar.unload("t")

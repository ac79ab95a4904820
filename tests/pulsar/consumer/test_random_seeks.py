"""Random seeks: with lost connections, unloads and late answers, a seek is followed by its target, and by all after it."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup.errors import AsyncGroupError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.wire.message_id import EARLIEST, BatchMessageId, MessageId
from tests.profiles import thinned
from tests.pulsar.consumer.broker import Broker

TOPIC = "t"


def write(broker: Broker, rng: random.Random) -> list[MessageId]:
    """Store messages; return their ids. The value of each is its number."""
    ids: list[MessageId] = []
    for number in range(rng.randrange(1, 8)):
        count = rng.choice([1, 1, 4])
        values = [b"%d" % (len(ids) + index) for index in range(count)]
        broker.add(TOPIC, *values, batch=rng.random() < 0.5, publish_time=1000 + number)
        is_batch = broker.topics[TOPIC][number].meta.num_messages_in_batch is not None
        ids += [
            _id(number, index, count if rng.random() < 0.7 else 0) if is_batch else MessageId(1, number)
            for index in range(count)
        ]
    return ids


def _id(number: int, index: int, size: int) -> MessageId:
    """The id of a message in a batch, whose size may not be known."""
    return BatchMessageId(1, number, -1, index, size) if size else MessageId(1, number, -1, index)


async def disturb(broker: Broker, rng: random.Random) -> None:
    for _ in range(rng.randrange(3)):
        await asyncio.sleep(rng.choice([0, 0.001, 0.05, 0.3, 2]))
        match rng.randrange(3):
            case 0:
                broker.cut()
            case 1:
                broker.unload(TOPIC)
            case _:
                broker.answer_seeks()
    await asyncio.sleep(3)
    broker.holds_seeks = False
    broker.answer_seeks()


def choose(ids: list[MessageId], rng: random.Random) -> tuple[MessageId | int, bool, int]:
    """A target, whether it is inclusive, and the number of the first message that follows."""
    number = rng.randrange(len(ids))
    match rng.randrange(4):
        case 0:
            return EARLIEST, True, 0
        case 1:
            first = next(index for index, each in enumerate(ids) if each.entry_id == ids[number].entry_id)
            return 1000 + ids[number].entry_id, True, first
        case 2:
            return ids[number], False, number + 1
        case _:
            return ids[number], True, number


async def read_all(consumer: PulsarTopicConsumer) -> list[PulsarMessage]:
    """Receive until nothing more arrives."""
    found = []
    while True:
        try:
            async with asyncio.timeout(20):
                found.append(await consumer.receive())
        except TimeoutError:
            return found


@pytest.mark.virtual(max_virtual_time=100_000)
@pytest.mark.parametrize("seed", thinned(range(240), 24))
async def test_a_seek_is_followed_by_its_target(broker: Broker, seed: int) -> None:
    rng = random.Random(seed)
    ids = write(broker, rng)
    kind = rng.choice(["shared", "exclusive", "failover"])
    settings = PulsarConsumerConfig(
        initial_position="earliest",
        receiver_queue_size=rng.choice([0, 1, 5, 1000]),
        index_acks=rng.random() < 0.7,
    )
    config = PulsarConfig(operation_timeout=20, retry_backoff_max=1)
    async with (
        PulsarClient(broker.url, config) as client,
        client.subscribe(TOPIC, "s", type=kind, config=settings) as consumer,
    ):
        client._inner.rng.seed(seed)
        for _ in range(6):
            for message in [await consumer.receive() for _ in range(rng.randrange(2))]:
                if rng.random() < 0.5:
                    consumer.ack(message)
            broker.holds_seeks = rng.random() < 0.3
            target, inclusive, first = choose(ids, rng)
            disturbing = asyncio.create_task(disturb(broker, rng))
            try:
                await consumer.seek(target, inclusive=inclusive)
            except AsyncGroupError:
                await disturbing
                continue
            found = await read_all(consumer)
            await disturbing
            expected = [b"%d" % number for number in range(first, len(ids))]
            values = [message.value for message in found]
            assert values[:1] == expected[:1]
            assert set(values) == set(expected)
            for message in found:
                if rng.random() < 0.3:
                    consumer.ack(message)
            if rng.random() < 0.5:
                await consumer.flush()
            await consumer.seek(EARLIEST)  # so that there is something to receive

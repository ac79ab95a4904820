"""Consumers of several topics and of patterns on the embedded Pulsar, in virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar import (
    MessageId,
    PulsarClient,
    PulsarConsumerConfig,
    PulsarProducer,
    PulsarProducerConfig,
    PulsarTopicConsumer,
    TopicMessageId,
)
from asyncgroup.pulsar.wire.commands import CommandWatchTopicUpdate
from asyncgroup.pulsar.wire.topic_name import topics_hash
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.support import embedded

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

ORDERS = re.compile("public/default/orders-.*")
LONG = re.compile(f"public/default/orders-(.*|{'x' * 50})")  # longer than what brokers watch


async def produce(client: PulsarClient, topic: str, *values: bytes) -> None:
    config = PulsarProducerConfig(batching=False)
    async with PulsarProducer(client, topic, config, clock=clock_of_loop()) as producer:
        await asyncio.gather(*(producer.send(value, key=value.decode()) for value in values))


async def receive(consumer: PulsarTopicConsumer, count: int, seconds: float = 70) -> set[bytes | None]:
    found: set[bytes | None] = set()
    async with asyncio.timeout(seconds):
        while len(found) < count:
            message = await consumer.receive()
            consumer.ack(message)
            found.add(message.value)
    return found


async def nothing_comes(consumer: PulsarTopicConsumer, seconds: float = 70) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await consumer.receive()
    except TimeoutError:
        return True
    return False


def send_update(pulsar: EmbeddedPulsar, **topics: Sequence[str]) -> None:
    """Send an update to the only watcher, with the hash of all topics."""
    (connection,) = (each for node in runtime_of(pulsar).nodes.values() for each in node.connections)
    watcher = pulsar.history.of("WatchTopicList")[-1].request.watcher_id
    known = topics_hash(map(str, runtime_of(pulsar).namespaces.topics))
    connection.send(CommandWatchTopicUpdate(watcher_id=watcher, topics_hash=known, **topics))


@pytest.mark.parametrize("partitions", [0, 3])
async def test_several_topics_are_one_consumer(partitions: int) -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("a", partitions)
        pulsar.create_topic("b")
        async with client.subscribe(["a", "b", "a"], "s") as consumer:
            assert consumer.topics == ["persistent://public/default/a", "persistent://public/default/b"]
            with pytest.raises(UsageError, match="it has several topics"):
                consumer.topic  # noqa: B018
            await produce(client, "a", b"1", b"2")
            await produce(client, "b", b"3")
            assert await receive(consumer, 3) == {b"1", b"2", b"3"}
            await consumer.flush()
        async with client.subscribe(["a", "b"], "s") as consumer:
            assert await nothing_comes(consumer)


async def test_the_messages_of_several_topics_are_acknowledged_not_their_ids() -> None:
    async with embedded() as (_, client), client.subscribe(["a", "b"], "s", type="shared") as consumer:
        await produce(client, "b", b"1")
        message = await consumer.receive()
        with pytest.raises(ConfigError, match="an id names none of several topics"):
            consumer.ack(message.message_id)
        consumer.nack(message, delay=1)
        again = await consumer.receive()
        assert again == message
        with pytest.raises(ConfigError, match="one of the topics"):
            async with client.subscribe("c", "s") as other:
                await produce(client, "c", b"1")
                consumer.ack(await other.receive())


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_stored_id_with_its_topic_is_acknowledged_and_sought_to(partitions: int) -> None:
    async with embedded(default_partitions=partitions) as (pulsar, client):
        async with client.subscribe(["a", "b"], "s", type="shared") as consumer:
            await produce(client, "b", b"1")
            message = await consumer.receive()
            stored = bytes(message.message_id)
            consumer.nack(TopicMessageId("b", MessageId.from_bytes(stored)), delay=1)
            assert await consumer.receive() == message
            with pytest.raises(ConfigError, match="one of the topics"):
                consumer.ack(TopicMessageId("c", MessageId.from_bytes(stored)))
            consumer.ack(TopicMessageId("b", MessageId.from_bytes(stored)))
            await consumer.flush()
            assert not pulsar.subscription("b", "s").backlog
            await consumer.seek(TopicMessageId("b", MessageId.from_bytes(stored)))
            assert await consumer.receive() == message
            ends = await consumer.last_message_ids()
            last = next(each for each in ends if each.entry_id >= 0)
            assert (last[:3], repr(last)) == (
                message.message_id[:3],
                repr(TopicMessageId("b", MessageId(*last))),
            )


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("pattern", [ORDERS, LONG], ids=["watched", "polled"])
async def test_topics_that_are_created_are_read_from_their_first_message(
    pattern: re.Pattern[str], partitions: int
) -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("orders-1", partitions)
        pulsar.create_topic("other")
        async with client.subscribe(pattern, "s") as consumer:
            assert consumer.topics == ["persistent://public/default/orders-1"]
            pulsar.create_topic("orders-2", partitions)
            await produce(client, "orders-2", b"1", b"2")
            await produce(client, "orders-1", b"3")
            await produce(client, "other", b"4")
            assert await receive(consumer, 3) == {b"1", b"2", b"3"}
            assert await nothing_comes(consumer)
            assert len(consumer.topics) == 2
            assert not consumer.errors()


async def test_a_broker_that_watches_sends_new_topics_at_once() -> None:
    async with embedded() as (_, client), client.subscribe(ORDERS, "s") as consumer:
        await asyncio.sleep(1)
        await produce(client, "orders-1", b"1")
        assert await receive(consumer, 1, 1) == {b"1"}


async def test_a_deleted_topic_ends_silently_and_is_not_created_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with embedded() as (pulsar, client):
        for topic in ("orders-1", "orders-2"):
            pulsar.create_topic(topic)
        async with client.subscribe(ORDERS, "s") as consumer:
            await produce(client, "orders-1", b"1", b"2", b"3")
            taken = await consumer.receive()
            caplog.clear()
            pulsar.delete_topic("orders-1")
            await asyncio.sleep(100)
            assert consumer.topics == ["persistent://public/default/orders-2"]
            assert await client.topics() == ["persistent://public/default/orders-2"]
            assert not consumer.queued
            assert not consumer.errors()
            consumer.ack(taken)  # without effect
            await produce(client, "orders-2", b"4")
            assert await receive(consumer, 1) == {b"4"}
            pulsar.create_topic("orders-1")
            await produce(client, "orders-1", b"5")
            assert await receive(consumer, 1) == {b"5"}


async def test_a_topic_that_is_created_again_is_read_from_its_first_message() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("orders-1")
        async with client.subscribe(ORDERS, "s") as consumer:
            await asyncio.sleep(1)
            pulsar.delete_topic("orders-1")
            pulsar.create_topic("orders-1")
            await produce(client, "orders-1", b"1")
            assert await receive(consumer, 1) == {b"1"}


async def test_a_deletion_and_a_creation_may_come_in_one_update() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("orders-1")
        async with client.subscribe(ORDERS, "s") as consumer:
            await asyncio.sleep(1)
            runtime_of(pulsar).namespaces.on_change.clear()
            pulsar.delete_topic("orders-1")
            pulsar.create_topic("orders-1")
            send_update(pulsar, new_topics=consumer.topics, deleted_topics=consumer.topics)
            await produce(client, "orders-1", b"1")
            assert await receive(consumer, 1) == {b"1"}


async def test_a_topic_that_cannot_be_consumed_stops_no_other_and_is_tried_again() -> None:
    async with embedded() as (pulsar, client):
        for topic in ("orders-1", "orders-2"):
            pulsar.create_topic(topic)
        async with client.subscribe("orders-1", "s") as other:
            async with client.subscribe(ORDERS, "s") as consumer:
                assert list(consumer.errors()) == ["persistent://public/default/orders-1"]
                await produce(client, "orders-1", b"1")
                await produce(client, "orders-2", b"2")
                assert await receive(consumer, 1) == {b"2"}
                await other.aclose()
                await asyncio.sleep(70)
                assert not consumer.errors()
                assert await receive(consumer, 1) == {b"1"}


async def test_no_topic_that_can_be_consumed_is_an_error() -> None:
    async with embedded() as (_, client), client.subscribe("orders-1", "s"):
        with pytest.raises(Exception, match="ConsumerBusy"):
            await client.subscribe(ORDERS, "s").__aenter__()


async def test_topics_that_come_and_go_while_the_broker_is_away() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("orders-1")
        pulsar.create_topic("orders-2")
        async with client.subscribe(ORDERS, "s") as consumer:
            await asyncio.sleep(1)
            pulsar.delete_topic("orders-1")
            pulsar.create_topic("orders-3")
            for node in runtime_of(pulsar).nodes.values():
                node.cut()  # before the watcher was sent anything
            await asyncio.sleep(10)
            assert [topic[-1] for topic in consumer.topics] == ["2", "3"]


@pytest.mark.parametrize("queue", [0, 7, 1000])
async def test_the_limits_are_of_all_topics_together(queue: int) -> None:
    config = PulsarConsumerConfig(
        receiver_queue_size=queue, max_total_receiver_queue_size=20, initial_position="earliest"
    )
    async with embedded() as (_, client):
        for number in range(10):
            await produce(client, f"orders-{number}", *(b"%d-%d" % (number, each) for each in range(10)))
        async with client.subscribe(ORDERS, "s", config=config) as consumer:
            await asyncio.sleep(10)
            assert consumer.queued <= 20
            assert len(await receive(consumer, 100)) == 100


async def test_a_broker_without_watchers_is_polled() -> None:
    async with embedded() as (pulsar, client):
        pulsar.faults.on("WatchTopicList").error("NotAllowedError")
        async with client.subscribe(ORDERS, "s") as consumer:
            await asyncio.sleep(1)
            await produce(client, "orders-1", b"1")
            assert await receive(consumer, 1, 61) == {b"1"}


async def test_updates_of_a_watch_are_enough_if_their_hash_is_right() -> None:
    async with embedded() as (pulsar, client), client.subscribe(ORDERS, "s") as consumer:
        await asyncio.sleep(1)
        lists = len(pulsar.history.of("GetTopicsOfNamespace"))
        for topic in ("orders-1", "orders-2"):
            pulsar.create_topic(topic)
            await asyncio.sleep(1)
        assert len(pulsar.history.of("GetTopicsOfNamespace")) == lists
        assert len(consumer.topics) == 2
        runtime_of(pulsar).namespaces.on_change.clear()
        for topic in ("orders-3", "orders-4"):  # of which no update comes
            pulsar.create_topic(topic)
        names = [f"persistent://public/default/orders-{number}" for number in range(1, 5)]
        send_update(pulsar, new_topics=names[3:])
        await asyncio.sleep(1)
        assert consumer.topics == names, "the hash is of more topics: they are listed"


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("persistent", {b"1"}), ("non-persistent", {b"2", b"3"}), ("all", {b"1", b"2", b"3"})],
)
async def test_topics_that_are_not_persistent(mode: str, wanted: set[bytes | None]) -> None:
    config = PulsarConsumerConfig(regex_subscription_mode=mode)
    first, second = ("non-persistent://public/default/orders-2", "non-persistent://public/default/orders-3")
    async with embedded() as (pulsar, client):
        pulsar.create_topic("orders-1")
        pulsar.create_topic(first)
        async with client.subscribe(ORDERS, "s", config=config) as consumer:
            pulsar.create_topic(second)
            await asyncio.sleep(61)
            for topic, value in (("orders-1", b"1"), (first, b"2"), (second, b"3")):
                await produce(client, topic, value)
            assert await receive(consumer, len(wanted)) == wanted
            assert await nothing_comes(consumer)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (re.compile("a/b"), "tenant/namespace/pattern"),
        (re.compile(".*/default/x"), "tenant/namespace/pattern"),
        (re.compile(b"x"), "a pattern of str"),
        (re.compile("non-persistent://public/default/x.*"), "'non-persistent' or 'all'"),
    ],
)
def test_patterns_that_name_no_topics(pattern: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        PulsarClient("pulsar://10.0.0.1").subscribe(pattern, "s")
    assert text in str(error.value)


async def test_a_pattern_that_only_python_reads() -> None:
    pattern = re.compile("(?!orders-2)ORDERS-[0-9]++", re.IGNORECASE)
    async with embedded() as (pulsar, client):
        for topic in ("orders-1", "orders-2", "other"):
            pulsar.create_topic(topic)
        async with client.subscribe(pattern, "s") as consumer:
            assert consumer.topics == ["persistent://public/default/orders-1"]

"""Readers, table views and patterns on the embedded Pulsar in uses that are rare: one clear error each, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from asyncgroup import WorkQueue
from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.pulsar import (
    EARLIEST,
    LATEST,
    MessageId,
    PulsarClient,
    PulsarServerError,
    PulsarTopicConsumer,
    TopicMessageId,
)
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.workqueue import PulsarSource
from tests.profiles import examples
from tests.pulsar.cancelling import WHEN, cancelled_at
from tests.pulsar_broker.support import early

pytestmark = [pytest.mark.virtual(max_virtual_time=36_000), pytest.mark.usefixtures("no_asyncio_errors")]


@asynccontextmanager
async def embedded(**options: Any) -> AsyncIterator[tuple[EmbeddedPulsar, PulsarClient]]:
    before = asyncio.all_tasks()
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, **options) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        yield pulsar, client
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == before


# --- readers --------------------------------------------------------------------------------------------------------------

LARGEST = (1 << 63) - 1
POSITIONS: list[MessageId | datetime] = [
    EARLIEST,
    LATEST,
    MessageId(0, 0),
    MessageId(-1, 5),
    MessageId(-5, -5),
    MessageId(1, -1),
    MessageId(1, 0, -1, 7),
    MessageId(1, 0, 5),
    MessageId(1, 1 << 40),
    MessageId(1 << 40, 0),
    MessageId(LARGEST, LARGEST - 1),
    MessageId(1 << 70, 1 << 70),
    MessageId(-(1 << 70), 0),
    MessageId(1, 0, 1 << 40, 1 << 40),
    datetime(1960, 1, 1, tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
]


@pytest.mark.parametrize("inclusive", [False, True])
async def test_readers_at_odd_positions(inclusive: bool) -> None:
    """Each reads something that there is, or waits, or is a ConfigError; a seek is the same, and the reader goes on."""
    async with embedded(topics={"t": {"messages": [b"%d" % number for number in range(5)]}}) as (_, client):
        async with client.reader("t", "earliest") as other:
            for position in POSITIONS:
                with contextlib.suppress(ConfigError):
                    async with (
                        asyncio.timeout(30),
                        client.reader("t", position, inclusive=inclusive) as reader,
                    ):
                        while await reader.has_message_available():
                            assert (await reader.read()).value in {b"%d" % number for number in range(5)}
                with contextlib.suppress(ConfigError):
                    async with asyncio.timeout(30):
                        await other.seek(position, inclusive=inclusive)
                        while await other.has_message_available():
                            await other.read()
            async with asyncio.timeout(30):
                await other.seek("earliest")
                assert (await other.read()).value == b"0"


ODD_LISTS: list[Any] = [
    [],
    [EARLIEST],
    [MessageId(1, 0)],
    [TopicMessageId("a", MessageId(1, 0)), TopicMessageId("a", MessageId(1, 1))],
    [TopicMessageId("none", MessageId(1, 0))],
    [TopicMessageId("a", MessageId(1, 0, 7))],
    [TopicMessageId("a", MessageId(1 << 70, 0))],
    [TopicMessageId("a", MessageId(1 << 40, 0))],
    [TopicMessageId("a", EARLIEST), TopicMessageId("b", LATEST)],
    TopicMessageId("a", MessageId(1, 0)),
    MessageId(1, 0),
    "soon",
    None,
]


async def test_readers_of_several_topics_at_odd_positions() -> None:
    topics = {name: {"messages": [b"%d" % number for number in range(3)]} for name in "ab"}
    async with embedded(topics=topics) as (_, client):
        for names in (["a", "b"], re.compile("[ab]"), "a"):
            for position in ODD_LISTS:
                with contextlib.suppress(ConfigError, UsageError):
                    async with asyncio.timeout(30), client.reader(names, position) as reader:
                        while await reader.has_message_available():
                            await reader.read()
            async with client.reader(names, "earliest") as reader:
                for position in ODD_LISTS:
                    with contextlib.suppress(ConfigError, UsageError):
                        async with asyncio.timeout(30):
                            await reader.seek(position)
                async with asyncio.timeout(30):
                    await reader.seek("earliest")
                    assert (await reader.read()).value == b"0"


# --- table views ----------------------------------------------------------------------------------------------------------


async def test_a_table_view_of_a_topic_that_is_deleted() -> None:
    """It keeps what it has read, says why it ends, and each of its calls raises that."""
    topics = {"t": {"messages": [("a", b"1")]}}
    async with embedded(topics=topics, auto_create_topics=False) as (pulsar, client):
        async with client.table_view("t") as view:
            following = asyncio.create_task(anext(view.changes()))
            pulsar.delete_topic("t")
            with pytest.raises(PulsarServerError, match="TopicNotFound"):
                await asyncio.wait_for(following, 120)
            assert isinstance(view.error, PulsarServerError)
            for call in (view.refresh, lambda: anext(view.changes())):
                with pytest.raises(PulsarServerError, match="TopicNotFound"):
                    await asyncio.wait_for(call(), 120)
            assert view == {"a": b"1"}
        assert view == {"a": b"1"}


async def test_a_table_view_that_cannot_begin() -> None:
    async with embedded(auto_create_topics=False) as (_, client):
        view = client.table_view("t")
        with pytest.raises(PulsarServerError, match="TopicNotFound"):
            async with view:
                pytest.fail("it was opened")
        assert not view
        await view.aclose()


async def test_a_table_view_that_is_closed_while_others_wait() -> None:
    async with embedded(topics={"t": {"messages": [("a", b"1")]}}) as (pulsar, client):
        async with client.table_view("t") as view:
            pulsar.faults.on("GetLastMessageId").hold()
            following = asyncio.create_task(anext(view.changes(), None))
            refreshing = asyncio.create_task(view.refresh())
            await asyncio.sleep(1)
        assert await following is None
        assert refreshing.done(), "it waits for no answer of its broker"
        with pytest.raises(ClosedError, match=r"table view of .*: it is closed"):
            await refreshing
        with pytest.raises(ClosedError):
            await view.refresh()


# --- consumers ------------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[PulsarTopicConsumer], Coroutine[Any, Any, object]]] = {
    "GetLastMessageId": lambda consumer: consumer.last_message_ids(),
    "Seek": lambda consumer: consumer.seek(EARLIEST),
    "Unsubscribe": lambda consumer: consumer.unsubscribe(),
}


@pytest.mark.parametrize("api", CALLS)
@pytest.mark.parametrize("topic", ["t", re.compile("t.*")])
@pytest.mark.parametrize("held", ["answer", "pause"])
async def test_a_consumer_that_is_closed_while_others_wait(
    api: str, held: str, topic: str | re.Pattern[str]
) -> None:
    """A call ends at once: the answer of a broker, or the pause before the next attempt, may take long."""
    async with embedded(topics="t") as (pulsar, client):
        async with client.subscribe(topic, "s") as consumer:
            fault = pulsar.faults.on(api)
            if held == "answer":
                fault.hold()
            else:
                fault.error("MetadataError")
            calling = asyncio.create_task(CALLS[api](consumer))
            await asyncio.sleep(0.05)
            closing = asyncio.create_task(consumer.aclose())
            async with asyncio.timeout(0.01):
                with pytest.raises(ClosedError):
                    await calling
            await closing


@pytest.mark.parametrize("topic", ["t", re.compile("t.*")])
async def test_a_flush_during_the_close(topic: str | re.Pattern[str]) -> None:
    """It says that the acknowledgement may be lost when the close has given it up."""
    async with embedded(topics={"t": {"messages": [b"v"]}}) as (pulsar, client):
        async with client.subscribe(topic, "s", config=early()) as consumer:
            consumer.ack(await consumer.receive())
            pulsar.faults.on("Ack").hold()
            flushing = asyncio.create_task(consumer.flush())
            await asyncio.sleep(0.05)
        with pytest.raises(ClosedError):
            await flushing


async def test_a_seek_of_several_partitions_ends_with_the_last_of_them() -> None:
    """As `MultiTopicsConsumerImpl.seekAsync`: one that is refused stops no other, and its error is raised at the end."""
    async with embedded(topics={"t": 3}) as (pulsar, client), client.subscribe("t", "s") as consumer:
        for number in range(3):
            pulsar.produce("t", b"%d" % number, partition=number)
        for _ in range(3):
            consumer.ack(await consumer.receive())
        await consumer.flush()
        pulsar.faults.on("Seek", topic="t-partition-0").error("NotAllowedError")
        slow = pulsar.faults.on("Seek", topic="t-partition-2").hold()
        seeking = asyncio.create_task(consumer.seek(EARLIEST))
        await asyncio.sleep(5)
        assert not seeking.done()
        slow.release()
        with pytest.raises(PulsarServerError, match=r"t-partition-0 .*SEEK.*NotAllowedError"):
            await seeking
        assert sorted([(await consumer.receive()).partition for _ in range(2)]) == [1, 2]
        await consumer.seek(EARLIEST)
        assert sorted([(await consumer.receive()).partition for _ in range(3)]) == [0, 1, 2]


async def test_an_unsubscribe_that_one_partition_refuses_is_repeated_there() -> None:
    async with embedded(topics={"t": 3}) as (pulsar, client), client.subscribe("t", "s") as consumer:
        pulsar.faults.on("Unsubscribe", topic="t-partition-1").error("NotAllowedError")
        with pytest.raises(PulsarServerError, match=r"t-partition-1 .*NotAllowedError"):
            await consumer.unsubscribe()
        pulsar.produce("t", b"1", partition=1)
        assert (await consumer.receive()).value == b"1"
        await consumer.unsubscribe()
        with pytest.raises(ClosedError):
            await consumer.receive()
        assert len(pulsar.history.of("Unsubscribe")) == 4


@pytest.mark.parametrize("api", CALLS)
async def test_a_topic_of_a_pattern_that_is_deleted_fails_no_call(api: str) -> None:
    """What the others have answered counts: its consumer is closed, that of the pattern is not."""
    async with (
        embedded(topics=["orders-1", "orders-2"]) as (pulsar, client),
        client.subscribe(re.compile("orders-.*"), "s") as consumer,
    ):
        pulsar.faults.on(api, topic="orders-1", times=None).error("MetadataError")
        calling = asyncio.create_task(CALLS[api](consumer))
        await asyncio.sleep(1)
        pulsar.delete_topic("orders-1")
        found = await calling
        if api == "GetLastMessageId":
            assert isinstance(found, list)
            assert (
                [each.topic for each in found] == consumer.topics == ["persistent://public/default/orders-2"]
            )


@pytest.mark.parametrize("api", CALLS)
async def test_a_topic_of_a_pattern_that_is_refused_fails_a_call(api: str) -> None:
    """What was asked for is not done there, as the subscription has another consumer."""
    async with (
        embedded(topics=["orders-1", "orders-2"]) as (pulsar, client),
        client.subscribe(re.compile("orders-.*"), "s") as consumer,
    ):
        pulsar.faults.on(api, topic="orders-1", times=None).error("MetadataError")
        calling = asyncio.create_task(CALLS[api](consumer))
        await asyncio.sleep(1)
        pulsar.faults.on("Subscribe", topic="orders-1").error("NotAllowedError")
        pulsar.unload("orders-1")
        with pytest.raises(PulsarServerError, match=r"orders-1 .*NotAllowedError"):
            await calling
        assert consumer.topics == ["persistent://public/default/orders-2"]


# --- patterns -------------------------------------------------------------------------------------------------------------


async def test_a_pattern_that_matches_nothing() -> None:
    async with embedded(topics="other") as (pulsar, client):
        async with client.subscribe(re.compile("orders-.*"), "s", type="shared") as consumer:
            assert consumer.topics == []
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.receive_batch(), 100)
            await consumer.flush()
            assert await consumer.last_message_ids() == []
            await consumer.seek(EARLIEST)
            consumer.pause()
            consumer.resume()
            receiving = asyncio.create_task(consumer.receive())
            await asyncio.sleep(1)
            pulsar.create_topic("orders-1")
            await asyncio.sleep(1)
            pulsar.produce("orders-1", b"v")
            assert (await asyncio.wait_for(receiving, 120)).value == b"v"
        async with client.subscribe(re.compile("none-.*"), "s") as consumer:
            await consumer.unsubscribe()


async def test_a_queue_of_a_pattern_that_matches_nothing() -> None:
    async with embedded(topics="other") as (pulsar, client):
        async with WorkQueue(PulsarSource(client, "s", re.compile("orders-.*"))) as queue:
            receiving = asyncio.create_task(queue.receive())
            await asyncio.sleep(1)
            pulsar.create_topic("orders-1")
            await asyncio.sleep(1)
            pulsar.produce("orders-1", b"v")
            delivery = await asyncio.wait_for(receiving, 120)
            await delivery.ack(durable=True)


async def test_a_pattern_that_matches_many_topics() -> None:
    count = examples(1_000)
    async with embedded(topics=[f"orders-{number}" for number in range(count)]) as (pulsar, client):
        async with client.subscribe(re.compile("orders-.*"), "s", type="shared") as consumer:
            assert len(consumer.topics) == count
            for number in range(count):
                pulsar.produce(f"orders-{number}", b"%d" % number)
            found = set()
            async with asyncio.timeout(60):
                while len(found) < count:
                    message = await consumer.receive()
                    consumer.ack(message)
                    found.add(message.value)
            for number in range(count):
                pulsar.delete_topic(f"orders-{number}")
            await asyncio.sleep(130)
            assert consumer.topics == []
            assert not consumer.errors()


# --- cancelled while they open, or move -----------------------------------------------------------------------------------


async def use_view(client: PulsarClient) -> None:
    async with client.table_view("a") as view:
        await view.refresh()


async def use_reader(client: PulsarClient) -> None:
    async with client.reader("a", datetime.fromtimestamp(0, UTC)) as reader:
        await reader.has_message_available()
        await reader.seek("latest")


async def use_readers(client: PulsarClient) -> None:
    start = [TopicMessageId("a", MessageId(1, 0)), TopicMessageId("b", MessageId(2, 0))]
    async with client.reader(["a", "b"], start) as reader:
        await reader.seek("earliest")
        await reader.read()


async def use_pattern(client: PulsarClient) -> None:
    async with client.subscribe(re.compile("[ab]"), "s") as consumer:
        await consumer.last_message_ids()
        await consumer.seek(EARLIEST)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("use", [use_view, use_reader, use_readers, use_pattern])
async def test_cancelled_at_each_await(
    use: Callable[[PulsarClient], Coroutine[Any, Any, None]], when: str
) -> None:
    """Nothing of them stays at the broker, and the client can be used."""
    number, was_cancelled = 0, True
    async with embedded(topics={name: {"messages": [("k", b"1")]} for name in "ab"}) as (pulsar, client):
        while was_cancelled:
            before = asyncio.all_tasks()
            was_cancelled = await cancelled_at(number, when, use(client))
            await asyncio.sleep(100)
            assert asyncio.all_tasks() == before
            for topic in "ab":
                assert all(
                    not pulsar.subscription(topic, name).consumers
                    for name in pulsar.topic(topic).subscriptions
                )
            number += 1
    assert number > 5

"""Brokers that are frozen, cut connections, or answer with anything: each call ends with one clear error, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncgroup.errors import AsyncGroupError, ConfigError, DecodeError, ProtocolError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire import commands as c
from tests.pulsar.scripted import Answerer, BrokerConnection, Call, ScriptedPulsar, no_answer
from tests.pulsar.support import now

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

LONGEST = 61.0
"""Seconds that a call may take: `operation_timeout` for a request, and as long for the one before it."""


def attached(pulsar: ScriptedPulsar) -> tuple[BrokerConnection, int]:
    """Return the connection of the only consumer, and its id there."""
    (connection,) = (one for one in pulsar.connections if one.consumers)
    return connection, next(iter(connection.consumers))


# --- brokers that do not answer -------------------------------------------------------------------------------------------


def freeze(call: Call) -> None:
    """Answer nothing more, also on other connections."""
    call.broker.freeze()


STOPS: dict[str, Answerer] = {"silent": no_answer, "frozen": freeze, "cut": Call.cut}


async def consume(client: PulsarClient, pulsar: ScriptedPulsar) -> None:
    config = PulsarConsumerConfig(close_timeout=2.0)
    async with client.subscribe("orders", "s", type="shared", config=config) as consumer:
        if any(one.consumers for one in pulsar.connections):
            connection, number = attached(pulsar)
            connection.push_entry(number, b"v")
            consumer.ack(await consumer.receive())
        for call in (consumer.last_message_ids, lambda: consumer.seek(0), consumer.unsubscribe):
            await ends_in_time(call)
        closing = now()
    assert now() - closing <= 5.0, "close_timeout, once for acknowledgements and once to leave"


async def produce(client: PulsarClient, _pulsar: ScriptedPulsar) -> None:
    async with client.producer("orders", PulsarProducerConfig(close_timeout=2.0)) as producer:
        await ends_in_time(lambda: producer.send(b"v"))
        closing = now()
    assert now() - closing <= 5.0


async def ends_in_time(call: Callable[[], Awaitable[object]]) -> None:
    began = now()
    with contextlib.suppress(AsyncGroupError):
        await call()
    assert now() - began <= LONGEST


CONNECTING = (c.CommandConnect, c.CommandPartitionedTopicMetadata, c.CommandLookupTopic)
CONSUMING = (
    *CONNECTING,
    c.CommandSubscribe,
    c.CommandAck,
    c.CommandGetLastMessageId,
    c.CommandSeek,
    c.CommandUnsubscribe,
    c.CommandCloseConsumer,
)
PRODUCING = (*CONNECTING, c.CommandProducer, c.CommandSend, c.CommandCloseProducer)
CASES = [(consume, kind) for kind in CONSUMING] + [(produce, kind) for kind in PRODUCING]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("use", "kind"), CASES)
async def test_a_broker_that_stops_at_a_command(
    pulsar: ScriptedPulsar, use: Callable[..., Awaitable[None]], kind: type[c.Command], stop: str
) -> None:
    pulsar.script[kind] = STOPS[stop]
    before = asyncio.all_tasks()
    began = now()
    client = PulsarClient(pulsar.url)
    await client.__aenter__()
    with contextlib.suppress(AsyncGroupError):
        await use(client, pulsar)
    closing = now()
    await client.aclose()
    assert now() - closing <= 6.0
    assert now() - began <= 4 * LONGEST
    pulsar.first.thaw()
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == before
    assert pulsar.connections == []


async def test_a_client_that_is_closed_by_a_cancelled_task_is_closed(pulsar: ScriptedPulsar) -> None:
    for turns in range(1, 12):
        client = PulsarClient(pulsar.url)
        await client.__aenter__()
        await client.partitions("orders")
        pulsar.script[c.CommandPartitionedTopicMetadata] = no_answer
        asking = asyncio.create_task(client.partitions("other"))
        await asyncio.sleep(1)
        closing = asyncio.create_task(client.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing, asking])
        assert asking.exception() is not None
        pulsar.script.clear()
        await asyncio.sleep(0.1)
        assert pulsar.connections == []


# --- answers that are not possible ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [c.CommandLookupTopic, c.CommandPartitionedTopicMetadata, c.CommandSubscribe]
)
async def test_only_a_producer_waits_for_its_turn(pulsar: ScriptedPulsar, kind: type[c.Command]) -> None:
    """The answer that lifts the time limit of PRODUCER is one of another type for other requests."""
    pulsar.script[kind] = lambda call: call.answer(
        c.CommandProducerSuccess(request_id=call.request_id, producer_name="p", producer_ready=False)
    )
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(ProtocolError, match="the answer is a CommandProducerSuccess"):
            async with client.subscribe("orders", "s"):
                pytest.fail("it was opened")
    assert now() < LONGEST


@pytest.mark.parametrize("count", [100_001, (1 << 32) - 1])
async def test_more_partitions_than_any_topic_has(pulsar: ScriptedPulsar, count: int) -> None:
    pulsar.set_partitions("orders", count)
    async with PulsarClient(pulsar.url, PulsarConfig(operation_timeout=1.0)) as client:
        with pytest.raises(DecodeError, match=f"names {count} partitions; at most 100000 are used"):
            async with client.subscribe("orders", "s"):
                pytest.fail("it was opened")
        with pytest.raises(DecodeError, match="partitions"):
            async with client.producer("orders"):
                pytest.fail("it was opened")


async def test_a_batch_that_claims_more_messages_than_a_number_of_permits(pulsar: ScriptedPulsar) -> None:
    """The broker charges what the metadata say; it closes a connection that grants more than an int32 at once."""
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "s", type="shared") as consumer:
        connection, number = attached(pulsar)
        most = (1 << 31) - 1
        for entry in range(3):
            connection.push_entry(number, b"x", num_messages_in_batch=most, is_batch=True, entry_id=entry)
        connection.push_entry(number, b"v", entry_id=3)
        assert (await consumer.receive()).value == b"v"
        await asyncio.sleep(1)
        granted = [flow.message_permits for flow in pulsar.commands(c.CommandFlow)]
        assert max(granted) == most
        assert sum(granted) > 3 * most
        refused = [ack.validation_error for ack in pulsar.commands(c.CommandAck)]
        assert refused == [3, 3, 3], "a batch that cannot be read"


async def test_the_active_consumer_of_a_shared_subscription(pulsar: ScriptedPulsar) -> None:
    """Only Failover has one: elsewhere the queue is not dropped."""
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "s", type="shared") as consumer:
        connection, number = attached(pulsar)
        connection.push_entry(number, b"v")
        connection.push(c.CommandActiveConsumerChange(consumer_id=number, is_active=False))
        await asyncio.sleep(1)
        assert (await asyncio.wait_for(consumer.receive(), 1)).value == b"v"


async def test_an_iteration_goes_on_after_a_cancellation(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "s") as consumer:
        connection, number = attached(pulsar)
        messages = aiter(consumer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(messages)
        connection.push_entry(number, b"v")
        assert (await anext(messages)).value == b"v"


# --- texts that cannot be sent --------------------------------------------------------------------------------------------

SURROGATE = "a\ud800"


@pytest.mark.parametrize(
    ("key", "make"),
    [
        ("topic", lambda client: client.subscribe(SURROGATE, "s")),
        ("topic", lambda client: client.producer(SURROGATE)),
        ("subscription", lambda client: client.subscribe("orders", SURROGATE)),
        ("consumer_name", lambda _: PulsarConsumerConfig(consumer_name=SURROGATE)),
        ("properties", lambda _: PulsarConsumerConfig(properties={"a": SURROGATE})),
        ("subscription_properties", lambda _: PulsarConsumerConfig(subscription_properties={SURROGATE: "a"})),
        ("producer_name", lambda _: PulsarProducerConfig(producer_name=SURROGATE)),
        ("initial_subscription", lambda _: PulsarProducerConfig(initial_subscription=SURROGATE)),
        ("properties", lambda _: PulsarProducerConfig(properties={SURROGATE: "a"})),
        ("listener_name", lambda _: PulsarConfig(listener_name=SURROGATE)),
    ],
)
def test_texts_that_are_not_unicode(key: str, make: Callable[[PulsarClient], Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(PulsarClient("pulsar://a"))
    assert caught.value.key == key


def test_control_characters_of_a_topic_are_not_shown_as_they_are() -> None:
    client = PulsarClient("pulsar://a")
    shown = [client.subscribe("a\n\x1b[31m", "s\n"), PulsarProducer("pulsar://a", "a\n\x1b[31m")]
    assert all(repr(each).isprintable() for each in shown)

"""PulsarClient: when it can be used, what it opens, and that nothing is left of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import ClosedError, ConfigError, ConnectError, UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.security import Tls
from asyncgroup.testing import Network
from tests.pulsar.scripted import ScriptedPulsar, late, no_answer, refuse
from tests.pulsar.support import HOST, now


async def test_it_opens_connections_when_they_are_needed(pulsar: ScriptedPulsar) -> None:
    async with PulsarClient(pulsar.url) as client:
        assert pulsar.connections == []
        await client.partitions("orders")
        assert len(pulsar.connections) == 1
    await asyncio.sleep(0.1)
    assert pulsar.connections == []


async def test_it_is_entered_once() -> None:
    client = PulsarClient("pulsar://a,b:1")
    assert repr(client) == "<PulsarClient pulsar://a:6650,b:1: not open>"
    with pytest.raises(ClosedError, match="enter the client first"):
        await client.partitions("orders")
    async with client:
        assert repr(client).endswith(": open>")
        with pytest.raises(UsageError, match="entered before"):
            await client.__aenter__()
    assert repr(client).endswith(": closed>")
    with pytest.raises(ClosedError, match="the client is closed"):
        await client.topics()
    with pytest.raises(UsageError, match="entered before"):
        await client.__aenter__()
    await client.aclose()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("operation_timeout", "it is a key of the configuration: PulsarClient(url, PulsarConfig(operation_timeout=…))"),
        ("operation_timeout_seconds", "of PulsarConfig: did you mean operation_timeout?"),
        ("io_threads", "leave it out: the client runs on the event loop of its caller"),
        ("colour", "there is no such argument"),
    ],
)  # fmt: skip
def test_arguments_that_are_settings_elsewhere(key: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        PulsarClient("pulsar://a", **{key: 1})  # type: ignore[arg-type]  # any name
    assert str(error.value).endswith(text)


@pytest.mark.parametrize(
    "name", ["create_producer", "newProducer", "create_reader", "get_topic_partitions", "close"]
)
def test_methods_of_other_clients_are_named(name: str) -> None:
    client = PulsarClient("pulsar://a")
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; here it is: .*client\\."):
        getattr(client, name)
    assert name not in dir(client)


@pytest.mark.parametrize("namespace", ["public", "persistent://public/default", "a/b/c", "", None])
async def test_names_that_no_namespace_has(pulsar: ScriptedPulsar, namespace: Any) -> None:
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(ConfigError, match=r"namespace=.* is not allowed: tenant/namespace"):
            await client.topics(namespace)
    assert pulsar.received == []


@pytest.mark.parametrize("name", ["earliest", "latest", "serialize", "deserialize", "toByteArray"])
def test_names_of_other_message_ids(name: str) -> None:
    for each in (MessageId, MessageId(1, 2)):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; here it is: "):
            getattr(each, name)
    assert name not in dir(MessageId(1, 2))


async def test_a_client_that_was_closed_before_it_was_entered() -> None:
    client = PulsarClient("pulsar://a")
    await client.aclose()
    with pytest.raises(UsageError):
        await client.__aenter__()


@pytest.mark.parametrize("topic", ["", "a/b", "a/b/", "http://a/b/c", "persistent://a/b"])
async def test_names_that_no_topic_has(pulsar: ScriptedPulsar, topic: str) -> None:
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(ConfigError, match="topic"):
            await client.partitions(topic)
    assert pulsar.received == []


async def test_calls_that_wait_end_with_the_client(pulsar: ScriptedPulsar) -> None:
    kinds: tuple[Any, ...] = (c.CommandPartitionedTopicMetadata, c.CommandGetTopicsOfNamespace)
    pulsar.script |= dict.fromkeys(kinds, no_answer)
    async with PulsarClient(pulsar.url) as client:
        calls = [asyncio.create_task(call) for call in (client.partitions("orders"), client.topics())]
        await asyncio.sleep(1)
    for call in calls:
        with pytest.raises(ClosedError, match="the client is closed"):
            await call
    assert now() < 2


async def test_a_call_that_pauses_between_attempts_ends_with_the_client(pulsar: ScriptedPulsar) -> None:
    await pulsar.first.stop()
    async with PulsarClient(pulsar.url) as client:
        call = asyncio.create_task(client.topics())
        await asyncio.sleep(10)
    with pytest.raises(ClosedError):
        await call
    assert now() == pytest.approx(10.0)


async def test_a_broker_that_is_down(pulsar: ScriptedPulsar) -> None:
    await pulsar.first.stop()
    async with PulsarClient(pulsar.url, PulsarConfig(operation_timeout=5.0)) as client:
        with pytest.raises(ConnectError, match=r"10\.0\.0\.1:6650: Connection refused"):
            await client.partitions("orders")
        assert now() <= 5.0


async def test_a_topic_that_is_not_there(pulsar: ScriptedPulsar) -> None:
    pulsar.first.script[c.CommandPartitionedTopicMetadata] = refuse(11, "Topic not found")
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(PulsarServerError) as raised:
            await client.partitions("orders")
    assert str(raised.value) == (
        "partitions of persistent://public/default/orders: TopicNotFound (11): Topic not found"
    )


async def test_a_client_certificate_that_cannot_be_read(pulsar: ScriptedPulsar) -> None:
    client = PulsarClient("pulsar+ssl://a", PulsarConfig(tls=Tls(cert_file="/no/such/file.pem")))
    with pytest.raises(ConfigError, match=r"cert_file='/no/such/file\.pem'"):
        await client.__aenter__()


async def test_a_cancelled_call_leaves_the_client_usable(pulsar: ScriptedPulsar, network: Network) -> None:
    pulsar.set_partitions("orders", 4)
    pulsar.first.script[c.CommandConnect] = late(2.0)
    async with PulsarClient(pulsar.url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.partitions("orders")
        assert await client.partitions("orders") == 4
        assert len(network.connections(HOST)) == 1


async def test_another_event_loop(pulsar: ScriptedPulsar) -> None:
    """As in a second `asyncio.run`, or in a process that was forked: each call raises, none waits without end."""
    async with PulsarClient(pulsar.url) as client, client.subscribe("orders", "s") as consumer:

        async def use() -> list[BaseException | object]:
            calls = [client.partitions("orders"), consumer.receive(), consumer.receive_batch()]
            return list(await asyncio.gather(*calls, return_exceptions=True))

        for found in await asyncio.to_thread(asyncio.run, use()):
            assert isinstance(found, UsageError)
            assert "belongs to another event loop" in str(found)

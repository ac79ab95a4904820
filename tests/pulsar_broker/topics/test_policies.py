"""Policies of namespaces and topics: messages expire, and a backlog has a quota; and topics that are not persistent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup.errors import RequestTimedOut
from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.pulsar_broker.topics.policies import BacklogQuota, Policies
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

SINGLE = PulsarProducerConfig(batching=False, send_timeout=5.0)
NAMED = PulsarProducerConfig(batching=False, producer_name="p", send_timeout=0.0)


@asynccontextmanager
async def embedded() -> AsyncIterator[tuple[EmbeddedPulsar, PulsarClient, Policies]]:
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, topics="t", policy_interval=10.0) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        yield pulsar, client, runtime_of(pulsar).namespaces.policies["public/default"]


def backlog(pulsar: EmbeddedPulsar, name: str = "s") -> int:
    return runtime_of(pulsar).subscription("t", name).backlog


async def test_messages_expire() -> None:
    async with embedded() as (pulsar, _, policies):
        policies.message_ttl = 60
        runtime_of(pulsar).namespaces.policies_changed()
        pulsar.create_subscription("t", "s")
        async with PulsarProducer(pulsar.service_url, "t", SINGLE, clock=clock_of_loop()) as producer:
            await producer.send(b"1")
            await asyncio.sleep(40)
            await producer.send(b"2")
            assert backlog(pulsar) == 2
            await asyncio.sleep(35)
            assert backlog(pulsar) == 1
            runtime_of(pulsar).topic("t").policies.own.message_ttl = 0
            await asyncio.sleep(300)
            assert backlog(pulsar) == 1, "the topic's own policy is that of the namespace no longer"


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", "ProducerBlockedQuotaExceededError"),
        ("producer_exception", "ProducerBlockedQuotaExceededException"),
    ],
)
async def test_a_topic_with_too_large_a_backlog_takes_no_producer(policy: str, error: str) -> None:
    async with embedded() as (pulsar, client, policies):
        policies.backlog_quotas["destination_storage"] = BacklogQuota(1000, -1, policy)
        runtime_of(pulsar).namespaces.policies_changed()
        pulsar.create_subscription("t", "s")
        async with client.producer("t", SINGLE) as producer:
            for _ in range(3):
                await producer.send(bytes(500))  # beyond the quota until it is looked at
            await asyncio.sleep(15)
            with pytest.raises((PulsarServerError, RequestTimedOut), match=error):
                await producer.send(b"4")
            with pytest.raises(PulsarServerError, match=error):
                async with client.producer("t", SINGLE):
                    pass
            runtime_of(pulsar).subscription("t", "s").skip(3)
            async with client.producer("t", SINGLE) as other:
                await other.send(b"5")


async def test_a_backlog_is_evicted_by_its_size() -> None:
    async with embedded() as (pulsar, client, policies):
        policies.backlog_quotas["destination_storage"] = BacklogQuota(2000, -1, "consumer_backlog_eviction")
        runtime_of(pulsar).namespaces.policies_changed()
        pulsar.create_subscription("t", "s")
        async with client.producer("t", SINGLE) as producer:
            for _ in range(10):
                await producer.send(bytes(500))
            assert backlog(pulsar) == 10
            await asyncio.sleep(15)
            assert backlog(pulsar) == 3, "90 % of the quota"


async def test_a_backlog_is_evicted_by_its_age() -> None:
    async with embedded() as (pulsar, _, policies):
        policies.backlog_quotas["message_age"] = BacklogQuota(-1, 60, "consumer_backlog_eviction")
        runtime_of(pulsar).namespaces.policies_changed()
        pulsar.create_subscription("t", "s")
        async with PulsarProducer(pulsar.service_url, "t", SINGLE, clock=clock_of_loop()) as producer:
            await producer.send(b"1")
            await asyncio.sleep(50)
            await producer.send(b"2")
            assert backlog(pulsar) == 2
            await asyncio.sleep(25)
            assert backlog(pulsar) == 1


# --- deduplication ----------------------------------------------------------------------------------------------------


async def stored_twice(client: PulsarClient, topic: str) -> bool:
    """Whether a message that is sent twice is stored twice."""
    found = []
    for _ in range(2):
        async with client.producer(topic, NAMED) as producer:
            found.append((await producer.send(b"1", sequence_id=7)).entry_id)
    return found[1] >= 0


@pytest.mark.parametrize("option", [False, True])
async def test_a_topic_deduplicates_by_its_own_policy_that_of_its_namespace_or_the_option(
    option: bool,
) -> None:
    names = [f"t{number}" for number in range(8)]
    async with (
        EmbeddedPulsar(hosts=["10.0.0.1"], port=6650, topics=names, deduplication=option) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        namespaces = runtime_of(pulsar).namespaces
        policies, fresh = namespaces.policies["public/default"], iter(names)
        assert await stored_twice(client, next(fresh)) is not option
        for of_namespace in (True, False):
            policies.deduplication = of_namespace
            namespaces.policies_changed()
            assert await stored_twice(client, next(fresh)) is not of_namespace
            for own in (True, False):
                name = next(fresh)
                runtime_of(pulsar).topic(name).policies.own.deduplication = own
                namespaces.policies_changed()
                assert await stored_twice(client, name) is not own
        policies.deduplication = None
        namespaces.policies_changed()
        assert await stored_twice(client, next(fresh)) is not option


async def test_sequence_ids_are_forgotten_when_deduplication_ends() -> None:
    async with embedded() as (pulsar, client, policies):
        for is_on in (True, False, True):
            policies.deduplication = is_on
            runtime_of(pulsar).namespaces.policies_changed()
            async with client.producer("t", NAMED) as producer:
                assert producer.last_sequence_id == -1
                assert (await producer.send(b"1", sequence_id=7)).entry_id >= 0


# --- topics that are not persistent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_a_topic_that_is_not_persistent_keeps_nothing(kind: str) -> None:
    name = "non-persistent://public/default/t"
    async with embedded() as (pulsar, client, _), client.producer(name, SINGLE) as producer:
        await producer.send(b"1", key="k")
        async with client.subscribe(name, "s", type=kind) as consumer:  # type: ignore[arg-type]
            for number in range(2, 5):
                sent = await producer.send(b"%d" % number, key="k")
                assert sent[:2] == (0, 0)
                message = await consumer.receive()
                assert message.value == b"%d" % number
                consumer.ack(message)
            await consumer.flush()
        topic = runtime_of(pulsar).topic(name)
        assert (len(topic.log), topic.backlog_size, topic.subscriptions["s"].backlog) == (0, 0, 0)

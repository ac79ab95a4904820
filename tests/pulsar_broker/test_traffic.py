"""Faults and history of the embedded Pulsar, with this project's client."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from asyncgroup.broker.errors import UnusedFaults
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from tests.pulsar_broker import support
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


def now() -> float:
    return asyncio.get_running_loop().time()


embedded = partial(support.embedded, client=PulsarConfig(keep_alive_interval=5.0))

EARLY = PulsarConsumerConfig(initial_position="earliest")


async def test_an_error_that_is_tried_again_and_one_that_is_not() -> None:
    async with embedded() as (pulsar, client):
        fault = pulsar.faults.on("Producer", topic="t").error("ServiceNotReady")
        async with client.producer("t") as producer:
            await producer.send(b"1")
        assert fault.hits == 1
        assert len(pulsar.history.of("Producer", topic="t")) == 2
        assert len(pulsar.history.of(error="ServiceNotReady")) == 1
        pulsar.faults.on("Subscribe", subscription="s").error(4)
        with pytest.raises(PulsarServerError, match=r"AuthorizationError \(4\): injected by the test"):
            async with client.subscribe("t", "s"):
                pass


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("LookupTopic", "ServiceNotReady"),
        ("PartitionedTopicMetadata", "MetadataError"),
        ("Send", "PersistenceError"),
    ],
)
async def test_each_command_has_its_form_of_an_error(api: str, error: str) -> None:
    async with embedded() as (pulsar, client):
        fault = pulsar.faults.on(api).error(error)
        async with client.producer("t") as producer:
            await producer.send(b"1")
        assert fault.hits == 1
        [found] = pulsar.history.of(api, error=error)
        assert found.error is not None
        assert len(runtime_of(pulsar).topic("t").log) == 1


async def test_commands_without_an_answer_have_no_error() -> None:
    async with embedded() as (pulsar, client), client.subscribe("t", "s"):
        with pytest.raises(ConfigError, match="not for Flow, which has no answer"):
            pulsar.faults.on("Flow").optional().error("ServiceNotReady")
        await pulsar.history.wait_for("Flow")
        assert "Flow of s, t: no answer is due" in pulsar.history.story()


async def test_a_held_request_and_those_after_it_on_its_connection() -> None:
    async with embedded() as (pulsar, client), client.producer("t") as producer:
        held = pulsar.faults.on("Send").hold()
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(3)]
        await held.wait_hit()
        await asyncio.sleep(5)
        assert len(runtime_of(pulsar).topic("t").log) == 0
        held.release()
        ids = await asyncio.gather(*sends)
        assert ids == sorted(ids)


async def test_a_delay() -> None:
    async with embedded() as (pulsar, client), client.producer("t") as producer:
        pulsar.faults.on("Send", nth=2).delay(3.0)
        await producer.send(b"1")
        before = now()
        await producer.send(b"2")
        assert now() - before == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(("when", "stored"), [("before", 1), ("after", 2), ("mid-frame", 2)])
async def test_a_connection_that_ends_at_a_send(when: Any, stored: int) -> None:
    async with embedded() as (pulsar, client), client.producer("t") as producer:
        pulsar.faults.on("Send").disconnect(when)
        await producer.send(b"1")
        assert len(runtime_of(pulsar).topic("t").log) == stored, "it is sent again on the next connection"
        assert len(pulsar.history.of("Connect")) == 2


async def test_an_answer_that_never_comes() -> None:
    async with embedded() as (pulsar, client):
        pulsar.faults.on("Subscribe").drop()
        async with client.subscribe("t", "s", config=EARLY) as consumer:
            assert 5 < now() < 15, "no answer to pings either: nothing more on this connection is served"
            assert consumer.queued == 0
        assert [each.answered_at is not None for each in pulsar.history.of("Subscribe")] == [False, True]


async def test_own_answers_changed_ones_and_observers() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("t")
        seen = []
        pulsar.faults.on("PartitionedTopicMetadata", times=None).observe(
            lambda exchange: seen.append(exchange.topic)
        )
        pulsar.faults.on("PartitionedTopicMetadata").answer(
            lambda request: c.CommandPartitionedTopicMetadataResponse(
                request_id=request.request_id, partitions=7
            )
        )

        def nine(answer: Any) -> None:
            answer.partitions = 9

        pulsar.faults.on("PartitionedTopicMetadata").mutate(nine)
        assert [await client.partitions("t") for _ in range(3)] == [7, 9, 0]
        assert len(seen) == 3


async def test_a_fault_that_no_request_has_met_fails_the_test() -> None:
    with pytest.raises(UnusedFaults, match="Send topic='orders' nth=1"):
        async with embedded() as (pulsar, _):
            pulsar.faults.on("Send", topic="orders").error("PersistenceError")
            pulsar.faults.on("Send", topic="others").error("PersistenceError").optional()


async def test_what_names_no_command_and_no_error() -> None:
    async with embedded() as (pulsar, _):
        with pytest.raises(UsageError, match="unknown command 'Fetch'; the commands are Ack, "):
            pulsar.faults.on("Fetch")
        with pytest.raises(UsageError, match="unknown command 'send'"):
            pulsar.history.of("send")
        fault = pulsar.faults.on("Send").optional()
        with pytest.raises(ConfigError, match="one of Pulsar's error codes or its name: UnknownError, "):
            fault.error("Busy")
        with pytest.raises(ConfigError):
            fault.error(99)


async def test_an_action_among_the_arguments_that_select_requests() -> None:
    async with embedded() as (pulsar, _):
        wrong: dict[str, Any] = {"disconnect": "after"}
        with pytest.raises(ConfigError, match=r"it is a method of the fault: on\(…\)\.disconnect\('after'\)"):
            pulsar.faults.on("Send", **wrong)
        assert not pulsar.faults.unused


async def test_the_story_of_a_program() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("orders", partitions=2)
        async with (
            client.producer("orders") as producer,
            client.subscribe("orders", "s", config=EARLY) as consumer,
        ):
            await producer.send(b"1", key="a")
            message = await consumer.receive()
            consumer.ack(message)
            await consumer.flush()
            [ack] = await pulsar.history.wait_for("Ack", subscription="s", topic="orders")
        assert ack.answered_at is not None
        lines = pulsar.history.story().splitlines()
        assert any("LookupTopic of orders-partition-1: ok after 0.000 s" in line for line in lines)
        assert any("Subscribe of s, orders-partition-1: ok after" in line for line in lines)
        assert any("Flow of s, orders-partition-0: no answer" in line for line in lines)
        assert len(pulsar.history.of("Subscribe", topic="orders")) == 2
        assert len(pulsar.history.of("Subscribe", topic="orders-partition-0")) == 1
        assert pulsar.history.of(broker=2) == []


async def test_no_history() -> None:
    async with embedded(history_limit=0) as (pulsar, client), client.producer("t") as producer:
        pulsar.faults.on("Send").disconnect("after")
        await producer.send(b"1")
        assert len(pulsar.history) == 0

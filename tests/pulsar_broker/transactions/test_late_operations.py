"""What reaches a broker after the end of its transaction keeps no message from anyone.

Acknowledgements and messages are late here because their broker is slow or their connection is lost, and their transaction has timed out.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncgroup.pulsar import (
    PulsarClient,
    PulsarConfig,
    PulsarConsumerConfig,
    PulsarTransactionAborted,
)
from asyncgroup.pulsar_broker import EmbeddedPulsar

pytestmark = pytest.mark.virtual(max_virtual_time=600)

EARLY = PulsarConsumerConfig(initial_position="earliest")


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
async def test_late_acknowledgements(kind: str) -> None:
    """The acknowledgement arrives two seconds after the coordinator has aborted its transaction."""
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a", "b"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.subscribe("in", "s", type=kind, config=EARLY) as consumer,
    ):
        first = await consumer.receive()
        pulsar.faults.on("Ack").delay(3.0)
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction(1.0) as transaction:
                consumer.ack(first, transaction=transaction)
        async with asyncio.timeout(30):
            found = {(await consumer.receive()).value for _ in range(2)}
        assert found == {b"a", b"b"}


async def test_late_messages() -> None:
    """The first message of a topic arrives after the end of its transaction: others are read."""
    async with (
        EmbeddedPulsar(topics={"out": 0}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.producer("out") as producer,
        client.subscribe("out", "s", config=EARLY) as consumer,
    ):
        pulsar.faults.on("Send").delay(3.0)
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction(1.0) as transaction:
                await producer.send(b"late", transaction=transaction)
        await producer.send(b"b")
        async with asyncio.timeout(30):
            assert (await consumer.receive()).value == b"b"


async def test_an_abort_whose_acknowledgements_are_answered_is_not_repeated() -> None:
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.subscribe("in", "s", config=EARLY) as consumer,
    ):
        with pytest.raises(ZeroDivisionError):
            async with client.transaction(1.0) as transaction:
                consumer.ack(await consumer.receive(), transaction=transaction)
                raise ZeroDivisionError
        assert (await consumer.receive()).value == b"a"
        await asyncio.sleep(10)
        assert not pulsar.history.of("EndTxnOnSubscription")


async def late_ack(pulsar: EmbeddedPulsar, client: PulsarClient) -> None:
    """Have an acknowledgement come after the end of its transaction."""
    async with client.subscribe("in", "s", config=EARLY) as consumer:
        message = await consumer.receive()
        pulsar.faults.on("Ack").delay(3.0)
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction(1.0) as transaction:
                consumer.ack(message, transaction=transaction)


@pytest.mark.parametrize("fault", ["ServiceNotReady", "disconnect"])
async def test_a_failure_that_passes(fault: str) -> None:
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        failing = pulsar.faults.on("EndTxnOnSubscription", times=2)
        if fault == "disconnect":
            failing.disconnect("before")
        else:
            failing.error(fault)
        await late_ack(pulsar, client)
        async with client.subscribe("in", "s", config=EARLY) as consumer, asyncio.timeout(30):
            assert (await consumer.receive()).value == b"a"


async def test_a_client_that_may_not_end_them(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers with authorization let superusers do that."""
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
    ):
        pulsar.faults.on("EndTxnOnSubscription").error("AuthorizationError")
        with caplog.at_level(logging.WARNING, "asyncgroup.pulsar"):
            await late_ack(pulsar, client)
            await asyncio.sleep(60)
        assert sum("may wait there for another transaction" in text for text in caplog.messages) == 1
        assert len(pulsar.history.of("EndTxnOnSubscription")) == 1


async def test_a_client_that_closes_does_not_wait() -> None:
    async with EmbeddedPulsar(topics={"in": {"messages": ["a"]}}) as pulsar:
        async with PulsarClient(pulsar.service_url, PulsarConfig(operation_timeout=30.0)) as client:
            pulsar.faults.on("EndTxnOnSubscription").hold()
            await late_ack(pulsar, client)
            await pulsar.history.wait_for("EndTxnOnSubscription")
            before = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - before < 1.0


async def test_a_client_that_closes_in_a_transaction_begins_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedPulsar(topics={"in": {"messages": ["a"]}}) as pulsar:
        async with PulsarClient(pulsar.service_url, PulsarConfig(operation_timeout=2.0)) as client:
            consumer = client.subscribe("in", "s", config=EARLY)
            await consumer.__aenter__()
            pulsar.faults.on("Ack").hold()
            transaction = client.transaction()
            await transaction.__aenter__()
            consumer.ack(await consumer.receive(), transaction=transaction)
        await consumer.aclose()
        assert not [text for text in caplog.messages if "after its end" in text]


@pytest.mark.parametrize("fault", ["AuthorizationError", "ServiceNotReady"])
async def test_a_topic_that_cannot_be_asked_holds_up_no_other(fault: str) -> None:
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a"]}, "bad": {"messages": ["b"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.subscribe("bad", "s", config=EARLY) as bad,
        client.subscribe("in", "s", config=EARLY) as good,
    ):
        messages = [await bad.receive(), await good.receive()]
        pulsar.faults.on("EndTxnOnSubscription", times=1_000, topic="bad", subscription="s").error(fault)
        pulsar.faults.on("Ack").delay(3.0)
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction(1.0) as transaction:
                bad.ack(messages[0], transaction=transaction)
                good.ack(messages[1], transaction=transaction)
        async with asyncio.timeout(15):
            assert (await good.receive()).value == b"a"

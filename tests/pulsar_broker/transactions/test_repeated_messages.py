"""What a transaction has not acknowledged in the end is delivered again, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from asyncgroup.pulsar import (
    PulsarClient,
    PulsarConsumerConfig,
    PulsarConsumeTransformProduce,
    PulsarMessage,
    PulsarTransactionAborted,
    PulsarTransactionConflict,
    PulsarTransactionOutput,
)
from asyncgroup.pulsar_broker import EmbeddedPulsar

pytestmark = pytest.mark.virtual(max_virtual_time=600)

EARLY = PulsarConsumerConfig(initial_position="earliest")


async def test_messages_whose_acknowledgement_was_refused() -> None:
    """Those that the other transaction has are not delivered until it ends."""
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a", "b"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.subscribe("in", "s", type="shared", config=EARLY) as consumer,
    ):
        first, second = await consumer.receive(), await consumer.receive()
        async with client.transaction() as other:
            consumer.ack(first, transaction=other)
            await asyncio.sleep(1)
            with pytest.raises(PulsarTransactionConflict):
                async with client.transaction() as transaction:
                    consumer.ack(first, transaction=transaction)
                    consumer.ack(second, transaction=transaction)
            again = await consumer.receive()
            assert again.value == b"b"
            consumer.ack(again, transaction=other)
        await asyncio.sleep(10)
        assert consumer.queued == 0
        assert pulsar.subscription("in", "s").backlog == 0


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
async def test_a_transaction_that_fails_before_its_acknowledgements(kind: str) -> None:
    async def shout(batch: Sequence[PulsarMessage], output: PulsarTransactionOutput) -> None:
        for message in batch:
            await output.enqueue("out", (message.value or b"").upper())

    worker = PulsarConsumeTransformProduce(shout, consumer_config=EARLY)
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a", "b"]}, "out": 0}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        pulsar.faults.on("NewTxn").error("TransactionCoordinatorNotFound")
        pulsar.faults.on("AddPartitionToTxn", times=2).error("TransactionNotFound")
        task = tasks.create_task(worker.run(client, "in", "s", type=kind))
        async with asyncio.timeout(300):
            while pulsar.subscription("in", "s").backlog if "s" in pulsar.topic("in").subscriptions else True:
                await asyncio.sleep(1)
        task.cancel()
        assert [m.value for m in pulsar.messages("out") if m.committed] == [b"A", b"B"]


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
async def test_a_message_whose_newer_copy_is_dropped_by_an_acknowledgement_that_is_never_sent(
    kind: str,
) -> None:
    """The topic is loaded again, so that the message waits here again when it is acknowledged; the transaction times out."""
    async with (
        EmbeddedPulsar(topics={"in": {"messages": ["a"]}}) as pulsar,
        PulsarClient(pulsar.service_url) as client,
        client.subscribe("in", "s", type=kind, config=EARLY) as consumer,
    ):
        message = await consumer.receive()
        pulsar.unload("in")
        async with asyncio.timeout(30):
            while not consumer.queued:
                await asyncio.sleep(0.1)
        pulsar.faults.on("AddSubscriptionToTxn", times=100).error("ServiceNotReady")
        with pytest.raises(PulsarTransactionAborted):
            async with client.transaction(1.0) as transaction:
                consumer.ack(message, transaction=transaction)
        async with asyncio.timeout(30):
            assert (await consumer.receive()).value == b"a"

"""Bugs that `python -m tests.simulate_pulsar` has found, each as a small test on the embedded Pulsar."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from asyncgroup.model import clock_of_loop
from asyncgroup.pulsar import EARLIEST, PulsarClient, PulsarTopicConsumer
from asyncgroup.pulsar.transactions.errors import PulsarTransactionTimedOut
from asyncgroup.workqueue import PulsarSource, WorkQueue
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.support import HOSTS, early, embedded
from tests.pulsar_broker.wire_client import COORDINATORS

pytestmark = pytest.mark.virtual(max_virtual_time=3600 * 5)


async def send(client: PulsarClient, *values: bytes) -> None:
    async with client.producer("t") as producer:
        await asyncio.gather(*(producer.send(value) for value in values))


async def receive(consumer: PulsarTopicConsumer, count: int) -> list[Any]:
    async with asyncio.timeout(100):
        return [await consumer.receive() for _ in range(count)]


async def test_a_batch_is_done_when_each_message_is_acknowledged_by_another_consumer() -> None:
    """One of them without index acknowledgements: its own acknowledgement was never sent."""
    async with embedded() as (pulsar, client):
        await send(client, b"0", b"1")
        config = early(priority_level=1, index_acks=False)
        async with client.subscribe("t", "s", type="shared", config=config) as first:
            found = await receive(first, 2)
            first.ack(found[1])
            async with client.subscribe("t", "s", type="shared", config=early()) as second:
                first.nack(found[0], 0.0)
                again = await receive(second, 2)
                second.ack(again[0])
            await asyncio.sleep(10)
            await first.flush()
            assert runtime_of(pulsar).subscription("t", "s").backlog == 0


async def test_a_consumer_that_is_not_active_may_ask_for_everything() -> None:
    """The broker ignored its new epoch, and the client ignored all messages without it when the consumer was active later."""
    async with embedded() as (_, client):
        async with client.subscribe("t", "s", type="failover", config=early(consumer_name="b")) as second:
            async with client.subscribe("t", "s", type="failover", config=early(consumer_name="a")):
                await asyncio.sleep(5)
                second.redeliver_all()
            await send(client, b"0", b"1")
            assert [message.value for message in await receive(second, 2)] == [b"0", b"1"]


async def test_a_consumer_that_stays_active_gets_its_messages_once() -> None:
    """Another one was chosen and has left before that took effect, so that its broker begins again at what is not acknowledged."""
    async with embedded(topics="t", failover_delay=2.0) as (pulsar, client):
        for number in range(4):
            pulsar.produce("t", b"%d" % number)
        async with client.subscribe("t", "s", type="failover", config=early(priority_level=1)) as first:
            first.ack((await receive(first, 2))[0])
            await asyncio.sleep(1)
            async with client.subscribe("t", "s", type="failover", config=early(priority_level=0)):
                await asyncio.sleep(1)
            await asyncio.sleep(5)
            pulsar.produce("t", b"4")
            found = await receive(first, 4)
            assert [message.value for message in found] == [b"1", b"2", b"3", b"4"]
            for message in found:
                first.ack(message)
            await asyncio.sleep(1)
            assert not first.queued


async def test_what_is_acknowledged_after_a_seek_does_not_come_again_after_a_reconnect() -> None:
    """The broker keeps ack sets over a seek, so the client ignores one at the first delivery after it; it did so at each."""
    async with embedded() as (pulsar, client):
        await send(client, b"0", b"1", b"2")
        async with client.subscribe("t", "s", config=early()) as consumer:
            await receive(consumer, 3)
            await consumer.seek(EARLIEST)
            await asyncio.sleep(5)
            for message in await receive(consumer, 2):
                consumer.ack(message)
            await consumer.flush()
            runtime_of(pulsar).nodes[1].cut()
            await asyncio.sleep(5)
            assert [message.value for message in await receive(consumer, 1)] == [b"2"]


async def test_the_delay_of_a_copy_counts_by_the_clock_of_its_queue() -> None:
    async with embedded() as (_, client):
        await asyncio.sleep(3600)
        await send(client, b"0")
        loop = asyncio.get_running_loop()
        source = PulsarSource(client, "s", "t")
        async with WorkQueue(source, retry=True, clock=clock_of_loop(), initial_position="earliest") as queue:
            first = await queue.receive()
            began = loop.time()
            await first.reconsume_later(60)
            async with asyncio.timeout(600):
                second = await queue.receive()
            assert 59 < loop.time() - began < 65
            await second.ack()


async def test_an_exclusive_subscription_goes_on_with_the_consumer_that_has_waited() -> None:
    """After an unload another client was faster: the first one asks again until that one leaves, and ends with no error."""
    async with embedded() as (pulsar, client), client.subscribe("t", "s", config=early()) as first:
        pulsar.unload("t")
        async with (
            PulsarClient(pulsar.service_url) as other,
            other.subscribe("t", "s", config=early()) as second,
        ):
            await send(client, b"0")
            second.ack((await receive(second, 1))[0])
            await asyncio.sleep(600)
            assert not first.partitions[0].is_attached
            assert "ConsumerBusy" in str(first.partitions[0].last_error)
        await send(client, b"1")
        assert [message.value for message in await receive(first, 1)] == [b"1"]


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_everything_may_be_asked_for_while_the_consumer_is_being_registered(kind: str) -> None:
    """Its SUBSCRIBE had the epoch of before, so that the client ignored all messages as those of before the redelivery."""
    async with embedded() as (pulsar, client):
        await send(client, b"0", b"1")
        async with client.subscribe("t", "s", type=kind, config=early()) as consumer:
            await receive(consumer, 2)
            pulsar.faults.on("Subscribe").delay(2.0)
            runtime_of(pulsar).nodes[1].cut()
            await asyncio.sleep(1)
            consumer.redeliver_all()
            assert [message.value for message in await receive(consumer, 2)] == [b"0", b"1"]


async def test_what_a_transaction_has_not_acknowledged_at_its_end_comes_again() -> None:
    """Its coordinator was silent, so that it was given up before an acknowledgement was sent: it was asked for before it was counted."""
    async with embedded(HOSTS[:2]) as (pulsar, client):
        pulsar.create_topic("t")
        pulsar.unload("t", to=1)
        pulsar.unload(str(COORDINATORS), to=2)
        await send(client, b"0", b"1")
        async with client.subscribe("t", "s", type="shared", config=early()) as consumer:
            pulsar.faults.on("AddSubscriptionToTxn").drop()
            with pytest.raises(PulsarTransactionTimedOut):
                async with client.transaction(timeout=3.0) as transaction:
                    consumer.ack((await receive(consumer, 1))[0], transaction=transaction)
            assert {message.value for message in await receive(consumer, 2)} == {b"0", b"1"}
            assert consumer.partitions[0].is_attached
            await asyncio.sleep(100)
            assert pulsar.history.of("Ack") == [], "no acknowledgement comes after the end"
            assert len(pulsar.history.of("Subscribe")) == 1


async def test_messages_of_a_batch_come_again_after_a_seek_and_a_redelivery() -> None:
    """The broker had acknowledgements of before the seek: with that of the only message that it lacked the whole batch was done for it."""
    async with embedded() as (pulsar, client):
        await send(client, b"0", b"1", b"2")
        async with client.subscribe("t", "s", type="shared", config=early()) as consumer:
            for message in (await receive(consumer, 3))[:2]:
                consumer.ack(message)
            await consumer.flush()
            await consumer.seek(EARLIEST)
            found = await receive(consumer, 3)
            consumer.ack(found[2])
            await consumer.flush()
            consumer.redeliver_all()
            again = await receive(consumer, 2)
            assert {message.value for message in again} == {b"0", b"1"}
            for message in again:
                consumer.ack(message)
            await consumer.flush()
        assert runtime_of(pulsar).subscription("t", "s").backlog == 0


async def test_a_message_comes_again_if_its_transaction_is_aborted_right_after_its_acknowledgement() -> None:
    """By the coordinator alone: what was pushed again had arrived with the answer, and was taken for a copy of before."""
    async with embedded() as (pulsar, client):
        await send(client, b"0", b"1")
        async with client.subscribe("t", "s", type="shared", config=early()) as consumer:
            found = await receive(consumer, 2)
            subscription = runtime_of(pulsar).subscription("t", "s")
            ack = subscription.ack_in_transaction

            def ack_and_abort(transaction: Any, *args: Any) -> None:
                ack(transaction, *args)
                asyncio.get_running_loop().call_soon(
                    lambda: subscription.end_transaction(transaction, -1, commits=False)
                )

            with patch.object(subscription, "ack_in_transaction", ack_and_abort):
                async with client.transaction() as transaction:
                    for message in found:
                        consumer.ack(message, transaction=transaction)
                    await asyncio.sleep(1)
                    await transaction.abort()
            assert {message.value for message in await receive(consumer, 2)} == {b"0", b"1"}

"""What an embedded Pulsar does for producers and consumers, with this project's client in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asyncgroup.errors import RequestTimedOut
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandActiveConsumerChange,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandSendReceipt,
    CommandSuccess,
)
from asyncgroup.pulsar.wire.enums import SubType
from asyncgroup.pulsar.wire.frames import decode_frame
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.virtual.loop import current_network
from tests.pulsar_broker.internals import runtime_of
from tests.pulsar_broker.support import HOSTS, early, embedded
from tests.pulsar_broker.wire_client import WireClient

pytestmark = pytest.mark.virtual(max_virtual_time=3600)


async def receive(consumer: PulsarTopicConsumer, count: int) -> list[bytes | None]:
    """Receive and acknowledge messages; return their values."""
    found = []
    async with asyncio.timeout(300):
        for _ in range(count):
            message = await consumer.receive()
            consumer.ack(message)
            found.append(message.value)
    return found


async def is_quiet(consumer: PulsarTopicConsumer, seconds: float = 30.0) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await consumer.receive()
    except TimeoutError:
        return True
    return False


VALUES = [b"%d" % number for number in range(20)]


async def produce(
    client: PulsarClient, topic: str, values: Sequence[bytes] = VALUES, **settings: Any
) -> None:
    async with client.producer(topic, PulsarProducerConfig(**settings)) as producer:
        for value in values:
            await producer.enqueue(value, key=f"k{int(value) % 4}")
        await producer.flush()


# --- brokers ----------------------------------------------------------------------------------------------------------


async def test_topics_are_spread_over_brokers_and_move_when_one_stops() -> None:
    async with embedded(HOSTS) as (pulsar, client):
        pulsar.create_topic("t", partitions=12)
        async with (
            client.producer("t") as producer,
            client.subscribe("t", "s", type="shared", config=early()) as consumer,
        ):
            for number in range(60):
                await producer.send(b"%d" % number, key=f"k{number}")
            owners = {broker.id for broker in pulsar.brokers.values() if broker.connections}
            assert len(owners) > 1
            await pulsar.stop_broker(1)
            for number in range(60, 120):
                await producer.send(b"%d" % number, key=f"k{number}")
            found = await receive(consumer, 120)
            assert sorted(map(int, filter(None, found))) == list(range(120))
            await consumer.flush()
            await pulsar.start_broker(1)
        assert sum(pulsar.subscription(f"t-partition-{number}", "s").backlog for number in range(12)) == 0


async def test_an_unloaded_topic_goes_on_at_another_broker_with_its_acknowledgements() -> None:
    async with embedded(HOSTS[:2]) as (pulsar, client):
        await produce(client, "t")
        async with client.subscribe("t", "s", config=early()) as consumer:
            assert await receive(consumer, 5) == VALUES[:5]
            await consumer.flush()
            for number in (2, 1, 2):
                pulsar.unload("t", to=number)
                assert await receive(consumer, 5) != []
                await consumer.flush()
            assert pulsar.subscription("t", "s").backlog == 0
            assert pulsar.topic("t").brokers == (2,)
        async with client.producer("t") as producer:
            [before] = pulsar.topic("t").last_message_ids
            after = await producer.send(b"1")
        assert after.ledger_id > before.ledger_id, "each load begins a ledger"


async def test_a_broker_that_does_not_own_a_topic_refuses_it() -> None:
    async with embedded() as (pulsar, client), client.producer("t") as producer:
        await producer.send(b"1")
        assert pulsar.history.of(error="ServiceNotReady") == []
        pulsar.unload("t")
        await producer.send(b"2")
    assert len(pulsar.history.of("LookupTopic")) >= 2


async def test_a_listener_that_brokers_do_not_have() -> None:
    async with EmbeddedPulsar(hosts=HOSTS[:1], port=6650, topics="t") as pulsar:
        config = PulsarConfig(listener_name="outside", operation_timeout=5.0)
        async with PulsarClient(pulsar.service_url, config) as client:
            with pytest.raises((PulsarServerError, RequestTimedOut), match="do not have outside listener"):
                async with client.producer("t"):
                    pass


# --- topics -----------------------------------------------------------------------------------------------------------


async def test_topics_that_may_not_be_created() -> None:
    async with embedded(auto_create_topics=False) as (pulsar, client):
        with pytest.raises(PulsarServerError, match="TopicNotFound"):
            await produce(client, "t")
        with pytest.raises(PulsarServerError, match="TopicNotFound"):
            await produce(client, "persistent://public/other/t")
        pulsar.create_topic("t", partitions=3)
        await produce(client, "t")
        assert await client.partitions("t") == 3
        assert await client.topics("public/default") == [
            f"persistent://public/default/t-partition-{number}" for number in range(3)
        ]


async def test_a_topic_gets_its_partitions_when_it_is_used() -> None:
    async with embedded(default_partitions=2) as (_, client):
        await produce(client, "t")
        assert await client.partitions("t") == 2


async def test_partitions_that_are_added_and_a_topic_that_is_deleted() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("t", partitions=1)
        async with client.subscribe("t", "s", type="shared", config=early()) as consumer:
            pulsar.update_partitions("t", 3)
            await produce(client, "t")
            assert sorted(map(int, filter(None, await receive(consumer, 20)))) == list(range(20))
        assert pulsar.topic("t-partition-2").subscriptions == ("s",)
        pulsar.delete_topic("t")
        assert pulsar.topics == []


async def test_the_end_of_a_terminated_topic() -> None:
    async with embedded() as (pulsar, client):
        await produce(client, "t")
        async with client.subscribe("t", "s", config=early()) as consumer, client.producer("t") as producer:
            pulsar.terminate("t")
            with pytest.raises(PulsarServerError, match="TopicTerminatedError"):
                await producer.send(b"1")
            assert await receive(consumer, 20) == VALUES
            await asyncio.sleep(1)
            assert consumer.is_at_end


# --- producers --------------------------------------------------------------------------------------------------------


async def test_a_name_is_one_producer() -> None:
    async with embedded() as (_, client):
        config = PulsarProducerConfig(producer_name="p", send_timeout=5.0)
        async with client.producer("t", config) as first:
            with pytest.raises(PulsarServerError, match="ProducerBusy"):
                async with client.producer("t", config):
                    pass
            await first.send(b"1")
        async with client.producer("t", config) as again:
            await again.send(b"2")


async def test_access_modes() -> None:
    async with embedded() as (_, client):
        exclusive = PulsarProducerConfig(access_mode="exclusive")
        async with client.producer("t", exclusive) as first:
            with pytest.raises(PulsarServerError, match="ProducerFenced"):
                async with client.producer("t", exclusive):
                    pass
            waiting = asyncio.create_task(produce(client, "t", access_mode="wait_for_exclusive"))
            await asyncio.sleep(100)
            assert not waiting.done()
            await first.send(b"1")
        async with asyncio.timeout(10):
            await waiting
        async with client.producer("t") as shared:
            await shared.send(b"1")
            async with client.producer(
                "t", PulsarProducerConfig(access_mode="exclusive_with_fencing")
            ) as last:
                await last.send(b"2")
                await asyncio.sleep(1)
                with pytest.raises(RequestTimedOut, match="ProducerBusy"):
                    await shared.send(b"3")


async def test_deduplication() -> None:
    async with embedded(deduplication=True) as (pulsar, client):
        config = PulsarProducerConfig(producer_name="p", send_timeout=0.0)
        for _ in range(2):
            async with client.producer("t", config) as producer:
                for number in range(10):
                    await producer.send(b"%d" % number, sequence_id=number)
                assert producer.last_sequence_id == 9
        assert len(runtime_of(pulsar).topic("t").log) == 10
        pulsar.faults.on("Send", nth=3).disconnect("after")
        async with client.producer("t", config) as producer:
            for number in range(10, 20):
                await producer.send(b"%d" % number, sequence_id=number)
        assert len(runtime_of(pulsar).topic("t").log) == 20


async def test_a_value_in_chunks_that_is_sent_again_is_stored_once() -> None:
    async with embedded(deduplication=True) as (pulsar, client):
        pulsar.faults.on("Send", nth=3).disconnect("after")
        config = PulsarProducerConfig(chunking=True, chunk_max_size=500, send_timeout=0.0)
        async with client.producer("t", config) as producer:
            await producer.send(bytes(1000))
        chunks = [entry.metadata.chunk_id for entry in runtime_of(pulsar).topic("t").log]
        assert chunks == [0, 1, 2], "the last one was sent twice"
        async with client.subscribe("t", "s", config=early()) as consumer:
            assert await receive(consumer, 1) == [bytes(1000)]
            assert await is_quiet(consumer)


# --- consumers --------------------------------------------------------------------------------------------------------


async def test_subscriptions_with_consumers_of_another_type() -> None:
    async with embedded() as (_, client), client.subscribe("t", "s", type="shared"):
        for kind, why in [("exclusive", "different type"), ("key_shared", "different type")]:
            with pytest.raises(PulsarServerError, match=why):
                async with client.subscribe("t", "s", type=kind):
                    pass
        async with client.subscribe("t", "e"):
            with pytest.raises(PulsarServerError, match="Exclusive consumer is already connected"):
                async with client.subscribe("t", "e"):
                    pass


async def test_a_failover_subscription_moves_to_the_next_consumer() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("t", partitions=1)
        await produce(client, "t")
        async with client.subscribe("t", "s", type="failover", config=early(consumer_name="b")) as second:
            assert await receive(second, 5) == VALUES[:5]
            await second.flush()
            async with client.subscribe("t", "s", type="failover", config=early(consumer_name="a")) as first:
                assert await receive(first, 5) == VALUES[5:10], "the first name, and no message twice"
                await first.flush()
            assert await receive(second, 10) == VALUES[10:]


async def test_keys_stay_with_their_consumer_and_move_when_it_leaves() -> None:
    async with embedded() as (_, client):
        async with (
            client.subscribe("t", "s", type="key_shared", config=early()) as first,
            client.subscribe("t", "s", type="key_shared", config=early()) as second,
        ):
            await produce(client, "t", batching=False)
            await asyncio.sleep(1)
            counts = (first.queued, second.queued)
            assert sum(counts) == 20
            keys = [
                [(await one.receive()).key for _ in range(count)]
                for one, count in zip((first, second), counts, strict=True)
            ]
            assert not set(keys[0]) & set(keys[1])
            await first.aclose()
            rest = [await second.receive() for _ in range(counts[0])]
            assert {message.key for message in rest} == set(keys[0])


async def test_sticky_ranges_may_not_overlap() -> None:
    async with embedded() as (_, client):
        half = early(key_ranges=[(0, 32767)])
        async with client.subscribe("t", "s", type="key_shared", config=half) as consumer:
            with pytest.raises(PulsarServerError, match="ConsumerAssignError"):
                async with client.subscribe(
                    "t", "s", type="key_shared", config=early(key_ranges=[(32767, 40000)])
                ):
                    pass
            await produce(client, "t", batching=False)
            await asyncio.sleep(1)
            assert 0 < consumer.queued < 20


async def test_delayed_messages_wait_in_shared_subscriptions_only() -> None:
    async with embedded() as (_, client):
        async with client.producer("t") as producer:
            await producer.send(b"1", deliver_after=60.0)
            await producer.send(b"2")
        async with client.subscribe("t", "shared", type="shared", config=early()) as shared:
            assert await receive(shared, 1) == [b"2"]
            assert await is_quiet(shared, 50)
            assert await receive(shared, 1) == [b"1"]
        async with client.subscribe("t", "exclusive", config=early()) as exclusive:
            assert await receive(exclusive, 2) == [b"1", b"2"]


async def test_the_chunks_of_a_value_go_to_one_consumer() -> None:
    async with embedded() as (pulsar, client):
        few = early(receiver_queue_size=1)
        async with (
            client.subscribe("t", "s", type="shared", config=few) as first,
            client.subscribe("t", "s", type="shared", config=few) as second,
            client.producer("t", PulsarProducerConfig(chunking=True, chunk_max_size=500)) as producer,
        ):
            for number in range(10):
                await producer.send(b"%d." % number + bytes(1000))
            found = {id(first): 0, id(second): 0}
            for _ in range(5):
                for consumer in (first, second):
                    async with asyncio.timeout(5):
                        consumer.ack(await consumer.receive())
                    found[id(consumer)] += 1
            assert pulsar.history.of("RedeliverUnacknowledgedMessages") == []


async def test_the_connection_of_a_client_that_does_not_answer_ends() -> None:
    async with embedded() as (pulsar, client):
        network = current_network()
        with network.source("10.0.0.9"):
            async with PulsarClient(pulsar.service_url) as lost, lost.subscribe("t", "s"):
                await asyncio.sleep(100)
                assert len(runtime_of(pulsar).subscription("t", "s").consumers) == 1, "it has answered"
                network.blackhole("10.0.0.9")
                await asyncio.sleep(65)
                assert runtime_of(pulsar).subscription("t", "s").consumers == ()
                network.heal()
        async with client.subscribe("t", "s"):
            assert pulsar.history.of("Pong") == [], "answers are no requests"


async def test_seek_and_subscriptions_that_are_not_durable() -> None:
    async with embedded() as (pulsar, client):
        await produce(client, "t", batching=False)
        async with client.subscribe("t", "s", config=early()) as consumer:
            assert await receive(consumer, 20) == VALUES
            await consumer.flush()
            await consumer.seek(EARLIEST)
            assert await receive(consumer, 20) == VALUES
            await consumer.seek(LATEST)
            assert await is_quiet(consumer)
            [last] = await consumer.last_message_ids()
            await consumer.seek(last)
            assert await receive(consumer, 1) in ([VALUES[-1]], [])
            await consumer.unsubscribe()
        assert pulsar.topic("t").subscriptions == ()
        async with client.subscribe("t", "x", config=early(durable=False)) as consumer:
            assert await receive(consumer, 20) == VALUES
        assert pulsar.topic("t").subscriptions == ()


async def test_a_subscription_is_created_before_its_consumers() -> None:
    async with embedded() as (pulsar, client):
        pulsar.create_topic("t", partitions=2)
        pulsar.create_subscription("t", "s")
        await produce(client, "t")
        async with client.subscribe("t", "s", type="shared") as consumer:
            assert len(await receive(consumer, 20)) == 20


async def test_what_a_consumer_has_goes_to_others_when_its_connection_ends() -> None:
    async with embedded() as (pulsar, client):
        await produce(client, "t")
        async with PulsarClient(pulsar.service_url) as other:
            async with other.subscribe("t", "s", type="shared", config=early()) as lost:
                taken = [await lost.receive() for _ in range(20)]
                assert len(taken) == 20
                async with client.subscribe("t", "s", type="shared", config=early()) as consumer:
                    assert await is_quiet(consumer)
                    await lost.aclose()
                    assert await receive(consumer, 20) == VALUES


# --- the order of what is written -----------------------------------------------------------------------------------------


def commands_of(client: WireClient) -> list[type[Command]]:
    """Return a list that grows with the kinds of the commands that arrive."""
    kinds: list[type[Command]] = []
    handle = client._handle

    def keep(frame: bytes) -> None:
        kinds.append(type(decode_frame(frame)[0]))  # type: ignore[arg-type]
        handle(frame)

    client._handle = keep  # type: ignore[method-assign]
    return kinds


async def test_a_receipt_comes_before_the_message() -> None:
    async with (
        EmbeddedPulsar(hosts=HOSTS[:1], port=6650, topics="t") as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        consumer = await client.subscribe("t", "s", SubType.SHARED)
        producer = await client.produce_to("t")
        kinds = commands_of(client)
        await producer.send(b"x")
        assert len(await consumer.received(1)) == 1
        assert kinds == [CommandSendReceipt, CommandMessage]


async def test_the_first_consumer_of_a_failover_subscription_begins_after_the_delay() -> None:
    """Pulsar waits also when no other consumer was active; until then the subscription is answered, and no more."""
    async with (
        EmbeddedPulsar(hosts=HOSTS[:1], port=6650, topics="t", failover_delay=7.0) as pulsar,
        WireClient.of(pulsar.service_url) as client,
    ):
        await (await client.produce_to("t")).send(b"x")
        kinds = commands_of(client)
        consumer = await client.subscribe("t", "s", SubType.FAILOVER)
        begin = asyncio.get_running_loop().time()
        await asyncio.sleep(6.5)
        assert kinds == [CommandLookupTopicResponse, CommandSuccess]
        await consumer.received(1)
        assert asyncio.get_running_loop().time() - begin >= 7.0
        assert kinds[2:4] == [CommandActiveConsumerChange, CommandMessage]

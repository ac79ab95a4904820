"""The work queue on scripted Pulsar brokers, in virtual time: what happens to deliveries when connections end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import AsyncGroupError, Delivery, WorkQueue
from asyncgroup.errors import ConfigError, ConsumerBusy
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import encode_send
from asyncgroup.pulsar.wire.metadata import MessageMetadata, SingleMessageMetadata
from asyncgroup.workqueue import AckOutcome
from asyncgroup.workqueue.delivery import release
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.scripted import BrokerConnection, ScriptedPulsar, in_turn, late, refuse

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"


@asynccontextmanager
async def brokers(*hosts: str) -> AsyncIterator[ScriptedPulsar]:
    async with ScriptedPulsar(*(hosts or ("10.0.0.1",))) as pulsar:
        yield pulsar


def queue_on(pulsar: ScriptedPulsar, *, source: dict[str, Any] | None = None, **settings: Any) -> WorkQueue:
    return WorkQueue(PulsarSource(pulsar.url, "billing", "orders", **(source or {})), **settings)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():
            await asyncio.sleep(0.05)


async def attached(pulsar: ScriptedPulsar) -> tuple[BrokerConnection, int]:
    """Return the connection of the queue's consumer, and its id there."""
    await until(lambda: any(one.consumers for one in pulsar.connections))
    (connection,) = (one for one in pulsar.connections if one.consumers)
    return connection, next(iter(connection.consumers))


async def reconnected(pulsar: ScriptedPulsar, connection: BrokerConnection) -> tuple[BrokerConnection, int]:
    """Cut the connection; return the next one of the queue's consumer, and its id there."""
    connection.cut()
    await until(lambda: connection not in pulsar.connections)
    return await attached(pulsar)


def acked(pulsar: ScriptedPulsar) -> list[int]:
    """Return the entries that were acknowledged, in order."""
    return [each.entry_id for ack in pulsar.commands(c.CommandAck) for each in ack.message_id]


@pytest.mark.parametrize(
    ("version", "settings", "is_refused"),
    [
        ("Pulsar Server3.3.9", {"mode": "key_shared"}, True),
        ("Pulsar Server3.3.9", {"mode": "key_shared", "allow_out_of_order": True}, False),
        ("Pulsar Server3.3.9", {"mode": "shared"}, False),
        ("Pulsar Server4.0.0", {"mode": "key_shared"}, False),
        ("Pulsar Server10.1", {"mode": "key_shared"}, False),
        ("of a proxy", {"mode": "key_shared"}, False),
        ("", {"mode": "key_shared"}, False),
    ],
)
async def test_keys_need_a_broker_that_keeps_their_order(
    version: str, settings: dict[str, Any], is_refused: bool
) -> None:
    async with brokers() as pulsar:
        pulsar.first.server_version = version
        queue = queue_on(pulsar, **settings)
        if not is_refused:
            async with queue:
                assert len(pulsar.commands(c.CommandSubscribe)) == 1
            return
        with pytest.raises(ConfigError) as raised:
            async with queue:
                pass
        assert pulsar.commands(c.CommandSubscribe) == []
        assert str(raised.value) == (
            "mode=<Mode.KEY_SHARED: 'key_shared'> is not allowed: 'Pulsar Server3.3.9' does not keep the order of a key after "
            "a nack, as brokers do since Pulsar 4.0 (PIP-379); use another mode, or allow_out_of_order=True"
        )


async def test_what_a_queue_subscribes_to() -> None:
    async with brokers() as pulsar:
        source = {"key_ranges": [(0, 99)], "consumer_name": "ann", "priority_level": 2, "durable": False}
        async with queue_on(pulsar, source=source, mode="key_shared", initial_position="earliest"):
            pass
        (found,) = pulsar.commands(c.CommandSubscribe)
        assert (found.topic, found.subscription, found.sub_type) == (TOPIC, "billing", 3)
        assert (found.consumer_name, found.priority_level, found.durable, found.initial_position) == (
            "ann",
            2,
            False,
            1,
        )
        assert found.key_shared_meta is not None
        assert [(each.start, each.end) for each in found.key_shared_meta.hash_ranges] == [(0, 99)]
        assert len(pulsar.commands(c.CommandCloseConsumer)) == 1


async def test_a_delivery_that_is_open_at_a_reconnect_is_the_only_one_of_its_message() -> None:
    """The broker gives all messages again: those that were not delivered are withdrawn before."""
    async with brokers() as pulsar, queue_on(pulsar) as queue:
        connection, consumer = await attached(pulsar)
        for number in range(3):
            connection.push_entry(consumer, b"%d" % number, entry_id=number)
        first = await queue.receive()
        connection, consumer = await reconnected(pulsar, connection)
        assert (await first.ack()) is AckOutcome.ACKED
        for number in range(3):
            connection.push_entry(consumer, b"%d" % number, entry_id=number)
        taken = [await queue.receive() for _ in range(2)]
        assert [(each.value, each.attempt) for each in taken] == [(b"1", 1), (b"2", 1)]
        for each in taken:
            await each.ack(durable=True)
        assert sorted(set(acked(pulsar))) == [0, 1, 2]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.receive(), 30)


async def test_a_message_whose_delivery_is_open_is_not_delivered_again() -> None:
    async with brokers() as pulsar, queue_on(pulsar) as queue:
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"a", entry_id=1)
        first = await queue.receive()
        connection, consumer = await reconnected(pulsar, connection)
        connection.push_entry(consumer, b"a", entry_id=1, redelivery_count=1)
        connection.push_entry(consumer, b"b", entry_id=2)
        assert (await queue.receive()).value == b"b"
        await first.nack(delay=5)
        await until(lambda: pulsar.commands(c.CommandRedeliverUnacknowledgedMessages))
        connection.push_entry(consumer, b"a", entry_id=1, redelivery_count=1)
        again = await queue.receive()
        assert (again.value, again.attempt) == (b"a", 2)
        assert await again.ack(durable=True) is AckOutcome.COMMITTED
        assert acked(pulsar) == [1]


async def test_a_delivery_that_fails_before_its_message_arrives_again_is_forgotten() -> None:
    """Another consumer may have the message, and the next ones of its key."""
    async with brokers() as pulsar, queue_on(pulsar, mode="key_shared", nack_backoff=5) as queue:
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"0", entry_id=0, partition_key="k")
        first = await queue.receive()
        connection, consumer = await reconnected(pulsar, connection)
        await first.nack()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.receive(), 30)
        connection.push_entry(consumer, b"1", entry_id=1, partition_key="k")
        await (await queue.receive()).ack()
        assert queue.statistics().partitions[0].lag == 0

        connection.push_entry(consumer, b"0", entry_id=0, partition_key="k")
        again = await queue.receive()
        assert (again.value, again.attempt) == (b"0", 2)
        await again.ack()


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
async def test_a_delivery_that_is_given_back_before_its_message_arrives_again_is_forgotten(mode: str) -> None:
    """It is neither done nor failed, and another consumer may have its message."""
    async with brokers() as pulsar, queue_on(pulsar, mode=mode) as queue:
        connection, consumer = await attached(pulsar)
        for number in range(2):
            connection.push_entry(consumer, b"%d" % number, entry_id=number, partition_key="k")
        first = await queue.receive()
        connection, consumer = await reconnected(pulsar, connection)
        release(first)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.receive(), 30)
        (partition,) = queue.statistics().partitions
        assert (partition.lag, partition.queued, partition.acquired) == (0, 0, 0)
        connection.push_entry(consumer, b"1", entry_id=1, partition_key="k")
        await (await queue.receive()).ack()

        connection.push_entry(consumer, b"0", entry_id=0, partition_key="k")
        again = await queue.receive()
        assert (again.value, again.attempt) == (b"0", 1)
        release(again)
        again = await queue.receive()
        assert (again.value, again.attempt) == (b"0", 1), "its message has arrived: it is this consumer's"
        await again.ack()


async def test_a_handler_that_goes_on_after_its_nack_forgets_a_message_that_is_not_its_own_any_more() -> None:
    nacked, goes_on = asyncio.Event(), asyncio.Event()
    seen: list[tuple[bytes | None, int]] = []

    async def handle(delivery: Delivery) -> None:
        seen.append((delivery.value, delivery.attempt))
        if len(seen) == 1:
            await delivery.nack(delay=1)
            nacked.set()
            await goes_on.wait()

    async with brokers() as pulsar, queue_on(pulsar, mode="key_shared") as queue:
        connection, consumer = await attached(pulsar)
        run = asyncio.create_task(queue.run(handle))
        connection.push_entry(consumer, b"0", entry_id=0, partition_key="k")
        await nacked.wait()
        connection, consumer = await reconnected(pulsar, connection)
        connection.push_entry(consumer, b"1", entry_id=1, partition_key="k")
        await asyncio.sleep(30)
        assert seen == [(b"0", 1)], "one record of a key at a time"
        goes_on.set()
        await until(lambda: acked(pulsar) == [1])
        await asyncio.sleep(30)
        assert seen == [(b"0", 1), (b"1", 1)]
        await queue.aclose()
        await run


async def test_numbers_of_failed_deliveries_survive_a_reconnect() -> None:
    async with brokers() as pulsar, queue_on(pulsar, nack_backoff=100) as queue:
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"a", entry_id=1)
        await (await queue.receive()).nack()
        connection, consumer = await reconnected(pulsar, connection)
        connection.push_entry(consumer, b"a", entry_id=1, redelivery_count=1)
        again = await queue.receive()
        assert (again.attempt, again.redelivery_count) == (2, 1)
        await again.ack()


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
async def test_deliveries_that_the_broker_counts(mode: str) -> None:
    """Those of other consumers; they are not added to those of this one."""
    async with brokers() as pulsar, queue_on(pulsar, mode=mode, nack_backoff=100) as queue:
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"a", entry_id=1, redelivery_count=2)
        first = await queue.receive()
        assert (first.attempt, first.redelivery_count) == (3, 2)
        await first.nack()
        for count, expected in ((0, 4), (3, 5), (9, 10)):
            connection, consumer = await reconnected(pulsar, connection)
            connection.push_entry(consumer, b"a", entry_id=1, redelivery_count=count)
            again = await queue.receive()
            assert again.attempt == expected
            await again.nack()


async def test_by_the_brokers_count_alone_no_message_is_a_dead_letter() -> None:
    """A count may be of requests that follow no failure."""
    seen: list[int] = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        if len(seen) > 1:
            raise ValueError("no such order")

    async with brokers() as pulsar, queue_on(pulsar, dead_letter=2) as queue:
        connection, consumer = await attached(pulsar)
        run = asyncio.create_task(queue.run(handle))
        connection.push_entry(consumer, b"good", entry_id=1, redelivery_count=7)
        await until(lambda: acked(pulsar) == [1])
        connection.push_entry(consumer, b"bad", entry_id=2, redelivery_count=7)
        await until(lambda: acked(pulsar) == [1, 2])
        (stored,) = pulsar.stored[f"{TOPIC}-billing-DLQ"]
        assert (stored.body, seen) == (b"bad", [3, 3])
        assert stored.metadata.properties["__dlq.errors.delivery.count"] == "3"
        await queue.aclose()
        await run


async def test_the_broker_counts_deliveries_of_a_copy() -> None:
    """They are added to those of its original."""
    async with brokers() as pulsar, queue_on(pulsar, retry=True, dead_letter=5) as queue:
        connection, consumer = await attached_to(pulsar, f"{TOPIC}-billing-RETRY")
        for entry, (earlier, count) in enumerate([(2, 0), (2, 1), (2, 9), (9, 9)]):
            properties = {"RECONSUMETIMES": str(earlier), "REAL_SUBSCRIPTION": "billing"}
            connection.push_entry(
                consumer, b"a", entry_id=entry, redelivery_count=count, properties=properties
            )
        taken = [await queue.receive() for _ in range(4)]
        found = sorted((each.record.message_id.entry_id, each.attempt) for each in taken)  # type: ignore[attr-defined]
        assert found == [(0, 3), (1, 4), (2, 6), (3, 10)]
        for each in taken:
            await each.ack()


async def test_the_order_of_a_key_survives_a_nack_and_a_reconnect() -> None:
    async with brokers() as pulsar, queue_on(pulsar, mode="key_shared", nack_backoff=5) as queue:
        connection, consumer = await attached(pulsar)
        for number in range(3):
            connection.push_entry(consumer, b"%d" % number, entry_id=number, partition_key="k")
        await (await queue.receive()).nack()
        connection, consumer = await reconnected(pulsar, connection)
        for number in range(3):
            connection.push_entry(consumer, b"%d" % number, entry_id=number, partition_key="k")
        seen = []
        for _ in range(3):
            delivery = await queue.receive()
            seen.append((delivery.value, delivery.attempt))
            await delivery.ack()
        assert seen == [(b"0", 2), (b"1", 1), (b"2", 1)]


async def test_permits_follow_what_is_delivered() -> None:
    async with brokers() as pulsar, queue_on(pulsar, receiver_queue=10) as queue:
        connection, consumer = await attached(pulsar)
        await until(lambda: connection.permits[consumer] == 10)
        for number in range(10):
            connection.push_entry(consumer, b"%d" % number, entry_id=number)
        taken = [await queue.receive() for _ in range(4)]
        await asyncio.sleep(1)
        assert connection.permits[consumer] == 0, "most of them wait"
        taken += [await queue.receive() for _ in range(4)]
        await until(lambda: connection.permits[consumer] > 0)
        assert connection.permits[consumer] + queue.statistics().partitions[0].queued <= 10
        for each in taken:
            await each.ack()


async def test_without_a_receiver_queue_a_message_is_asked_for_by_who_waits() -> None:
    async with brokers() as pulsar, queue_on(pulsar, receiver_queue=0) as queue:
        connection, consumer = await attached(pulsar)
        await asyncio.sleep(10)
        assert pulsar.commands(c.CommandFlow) == []
        receiving = asyncio.create_task(queue.receive())
        await until(lambda: connection.permits[consumer] == 1)
        connection.push_entry(consumer, b"a", entry_id=1)
        await (await receiving).ack()
        await asyncio.sleep(10)
        assert connection.permits[consumer] == 0


async def test_a_consumer_that_is_no_longer_active_keeps_only_open_deliveries() -> None:
    async with brokers() as pulsar, queue_on(pulsar, mode="failover", name="ann") as queue:
        connection, consumer = await attached(pulsar)
        connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=True))
        for number in range(3):
            connection.push_entry(consumer, b"%d" % number, entry_id=number)
        first = await queue.receive()
        connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=False))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.receive(), 30)
        await first.ack(durable=True)
        assert acked(pulsar) == [0]


async def test_a_consumer_that_is_active_again_delivers_what_was_withdrawn() -> None:
    """Of a batch as well, whose messages it had before."""
    async with brokers() as pulsar, queue_on(pulsar, mode="failover", name="ann") as queue:
        connection, consumer = await attached(pulsar)
        connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=True))
        connection.push_entry(consumer, b"a", b"b", entry_id=0)
        connection.push_entry(consumer, b"c", entry_id=1)
        assert (await queue.receive()).value == b"a"
        connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=False))
        connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=True))
        connection.push_entry(consumer, b"a", b"b", entry_id=0)
        connection.push_entry(consumer, b"c", entry_id=1)
        assert [(await queue.receive()).value for _ in range(2)] == [b"b", b"c"]


async def test_the_permits_of_what_another_consumer_gets_return() -> None:
    async with brokers() as pulsar, queue_on(pulsar, mode="failover", receiver_queue=10) as queue:
        connection, consumer = await attached(pulsar)
        await until(lambda: connection.permits[consumer] == 10)
        for _ in range(3):
            connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=True))
            for number in range(10):
                connection.push_entry(consumer, b"%d" % number, entry_id=number)
            await asyncio.sleep(1)
            assert (connection.permits[consumer], queue.statistics().partitions[0].queued) == (0, 10)
            connection.push(c.CommandActiveConsumerChange(consumer_id=consumer, is_active=False))
            await until(lambda: connection.permits[consumer] == 10)
            assert queue.statistics().partitions[0].queued == 0


async def test_another_consumer_holds_the_subscription() -> None:
    async with brokers() as pulsar:
        pulsar.script[c.CommandSubscribe] = refuse(5)
        with pytest.raises(ConsumerBusy, match="billing"):
            async with queue_on(pulsar, mode="exclusive"):
                pass


async def test_a_topic_that_is_deleted_ends_the_queue() -> None:
    async with brokers() as pulsar, queue_on(pulsar) as queue:
        connection, _ = await attached(pulsar)
        receiving = asyncio.create_task(queue.receive())
        await asyncio.sleep(1)
        pulsar.script[c.CommandSubscribe] = refuse(11)
        connection.cut()
        with pytest.raises(AsyncGroupError, match="TopicNotFound"):
            await receiving
        assert queue.health().fatal is not None


async def test_a_partition_that_is_added_is_read_from_its_beginning() -> None:
    config = PulsarConfig(partitions_update_interval=10)
    async with brokers() as pulsar:
        pulsar.set_partitions("orders", 1)
        async with queue_on(pulsar, source={"config": config}) as queue:
            pulsar.set_partitions("orders", 2)
            await until(lambda: len(pulsar.commands(c.CommandSubscribe)) == 2)
            first, second = pulsar.commands(c.CommandSubscribe)
            assert (first.topic, first.initial_position) == (f"{TOPIC}-partition-0", 0)
            assert (second.topic, second.initial_position) == (f"{TOPIC}-partition-1", 1)
            connection = pulsar.connection_of(consumer=second.consumer_id)
            connection.push_entry(second.consumer_id, b"new", entry_id=1)
            delivery = await queue.receive()
            assert (delivery.value, delivery.record.partition) == (b"new", 1)
            await delivery.ack()


async def test_a_dead_letter_is_acknowledged_after_the_receipt_of_its_copy() -> None:
    async def handle(delivery: Delivery) -> None:
        raise ValueError("no such order")

    async with (
        brokers() as pulsar,
        queue_on(pulsar, mode="key_shared", dead_letter=1, nack_backoff=0) as queue,
    ):
        held: list[Any] = []
        pulsar.script[c.CommandSend] = in_turn(held.append, lambda call: call.default())
        connection, consumer = await attached(pulsar)
        run = asyncio.create_task(queue.run(handle))
        connection.push_entry(consumer, b"bad", entry_id=1, partition_key="k", event_time=5)
        await until(lambda: held)
        await asyncio.sleep(5)
        assert acked(pulsar) == []
        held[0].default()
        await until(lambda: acked(pulsar) == [1])
        (stored,) = pulsar.stored[f"{TOPIC}-billing-DLQ"]
        assert stored.body == b"bad"
        assert (stored.metadata.partition_key, stored.metadata.event_time) == ("k", 5)
        assert stored.metadata.properties == {
            "REAL_TOPIC": TOPIC,
            "ORIGIN_MESSAGE_ID": "7:1:-1",
            "ORIGIN_MESSAGE_IDY_TIME": "7:1:-1",
            "REAL_SUBSCRIPTION": "billing",
            "__dlq.errors.topic": TOPIC,
            "__dlq.errors.group": "billing",
            "__dlq.errors.delivery.count": "2",
            "__dlq.errors.message": "ValueError: no such order",
        }
        await queue.aclose()
        await run


async def test_a_subscription_is_created_with_the_dead_letter_topic() -> None:
    source = {"dead_letter_subscription": "operators"}
    async with brokers() as pulsar, queue_on(pulsar, source=source, dead_letter=True, retry=True) as queue:
        connection, consumer = await attached_to(pulsar, TOPIC)
        connection.push_entry(consumer, b"a", entry_id=1)
        connection.push_entry(consumer, b"b", entry_id=2)
        await (await queue.receive()).reject("wrong currency")
        await (await queue.receive()).reconsume_later(1)
        found = {each.topic: each.initial_subscription_name for each in pulsar.commands(c.CommandProducer)}
        assert found == {f"{TOPIC}-billing-DLQ": "operators", f"{TOPIC}-billing-RETRY": None}


async def test_a_copy_that_cannot_be_written_is_tried_again() -> None:
    async with brokers() as pulsar, queue_on(pulsar, retry=True) as queue:
        pulsar.script[c.CommandProducer] = in_turn(refuse(4), lambda call: call.default())
        connection, consumer = await attached_to(pulsar, TOPIC)
        connection.push_entry(consumer, b"a", entry_id=1)
        assert await (await queue.receive()).reconsume_later(7)
        (stored,) = pulsar.stored[f"{TOPIC}-billing-RETRY"]
        assert (stored.metadata.properties["RECONSUMETIMES"], stored.metadata.properties["DELAY_TIME"]) == (
            "1",
            "7000",
        )
        assert stored.metadata.deliver_at_time is not None


async def attached_to(pulsar: ScriptedPulsar, topic: str) -> tuple[BrokerConnection, int]:
    """Return the connection of the consumer of a topic, and its id."""
    found = next(each for each in pulsar.commands(c.CommandSubscribe) if each.topic == topic)
    return pulsar.connection_of(consumer=found.consumer_id), found.consumer_id


async def test_a_close_sends_the_last_acknowledgements_before_it_leaves() -> None:
    async with brokers() as pulsar:
        async with queue_on(pulsar, ack_group_time=1000.0) as queue:
            connection, consumer = await attached(pulsar)
            connection.push_entry(consumer, b"a", entry_id=1)
            connection.push_entry(consumer, b"b", entry_id=2)
            await (await queue.receive()).ack()
        kinds = [type(each.command) for each in pulsar.received]
        assert kinds.index(c.CommandAck) < kinds.index(c.CommandCloseConsumer)
        assert acked(pulsar) == [1]


async def test_a_seek_loses_open_deliveries() -> None:
    async with brokers() as pulsar, queue_on(pulsar) as queue:
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"a", entry_id=1)
        first = await queue.receive()
        await queue.seek("earliest")
        assert await first.ack() is AckOutcome.LOST
        connection, consumer = await attached(pulsar)
        connection.push_entry(consumer, b"a", entry_id=1)
        await (await queue.receive()).ack(durable=True)
        assert acked(pulsar) == [1]
        (seek,) = pulsar.commands(c.CommandSeek)
        assert seek.message_id is not None


async def test_a_message_of_a_batch_that_cannot_be_read_is_reported_and_acknowledged() -> None:
    async with brokers() as pulsar, queue_on(pulsar) as queue:
        errors = queue.errors()
        connection, consumer = await attached(pulsar)
        good = SingleMessageMetadata(payload_size=1).encode()
        bad = good + bytes.fromhex("0a030a0161")  # a property without a value
        body = b"".join(
            struct.pack(">I", len(head)) + head + value for head, value in ((bad, b"a"), (good, b"b"))
        )
        head = MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2
        ).encode()
        command = c.CommandMessage(consumer_id=consumer, message_id=c.MessageIdData(ledger_id=7, entry_id=3))
        connection.write(b"".join(encode_send(command, head, body)))  # type: ignore[arg-type]  # the frame is the same
        delivery = await queue.receive()
        assert delivery.value == b"b"
        await delivery.ack(durable=True)
        assert "7:3:-1:0 cannot be read" in str(await anext(errors))
        assert acked(pulsar)[-1] == 3
        await errors.aclose()


async def test_partitions_of_all_topics_share_the_receiver_queue() -> None:
    async with brokers() as pulsar:
        source = PulsarSource(pulsar.url, "billing", ["orders", "bills"])
        async with WorkQueue(source, receiver_queue_total=10):
            await until(lambda: len(pulsar.commands(c.CommandFlow)) == 2)
            assert [flow.message_permits for flow in pulsar.commands(c.CommandFlow)] == [5, 5]


async def test_a_partition_that_cannot_be_moved_stops_no_other() -> None:
    async with brokers() as pulsar:
        pulsar.set_partitions("orders", 2)
        async with queue_on(pulsar) as queue:
            pulsar.script[c.CommandSeek] = in_turn(refuse(22), late(5))
            with pytest.raises(AsyncGroupError, match="NotAllowedError"):
                await queue.seek("earliest")
            first, second = (each.consumer_id for each in pulsar.commands(c.CommandSubscribe))
            for number in (first, second):
                pulsar.connection_of(consumer=number).push_entry(number, b"%d" % number, entry_id=9)
            found = {(await queue.receive()).value for _ in range(2)}
            assert found == {b"%d" % first, b"%d" % second}

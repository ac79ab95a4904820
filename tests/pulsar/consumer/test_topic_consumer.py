"""PulsarTopicConsumer against a model of the broker: receiving, acknowledgements, redelivery, reconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from asyncgroup.errors import ClosedError, ConfigError, RequestTimedOut, UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.wire.commands import (
    CommandAck,
    CommandCloseConsumer,
    CommandFlow,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
)
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId
from tests.pulsar.consumer.broker import Broker


@asynccontextmanager
async def consuming(
    broker: Broker, kind: str = "shared", **config: Any
) -> AsyncIterator[PulsarTopicConsumer]:
    """A consumer of topic t, from its first message on."""
    settings = PulsarConsumerConfig(**{"initial_position": "earliest", **config})
    async with (
        PulsarClient(broker.url) as client,
        client.subscribe("t", "s", type=kind, config=settings) as consumer,
    ):
        yield consumer


async def receive(consumer: PulsarTopicConsumer, count: int) -> list[PulsarMessage]:
    return [await consumer.receive() for _ in range(count)]


def values(messages: list[PulsarMessage]) -> list[bytes | None]:
    return [message.value for message in messages]


async def nothing_arrives(consumer: PulsarTopicConsumer, seconds: float = 300.0) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await consumer.receive()
    except TimeoutError:
        return True
    return False


# --- receiving ----------------------------------------------------------------------------------------------------------


async def test_messages_are_received_and_acknowledged(broker: Broker) -> None:
    broker.add("t", b"1")
    broker.add("t", b"2", b"3")
    async with consuming(broker) as consumer:
        found = await receive(consumer, 3)
        assert values(found) == [b"1", b"2", b"3"]
        assert found[2].message_id == MessageId(1, 1, -1, 1)
        assert (found[0].topic, found[0].partition) == ("persistent://public/default/t", -1)
        for message in found[:2]:
            consumer.ack(message)
        await consumer.flush()
        assert broker.subscription("t").acked == {0}
        assert broker.subscription("t").unacked == {1: 0b10}
        consumer.ack(found[2])
    assert broker.subscription("t").acked == {0, 1}, "flushed at the close"
    assert broker.of(CommandCloseConsumer)
    assert broker.subscription("t").consumers == []


async def test_the_request_has_what_is_configured(broker: Broker) -> None:
    async with consuming(
        broker,
        "key_shared",
        consumer_name="me",
        priority_level=2,
        key_ranges=[(0, 10), (20, 65_535)],
        allow_out_of_order=True,
        properties={"a": "b"},
        subscription_properties={"c": "d"},
        receiver_queue_size=7,
    ):
        [command] = broker.of(CommandSubscribe)
    assert (command.sub_type, command.consumer_name, command.priority_level, command.durable) == (
        3,
        "me",
        2,
        True,
    )
    assert (command.metadata, command.subscription_properties) == ({"a": "b"}, {"c": "d"})
    assert (command.initial_position, command.start_message_id, command.consumer_epoch) == (1, None, 0)
    meta = command.key_shared_meta
    assert (meta.key_shared_mode, meta.allow_out_of_order_delivery) == (1, True)
    assert [(each.start, each.end) for each in meta.hash_ranges] == [(0, 10), (20, 65_535)]
    assert [flow.message_permits for flow in broker.of(CommandFlow)] == [7]


async def test_permits_follow_the_queue(broker: Broker) -> None:
    async with consuming(broker, receiver_queue_size=10) as consumer:
        for number in range(100):
            broker.add("t", b"%d" % number)
        await asyncio.sleep(1)
        assert consumer.queued == 10
        assert values(await receive(consumer, 100)) == [b"%d" % number for number in range(100)]
        await asyncio.sleep(1)
        assert sum(flow.message_permits for flow in broker.of(CommandFlow)) == 110


async def test_the_queue_grows_when_the_size_of_messages_is_known(broker: Broker) -> None:
    """The first permits are for messages of 5 MiB, which a queue of 64 MiB has room for."""
    async with consuming(broker) as consumer:
        await asyncio.sleep(1)
        assert [flow.message_permits for flow in broker.of(CommandFlow)] == [12]
        for number in range(2000):
            broker.add("t", b"%d" % number)
        await asyncio.sleep(1)
        assert consumer.queued == 1000
        assert [flow.message_permits for flow in broker.of(CommandFlow)] == [12, 1000 - 12]
        assert len(await consumer.receive_batch(None)) == 1000


@pytest.mark.parametrize("size", [1 << 20, 5 << 20])
async def test_a_queue_of_large_messages_stays_within_its_bytes(broker: Broker, size: int) -> None:
    async with consuming(broker) as consumer:
        for _ in range(100):
            broker.add("t", bytes(size))
        await asyncio.sleep(1)
        assert consumer.queued == (64 << 20) // size


async def test_without_a_queue_a_message_is_pushed_for_each_receive(broker: Broker) -> None:
    for number in range(3):
        broker.add("t", b"%d" % number)
    broker.add("t", b"3", b"4")
    async with consuming(broker, receiver_queue_size=0) as consumer:
        await asyncio.sleep(1)
        assert broker.consumer().permits == 0
        receiving = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        assert {(await each).value for each in receiving} == {b"0", b"1"}
        await asyncio.sleep(1)
        assert consumer.queued == 0
        waits = asyncio.create_task(nothing_arrives(consumer, 5))
        await asyncio.sleep(1)
        assert not await waits, "the next one"
        assert values(await receive(consumer, 2)) == [b"3", b"4"], "of a batch all are pushed"
        task = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        broker.cut()
        await asyncio.sleep(1)
        assert await task, "asked for again on the next connection"


async def test_a_cancelled_receive_loses_nothing(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        for turns in range(12):
            task = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.5)
            broker.add("t", b"%d" % turns)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                found = await task
            except asyncio.CancelledError:
                found = await consumer.receive()
            assert found.value == b"%d" % turns


async def test_batches_are_received(broker: Broker) -> None:
    for number in range(10):
        broker.add("t", b"%d" % number)
    async with consuming(broker) as consumer:
        assert values(await consumer.receive_batch(max_messages=4)) == [b"0", b"1", b"2", b"3"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert len(await consumer.receive_batch(max_wait=0.3)) == 6
        assert loop.time() - began == pytest.approx(0.3, abs=0.01)
        broker.add("t", b"x" * 100)
        broker.add("t", b"y" * 100)
        await asyncio.sleep(1)
        assert len(await consumer.receive_batch(max_bytes=50)) == 1, (
            "the first one is returned, however large"
        )
        task = asyncio.create_task(consumer.receive_batch(max_messages=3, max_wait=None))
        await asyncio.sleep(60)
        assert not task.done()
        task.cancel()
        await asyncio.sleep(1)
        task = asyncio.create_task(consumer.receive_batch(max_messages=2, max_wait=None))
        broker.add("t", b"z")
        assert values(await task) == [b"y" * 100, b"z"]


async def test_a_full_queue_ends_the_wait_for_a_batch(broker: Broker) -> None:
    for number in range(10):
        broker.add("t", b"%d" % number)
    async with consuming(broker, receiver_queue_size=3) as consumer:
        assert len(await consumer.receive_batch(max_wait=None)) == 3


async def test_a_paused_consumer_asks_for_nothing_also_after_a_reconnect(broker: Broker) -> None:
    broker.add("t", b"1")
    async with consuming(broker, start_paused=True) as consumer:
        assert await nothing_arrives(consumer)
        broker.cut()
        assert await nothing_arrives(consumer)
        consumer.resume()
        assert (await consumer.receive()).value == b"1"
        consumer.pause()


@pytest.mark.parametrize("start_paused", [False, True])
async def test_new_partitions_are_paused_as_the_others(broker: Broker, *, start_paused: bool) -> None:
    """As in Java's `MultiTopicsConsumerImpl`, whose `paused` is that of new consumers."""
    broker.partitions["t"] = 1
    async with consuming(broker, start_paused=start_paused) as consumer:
        if start_paused:
            consumer.resume()
            broker.partitions["t"] = 2
            broker.add("t-partition-1", b"1")
            assert (await consumer.receive()).value == b"1"
        consumer.pause()
        broker.partitions["t"] = 3
        broker.add("t-partition-2", b"2")
        assert await nothing_arrives(consumer)
        consumer.resume()
        assert (await consumer.receive()).value == b"2"


async def test_iteration_ends_with_the_consumer(broker: Broker) -> None:
    broker.add("t", b"1")
    broker.add("t", b"2")
    found = []
    async with consuming(broker) as consumer:
        async for message in consumer:
            found.append(message.value)
            consumer.ack(message)
            if len(found) == 2:
                asyncio.get_running_loop().call_later(1, lambda: asyncio.ensure_future(consumer.aclose()))
    assert found == [b"1", b"2"]
    with pytest.raises(ClosedError):
        await consumer.receive()
    with pytest.raises(ClosedError):
        consumer.ack(message)
    assert broker.subscription("t").acked == {0, 1}


# --- acknowledgements ---------------------------------------------------------------------------------------------------


async def test_acknowledgements_are_sent_in_groups(broker: Broker) -> None:
    for number in range(20):
        broker.add("t", b"%d" % number)
    async with consuming(broker, ack_group_size=15) as consumer:
        for message in await receive(consumer, 20):
            consumer.ack(message)
        await asyncio.sleep(0.05)
        assert [len(ack.message_id) for ack in broker.of(CommandAck)] == [15]
        await asyncio.sleep(0.1)
        assert [len(ack.message_id) for ack in broker.of(CommandAck)] == [15, 5]
    async with consuming(broker, ack_group_time=0) as consumer:
        broker.add("t", b"now")
        consumer.ack(await consumer.receive())
        await asyncio.sleep(0.01)
        assert 20 in broker.subscription("t").acked


async def test_cumulative_acknowledgements(broker: Broker) -> None:
    for number in range(3):
        broker.add("t", b"%d" % number, b"%d+" % number)
    async with consuming(broker, "exclusive") as consumer:
        found = await receive(consumer, 6)
        consumer.ack_cumulative(found[2])
        await consumer.flush()
        assert (broker.subscription("t").acked, broker.subscription("t").unacked) == ({0}, {1: 0b10})
        consumer.ack_cumulative(found[5])
    assert broker.subscription("t").acked == {0, 1, 2}
    async with consuming(broker, "shared") as consumer:
        with pytest.raises(UsageError):
            consumer.ack_cumulative(found[0])


async def test_acknowledgements_that_die_with_a_connection_are_sent_again(broker: Broker) -> None:
    broker.add("t", b"1")
    broker.add("t", b"2")
    async with consuming(broker) as consumer:
        found = await receive(consumer, 2)
        broker.holds_acks = True
        consumer.ack(found[0])
        flushing = asyncio.create_task(consumer.flush())
        await asyncio.sleep(1)
        consumer.ack(found[1])
        broker.cut()
        broker.holds_acks = False
        await flushing
        assert broker.subscription("t").acked == {0, 1}
        assert await nothing_arrives(consumer), "neither comes again"


async def test_refused_acknowledgements_raise_and_are_sent_again(broker: Broker) -> None:
    broker.add("t", b"1")
    codes = [1, None]
    broker.refuse_ack = lambda _: codes.pop(0)
    async with consuming(broker) as consumer:
        consumer.ack(await consumer.receive())
        with pytest.raises(PulsarServerError, match="MetadataError"):
            await consumer.flush()
        await consumer.flush()
        assert broker.subscription("t").acked == {0}


async def test_refused_acknowledgements_are_sent_again_without_further_calls(broker: Broker) -> None:
    broker.add("t", b"1")
    codes = [1, 1, None]
    broker.refuse_ack = lambda _: codes.pop(0)
    async with consuming(broker) as consumer:
        consumer.ack(await consumer.receive())
        await asyncio.sleep(3)
        assert broker.subscription("t").acked == {0}


async def test_close_fails_callers_of_flush(broker: Broker) -> None:
    broker.add("t", b"1")
    broker.holds_acks = True
    async with consuming(broker, close_timeout=1) as consumer:
        consumer.ack(await consumer.receive())
        flushing = asyncio.create_task(consumer.flush())
        await asyncio.sleep(1)
    with pytest.raises(ClosedError):
        await flushing


# --- redelivery ---------------------------------------------------------------------------------------------------------


async def test_a_negative_acknowledgement_delivers_one_message_of_a_batch_again(broker: Broker) -> None:
    broker.add("t", b"0", b"1", b"2")
    async with consuming(broker) as consumer:
        loop = asyncio.get_running_loop()
        found = await receive(consumer, 3)
        consumer.ack(found[0])
        consumer.nack(found[1], 5)
        began = loop.time()
        again = await consumer.receive()
        assert 5 <= loop.time() - began < 5.1
        assert (again, again.redelivery_count) == (found[1], 1)
        assert await nothing_arrives(consumer), "the last one is still with its receiver"
        consumer.ack(again)
        consumer.ack(found[2])
        await consumer.flush()
        assert broker.subscription("t").acked == {0}


async def test_a_message_that_is_acknowledged_in_time_does_not_come_again(broker: Broker) -> None:
    broker.add("t", b"0")
    async with consuming(broker, nack_delay=5) as consumer:
        message = await consumer.receive()
        consumer.nack(message)
        await asyncio.sleep(4)
        consumer.ack(message)
        assert await nothing_arrives(consumer)
        assert not broker.of(CommandRedeliverUnacknowledgedMessages)


async def test_a_delay_also_holds_over_a_reconnect(broker: Broker) -> None:
    broker.add("t", b"0")
    async with consuming(broker) as consumer:
        loop = asyncio.get_running_loop()
        consumer.nack(await consumer.receive(), 50)
        began = loop.time()
        await asyncio.sleep(10)
        broker.cut()
        assert (await consumer.receive()).value == b"0"
        assert 50 <= loop.time() - began < 50.1


async def test_after_a_reconnect_only_what_has_arrived_is_asked_for(broker: Broker) -> None:
    """The broker pushes everything again: a request for what is on its way would deliver it twice."""
    broker.add("t", b"0")
    async with consuming(broker) as consumer:
        consumer.nack(await consumer.receive(), 50)
        consumer.pause()
        broker.cut()
        await asyncio.sleep(60)
        consumer.resume()
        consumer.ack(await consumer.receive())
        assert await nothing_arrives(consumer)
        assert not broker.of(CommandRedeliverUnacknowledgedMessages)


async def test_a_delay_also_holds_for_a_message_that_is_queued_again(broker: Broker) -> None:
    broker.add("t", b"0")
    async with consuming(broker) as consumer:
        message = await consumer.receive()
        broker.cut()
        await asyncio.sleep(10)
        consumer.nack(message, 50)
        began = asyncio.get_running_loop().time()
        again = await consumer.receive()
        assert 50 <= asyncio.get_running_loop().time() - began < 50.1
        assert again.redelivery_count == 1
        consumer.ack(again)
        assert await nothing_arrives(consumer)


async def test_in_order_everything_comes_again(broker: Broker) -> None:
    for number in range(5):
        broker.add("t", b"%d" % number)
    async with consuming(broker, "failover", receiver_queue_size=4) as consumer:
        first, second, _ = await receive(consumer, 3)
        consumer.ack(first)
        consumer.nack(second, 0)
        await asyncio.sleep(1)
        assert values(await receive(consumer, 4)) == [b"1", b"2", b"3", b"4"]
        [command] = broker.of(CommandRedeliverUnacknowledgedMessages)
        assert (list(command.message_ids), command.consumer_epoch) == ([], 1)
        broker.cut()
        await receive(consumer, 4)
        assert broker.of(CommandSubscribe)[-1].consumer_epoch == 1


async def test_after_a_reconnect_what_is_not_acknowledged_comes_again(broker: Broker) -> None:
    broker.add("t", b"0", b"1", b"2")
    broker.add("t", b"3")
    async with consuming(broker) as consumer:
        found = await receive(consumer, 2)
        consumer.ack(found[0])
        broker.cut()
        await asyncio.sleep(1)
        again = await receive(consumer, 3)
        assert values(again) == [b"1", b"2", b"3"]
        consumer.ack(found[1])
        for message in again[1:]:
            consumer.ack(message)
        await consumer.flush()
        assert broker.subscription("t").acked == {0, 1}
        broker.unload("t")
        assert await nothing_arrives(consumer)
        broker.add("t", b"4")
        assert (await consumer.receive()).value == b"4"


# --- seeks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_seek(broker: Broker, kind: str, *, holds: bool) -> None:
    for number in range(4):
        broker.add("t", b"%da" % number, b"%db" % number, publish_time=1000 + number)
    async with consuming(broker, kind, receiver_queue_size=5) as consumer:
        broker.holds_seeks = holds

        async def seek(target: Any, *, inclusive: bool = True) -> None:
            seeking = asyncio.create_task(consumer.seek(target, inclusive=inclusive))
            await asyncio.sleep(3)
            if holds:
                assert not seeking.done()
                assert consumer.queued == 0, "nothing is delivered before the answer"
                with pytest.raises(UsageError):
                    await consumer.seek(EARLIEST)
                broker.answer_seeks()
            await seeking

        found = await receive(consumer, 3)
        consumer.ack(found[0])
        consumer.ack(found[2])
        await consumer.flush()
        await seek(EARLIEST)
        consumer.ack(found[1])
        assert values(await receive(consumer, 8))[:4] == [b"0a", b"0b", b"1a", b"1b"], (
            "also what was acknowledged"
        )
        await seek(found[1])
        assert values(await receive(consumer, 2)) == [b"0b", b"1a"]
        await seek(found[1].message_id, inclusive=False)
        assert values(await receive(consumer, 1)) == [b"1a"]
        await seek(1002)
        again = await receive(consumer, 4)
        assert values(again) == [b"2a", b"2b", b"3a", b"3b"]
        for message in again:
            consumer.ack(message)
        await consumer.flush()
        assert {2, 3} <= broker.subscription("t").acked
        await seek(LATEST)
        assert await nothing_arrives(consumer)
        broker.add("t", b"new")
        assert (await consumer.receive()).value == b"new"


def add_chunks(broker: Broker, *parts: tuple[str, int, bytes]) -> None:
    """Store chunks of values with two chunks each: uuid, number and bytes."""
    for uuid, number, part in parts:
        broker.add(
            "t", part, uuid=uuid, chunk_id=number, num_chunks_from_msg=2, total_chunk_msg_size=4, uncompressed_size=4
        )  # fmt: skip


@pytest.mark.parametrize("kept", [True, False])
async def test_a_seek_into_a_batch_of_a_topic_that_moves(broker: Broker, kept: bool) -> None:
    """The consumer leaves out what is before, as long as the broker does not."""
    broker.keeps_acks_in_batches = kept
    broker.add("t", b"0", b"1", b"2", b"3", batch=True)
    broker.add("t", b"4")
    async with consuming(broker) as consumer:
        found = await receive(consumer, 5)
        await consumer.seek(found[2])
        for _ in range(2):
            assert values(await receive(consumer, 3)) == [b"2", b"3", b"4"]
            broker.unload("t")
            await asyncio.sleep(5)
        again = await receive(consumer, 3)
        assert values(again) == [b"2", b"3", b"4"]
        for message in again:
            consumer.ack(message)
        await consumer.flush()
    assert broker.subscription("t").acked == {0, 1}


@pytest.mark.parametrize("form", ["message", "id", "bytes"])
async def test_a_seek_to_a_value_in_chunks(broker: Broker, form: str) -> None:
    """Its id has that of its first chunk; a value whose chunks are between its own is not lost."""
    add_chunks(broker, ("a", 0, b"a0"), ("b", 0, b"b0"), ("a", 1, b"a1"), ("b", 1, b"b1"))
    async with consuming(broker) as consumer:
        found = await receive(consumer, 2)
        assert values(found) == [b"a0a1", b"b0b1"]
        target: Any = found[0]
        if form != "message":
            target = found[0].message_id
            assert target == MessageId(1, 2)
        if form == "bytes":
            target = MessageId.from_bytes(bytes(target))
        await consumer.seek(LATEST)
        await consumer.seek(target)
        assert values(await receive(consumer, 2)) == [b"a0a1", b"b0b1"]
        await consumer.seek(LATEST)
        await consumer.seek(target, inclusive=False)
        [after] = await receive(consumer, 1)
        assert after.value == b"b0b1"
        consumer.ack(after)
        assert await nothing_arrives(consumer)
    assert broker.subscription("t").acked == {0, 1, 2, 3}


async def test_a_subscription_that_is_not_durable_continues_at_the_first_chunk(broker: Broker) -> None:
    add_chunks(broker, ("a", 0, b"a0"), ("a", 1, b"a1"), ("b", 0, b"b0"), ("b", 1, b"b1"))
    async with consuming(broker, "exclusive", durable=False) as consumer:
        await asyncio.sleep(1)
        assert consumer.queued == 2
        broker.cut()
        first, second = await receive(consumer, 2)
        assert values([first, second]) == [b"a0a1", b"b0b1"]
        broker.cut()
        assert await nothing_arrives(consumer)
    config = {"durable": False, "initial_position": second.message_id}
    async with consuming(broker, "exclusive", start_inclusive=True, **config) as consumer:
        assert values(await receive(consumer, 1)) == [b"b0b1"]


async def test_a_seek_to_a_message_of_another_topic(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """An id after the last message is refused, and nothing is moved; a seek that is made logs nothing."""
    async with consuming(broker) as consumer:
        with pytest.raises(
            ConfigError, match=r"target='1:0:-1' is not allowed: a message of .*/t; it is empty"
        ):
            await consumer.seek(MessageId(1, 0))
        broker.add("t", b"a")
        broker.add("t", b"b")
        for foreign in (MessageId(1, 2), MessageId(9, 0)):
            with pytest.raises(ConfigError, match="the last one is 1:1:-1"):
                await consumer.seek(foreign)
        assert values(await receive(consumer, 2)) == [b"a", b"b"]
        assert not broker.of(CommandSeek)
        await consumer.seek(MessageId(1, 1))
        assert values(await receive(consumer, 1)) == [b"b"]
    assert not caplog.messages


async def test_a_seek_that_loses_its_connection_is_repeated(broker: Broker) -> None:
    broker.add("t", b"0")
    async with consuming(broker) as consumer:
        consumer.ack(await consumer.receive())
        broker.holds_seeks = True
        seeking = asyncio.create_task(consumer.seek(EARLIEST))
        await asyncio.sleep(1)
        broker.cut()
        broker.holds_seeks = False
        await seeking
        assert len(broker.of(CommandSeek)) == 2
        assert (await consumer.receive()).value == b"0"


async def test_a_seek_ends_when_another_consumer_has_got_the_subscription(broker: Broker) -> None:
    broker.add("t", b"0")
    async with consuming(broker, "exclusive") as consumer:
        await consumer.receive()
        broker.refuse_subscribe = lambda _: 5
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimedOut, match="no broker within 30 s") as caught:
            await consumer.seek(EARLIEST)
        assert asyncio.get_running_loop().time() - began < 31
        assert isinstance(caught.value.__cause__, PulsarServerError)
        broker.refuse_subscribe = lambda _: None
        assert (await consumer.receive()).value == b"0", "it was moved"


@pytest.mark.parametrize("turns", range(8))
async def test_after_a_cancelled_seek_the_subscription_goes_on(broker: Broker, turns: int) -> None:
    broker.add("t", b"0")
    broker.add("t", b"1")
    async with consuming(broker) as consumer:
        consumer.ack((await receive(consumer, 2))[0])
        await consumer.flush()
        broker.holds_seeks = True
        seeking = asyncio.create_task(consumer.seek(LATEST))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_known = bool(broker.of(CommandSeek))
        seeking.cancel()
        await asyncio.wait([seeking])
        await asyncio.sleep(1)
        broker.add("t", b"2")
        found = await consumer.receive()
        if turns < 2:
            assert found.value == b"2", "it had not begun, so message 1 is with its receiver"
        elif is_known:
            assert found.value == b"2"
        else:
            assert found.value in (b"1", b"2")
        broker.holds_seeks = False
        await consumer.seek(EARLIEST)
        assert values(await receive(consumer, 3)) == [b"0", b"1", b"2"]


async def test_other_targets_are_refused(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        for target in ("earliest", -1, None):
            with pytest.raises(ConfigError):
                await consumer.seek(target)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            consumer.ack(MessageId(1, 2, 3))


async def test_wrong_arguments_are_named(broker: Broker) -> None:
    broker.add("t", b"a")
    wrong: Any
    async with consuming(broker) as consumer:
        message = await consumer.receive()
        for wrong in (None, [message], "1:0:-1"):
            with pytest.raises(ConfigError, match=f"message of type {type(wrong).__name__} is not allowed"):
                consumer.ack(wrong)
        for wrong in ("5", -1, timedelta(seconds=5)):
            with pytest.raises(ConfigError, match=r"delay=.* is not allowed: .*seconds"):
                consumer.nack(message, delay=wrong)
        for key, wrong in (("max_messages", 0), ("max_messages", "9"), ("max_bytes", 0), ("max_wait", -1)):
            with pytest.raises(ConfigError, match=f"{key}={wrong!r} is not allowed"):
                await consumer.receive_batch(**{key: wrong})
    with pytest.raises(ConfigError, match="nack_delay='1' is not allowed"):
        PulsarConsumerConfig(nack_delay="1")  # type: ignore[arg-type]


async def test_a_consumer_that_was_not_entered_says_so(broker: Broker) -> None:
    async with PulsarClient(broker.url) as client:
        with pytest.raises(ClosedError, match="not open: `async with`"):
            client.subscribe("t", "s").ack(EARLIEST)


async def test_subscribe_names_arguments_of_wrong_types(broker: Broker) -> None:
    wrong: Any
    async with PulsarClient(broker.url) as client:
        for wrong in ([b"t"], b"t", None, {"t": 1}, 7, ["t", 7]):
            name = type(wrong[-1] if isinstance(wrong, list) else wrong).__name__
            with pytest.raises(ConfigError, match=f"topic of type {name} is not allowed"):
                client.subscribe(wrong, "s")
            with pytest.raises(ConfigError, match="the name of one topic"):
                client.producer(wrong)
        for wrong in (PulsarProducerConfig(), {}):
            with pytest.raises(ConfigError, match="a PulsarConsumerConfig or None"):
                client.subscribe("t", "s", config=wrong)


# --- the consumer's life ------------------------------------------------------------------------------------------------


async def test_a_refused_consumer_raises(broker: Broker) -> None:
    async with consuming(broker, "exclusive"):
        with pytest.raises(PulsarServerError, match="ConsumerBusy"):
            async with consuming(broker, "exclusive"):
                pass
    broker.refuse_subscribe = lambda _: 11
    with pytest.raises(PulsarServerError, match="TopicNotFound"):
        async with consuming(broker):
            pass


async def test_a_consumer_that_is_refused_later_ends(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        broker.refuse_subscribe = lambda _: 11
        broker.cut()
        with pytest.raises(PulsarServerError, match="TopicNotFound"):
            await receiving
        with pytest.raises(PulsarServerError, match="TopicNotFound"):
            await consumer.receive()


async def test_a_subscribe_without_answer_is_followed_by_a_close(broker: Broker) -> None:
    broker.silent = True
    config = PulsarConfig(operation_timeout=5)
    async with PulsarClient(broker.url, config) as client:
        with pytest.raises(RequestTimedOut):
            async with client.subscribe("t", "s"):
                pass
        await asyncio.sleep(1)
    assert broker.of(CommandCloseConsumer)
    assert broker.subscription("t").consumers == []


async def test_partitions_are_read_in_turn_and_new_ones_from_the_start(broker: Broker) -> None:
    broker.partitions["t"] = 2
    for number in range(3):
        broker.add("t-partition-0", b"a%d" % number)
        broker.add("t-partition-1", b"b%d" % number)
    async with consuming(broker, "exclusive") as consumer:
        await asyncio.sleep(1)
        found = await receive(consumer, 6)
        assert sorted(values(found)) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]  # type: ignore[type-var]
        assert {values(found)[0], values(found)[1]} == {b"a0", b"b0"}
        assert {message.partition for message in found} == {0, 1}
        assert [each.partition for each in await consumer.last_message_ids()] == [0, 1]
        broker.partitions["t"] = 3
        broker.add("t-partition-2", b"c0")
        assert (await consumer.receive()).value == b"c0"
        for message in found:
            consumer.ack_cumulative(message)
        await consumer.seek(EARLIEST)
        assert len(await receive(consumer, 7)) == 7
        await consumer.unsubscribe()
    assert broker.subscriptions == {}


async def test_partitions_share_the_limits_of_the_queue_also_new_ones(broker: Broker) -> None:
    """The queue has 60 messages or 200 bytes, whatever the number of partitions."""
    broker.partitions["t"] = 2
    async with consuming(
        broker, receiver_queue_size=40, max_total_receiver_queue_size=60, receiver_queue_bytes=200
    ) as consumer:
        for number in range(2):
            for _ in range(100):
                broker.add(f"t-partition-{number}", b"x" * 10)
        await asyncio.sleep(1)
        before = [part.permits.size for part in consumer.partitions]
        assert before == [30, 30]
        assert consumer.queued * 10 <= 200 + 2 * 10
        broker.partitions["t"] = 4
        await asyncio.sleep(61)
        assert [part.permits.size for part in consumer.partitions] == [15] * 4
        for number in (2, 3):
            for _ in range(100):
                broker.add(f"t-partition-{number}", b"x" * 10)
        for message in await receive(consumer, 250):
            consumer.ack(message)
        await asyncio.sleep(1)
        assert consumer.queued * 10 <= 200 + 4 * 10, "each has its part of 50 bytes, and one message at least"


async def test_a_new_partition_that_is_refused_is_tried_again(broker: Broker) -> None:
    broker.partitions["t"] = 1
    async with consuming(broker) as consumer:
        broker.refuse_subscribe = lambda command: 4 if command.topic.endswith("-1") else None
        broker.partitions["t"] = 2
        broker.add("t-partition-1", b"new")
        broker.add("t-partition-0", b"old")
        assert values(await receive(consumer, 1)) == [b"old"]
        assert await nothing_arrives(consumer)
        assert len(list(consumer.partitions)) == 1
        broker.refuse_subscribe = lambda _: None
        assert values(await receive(consumer, 1)) == [b"new"]


async def test_the_active_consumer_of_a_failover_subscription_changes(broker: Broker) -> None:
    for number in range(3):
        broker.add("t", b"%d" % number)
    async with consuming(broker, "failover") as first, consuming(broker, "failover") as second:
        [one], [two] = first.partitions, second.partitions
        assert (one.is_active, two.is_active) == (True, False)
        consumed = await receive(first, 2)
        first.ack(consumed[0])
        await first.flush()
        broker.subscription("t").rotate()
        await asyncio.sleep(1)
        assert (one.is_active, two.is_active) == (False, True)
        assert first.queued == 0, "the other one gets it"
        assert values(await receive(second, 2)) == [b"1", b"2"]
        broker.subscription("t").rotate()
        assert values(await receive(first, 2)) == [b"1", b"2"]
        broker.cut()
        await asyncio.sleep(0)
        assert not one.is_active or one.is_attached


async def test_an_active_consumer_that_is_notified_again_asks_for_its_messages(broker: Broker) -> None:
    """A broker repeats itself when everything comes again, but also after a failed read, when nothing does."""
    broker.add("t", b"0")
    broker.add("t", b"1")
    async with consuming(broker, "failover") as consumer:
        consumer.ack(await consumer.receive())
        await asyncio.sleep(1)
        assert consumer.queued
        broker.subscription("t").notify()
        await asyncio.sleep(1)
        assert values(await receive(consumer, 1)) == [b"1"]
        assert len(broker.of(CommandRedeliverUnacknowledgedMessages)) == 1
        assert await nothing_arrives(consumer)


async def test_the_end_of_a_topic(broker: Broker) -> None:
    async with consuming(broker, "failover") as consumer:
        assert not consumer.is_at_end
        broker.terminate("t")
        await asyncio.sleep(1)
        assert consumer.is_at_end


async def test_errors_of_partitions_that_are_not_connected(broker: Broker) -> None:
    async with consuming(broker) as consumer:
        assert consumer.errors() == {}
        broker.refuse_subscribe = lambda _: 6
        broker.cut()
        await asyncio.sleep(5)
        [(topic, error)] = consumer.errors().items()
        assert topic == "persistent://public/default/t"
        assert isinstance(error, PulsarServerError)
        assert error.name == "ServiceNotReady"
        broker.refuse_subscribe = lambda _: None
        await asyncio.sleep(100)
        assert consumer.errors() == {}


@pytest.mark.parametrize("inclusive", [False, True])
async def test_a_subscription_that_is_not_durable_continues_where_it_was(
    broker: Broker, *, inclusive: bool
) -> None:
    for number in range(3):
        broker.add("t", b"%da" % number, b"%db" % number)
    config = {"durable": False, "initial_position": MessageId(1, 0, -1, 0), "start_inclusive": inclusive}
    async with consuming(broker, "exclusive", **config) as consumer:
        first = [b"0a"] if inclusive else []
        assert values(await receive(consumer, len(first) + 2)) == [*first, b"0b", b"1a"]
        await asyncio.sleep(1)
        broker.cut()
        assert values(await receive(consumer, 3)) == [b"1b", b"2a", b"2b"]
        broker.cut()
        broker.add("t", b"3")
        assert values(await receive(consumer, 1)) == [b"3"]


async def test_a_position_before_the_first_receive_is_kept_too(broker: Broker) -> None:
    async with consuming(broker, "exclusive", durable=False, initial_position="latest") as consumer:
        broker.add("t", b"0a", b"0b")
        await asyncio.sleep(1)
        broker.cut()
        assert values(await receive(consumer, 2)) == [b"0a", b"0b"]


def test_settings_that_do_not_fit_are_refused() -> None:
    for wrong in (
        {"key_ranges": [(5, 3)]},
        {"key_ranges": [(0, 5), (5, 9)]},
        {"key_ranges": [(0, 65_536)]},
        {"initial_position": "first"},
        {"initial_position": EARLIEST},
        {"receiver_queue_size": -1},
        {"ack_group_size": 0},
        {"properties": {"a": 1}},
    ):
        with pytest.raises(ConfigError):
            PulsarConsumerConfig(**wrong)  # type: ignore[arg-type]
    client = PulsarClient("pulsar://localhost")
    for kind, settings in (
        ("shared", {"key_ranges": [(0, 5)]}),
        ("shared", {"read_compacted": True}),
        ("exclusive", {"allow_out_of_order": True}),
        ("unordered", {}),
    ):
        with pytest.raises(ConfigError):
            client.subscribe("t", "s", type=kind, config=PulsarConsumerConfig(**settings))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        client.subscribe("t", "")


async def test_after_a_refused_unsubscribe_the_consumer_goes_on(broker: Broker) -> None:
    """Also the search for new partitions."""
    broker.partitions["t"] = 1
    config = PulsarConfig(partitions_update_interval=1.0)
    async with (
        PulsarClient(broker.url, config) as client,
        client.subscribe("t", "s", type="shared") as consumer,
    ):
        broker.refuse_unsubscribe = True
        with pytest.raises(PulsarServerError, match="refused"):
            await consumer.unsubscribe()
        broker.partitions["t"] = 2
        await asyncio.sleep(3)
        broker.add("t-partition-0", b"0")
        broker.add("t-partition-1", b"1")
        assert {(await consumer.receive()).value for _ in range(2)} == {b"0", b"1"}
        broker.refuse_unsubscribe = False
        await consumer.unsubscribe()
        assert not broker.subscriptions

"""A producer whose connections end, whose topic moves, and whose messages are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import DeliveryFailedError, InvalidRecordError, RequestTimedOut
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.commands import CommandCloseProducer, CommandLookupTopic, CommandProducer
from asyncgroup.pulsar.wire.message_id import MessageId
from tests.pulsar.producer.broker import Broker


def producer(broker: Broker, **options: Any) -> PulsarProducer:
    return PulsarProducer(broker.url, "orders", PulsarProducerConfig(**options))


@pytest.mark.parametrize("batching", [False, True])
async def test_messages_are_sent_again_in_order_after_a_cut(broker: Broker, batching: bool) -> None:
    broker.deduplicates = True
    async with producer(broker, batching=batching, producer_name="p", send_timeout=0) as sends:
        futures = []
        for round_ in range(10):
            broker.holds_receipts = True
            futures += [sends.send_nowait(b"%d" % (10 * round_ + number)) for number in range(10)]
            await asyncio.sleep(0.05)
            broker.cut()  # stored, but without receipts
            broker.drop_receipts()
            broker.holds_receipts = False
            futures.append(sends.send_nowait(b"between"))
            await sends.flush()
        ids = [await each for each in futures]
    expected = [
        *(b"%d" % number for number in range(100)),
    ]
    stored = broker.values("orders")
    assert [each for each in stored if each != b"between"] == expected
    assert len(stored) == 110
    assert MessageId(-1, -1) in {each._replace(batch_index=-1) for each in ids}  # dropped by the broker


async def test_while_it_is_disconnected_messages_wait(broker: Broker) -> None:
    async with producer(broker) as sends:
        broker.refuse_producer = lambda _: 6
        broker.cut()
        await asyncio.sleep(0.1)
        futures = [sends.send_nowait(b"%d" % number) for number in range(3)]
        await asyncio.sleep(5)
        assert not sends.is_connected
        (error,) = sends.errors().values()
        assert "ServiceNotReady" in str(error)
        broker.refuse_producer = lambda _: None
        await asyncio.gather(*futures)
        assert sends.is_connected
        assert sends.errors() == {}
    assert broker.values("orders") == [b"0", b"1", b"2"]


async def test_messages_time_out_while_it_reconnects(broker: Broker) -> None:
    async with producer(broker, send_timeout=3) as sends:
        broker.refuse_producer = lambda _: 6
        broker.cut()
        await asyncio.sleep(0.1)
        future = sends.send_nowait(b"v")
        await asyncio.sleep(3.1)
        error = future.exception()
        assert isinstance(error, RequestTimedOut)
        assert not error.may_be_written
        assert "ServiceNotReady" in str(error)


async def test_the_last_attempt_is_shortly_before_a_message_is_too_old(broker: Broker) -> None:
    """Attempts after 0.1, 0.3, 0.7, 1.5 and 3.1 s would leave the message out; pauses are 20 % shorter or longer."""
    async with producer(broker, send_timeout=2.5) as sends:
        broker.refuse_producer = lambda _: 6
        broker.cut()
        started = asyncio.get_running_loop().time()
        future = sends.send_nowait(b"v")
        await asyncio.sleep(2.2)
        attempts = len(broker.registrations)
        broker.refuse_producer = lambda _: None
        await future
        assert asyncio.get_running_loop().time() - started == pytest.approx(2.4, abs=0.05)
        assert len(broker.registrations) == attempts + 1
    assert broker.values("orders") == [b"v"]


async def test_a_topic_that_moves_is_followed_at_once_to_its_new_broker(broker: Broker) -> None:
    async with Broker(6651) as other, producer(broker) as sends:
        await sends.send(b"here")
        lookups = len([each for each in broker.commands if isinstance(each, CommandLookupTopic)])
        broker.close_producers(other.url)
        started = asyncio.get_running_loop().time()
        await sends.send(b"there")
        assert asyncio.get_running_loop().time() - started < 0.05
        assert len([each for each in broker.commands if isinstance(each, CommandLookupTopic)]) == lookups
        await sends.aclose()
        assert broker.values("orders") == [b"here"]
        assert other.values("orders") == [b"there"]


async def test_a_producer_that_the_broker_closes_looks_its_topic_up_again(broker: Broker) -> None:
    async with producer(broker) as sends:
        broker.close_producers()
        await sends.send(b"v")
        assert len(broker.links) == 1  # the connection stays
    assert [each.epoch for each in broker.registrations] == [0, 1]


async def test_frames_above_a_smaller_limit_fail(broker: Broker) -> None:
    async with producer(broker, batching=False) as sends:
        broker.holds_receipts = True
        large, small = sends.send_nowait(bytes(5000)), sends.send_nowait(b"small")
        await asyncio.sleep(0.1)
        broker.max_message_size = 1000
        broker.holds_receipts = False
        broker.cut()
        await small
        assert isinstance(large.exception(), InvalidRecordError)


# --- what the broker refuses --------------------------------------------------------------------------------------------


async def test_one_message_that_is_not_allowed_fails_alone(broker: Broker) -> None:
    async with producer(broker, batching=False) as sends:
        broker.refuse_send = lambda command: 22 if command.sequence_id == 1 else None
        futures = [sends.send_nowait(b"%d" % number) for number in range(3)]
        await asyncio.wait(futures)
        assert [type(each.exception()) for each in futures] == [type(None), PulsarServerError, type(None)]
        assert not futures[1].exception().may_be_written  # type: ignore[union-attr]
    assert len(broker.registrations) == 1


async def test_a_refused_message_may_be_stored_by_an_earlier_attempt(broker: Broker) -> None:
    async with producer(broker, batching=False) as sends:
        broker.holds_receipts = True
        future = sends.send_nowait(b"a")
        await asyncio.sleep(1.0)
        broker.drop_receipts()
        broker.refuse_send = lambda _: 22
        broker.cut()
        await asyncio.wait([future])
        assert future.exception().may_be_written  # type: ignore[union-attr]
    assert broker.values("orders") == [b"a"]


async def test_a_message_that_was_damaged_in_memory_fails_alone(broker: Broker) -> None:
    """Sent again, its bytes would not match their checksum either; one that was damaged on its way is sent again, see below."""
    async with producer(broker, batching=False) as sends:
        broker.refuse_send = lambda command: 9 if command.sequence_id == 1 else None
        futures = [sends.send_nowait(b"%d" % number) for number in range(3)]
        [pending] = sends._producers
        [damaged] = [each for each in pending.queue.pending if each.sequence_id == 1]
        damaged.pieces = (damaged.pieces[0], damaged.pieces[1][:-1] + b"x")
        await asyncio.wait(futures)
        error = futures[1].exception()
        assert isinstance(error, PulsarServerError)
        assert error.name == "ChecksumError"
        assert [each.exception() for each in futures[::2]] == [None, None]
        assert sends.pending_messages == 0
        await sends.send(b"after")
    assert broker.values("orders") == [b"0", b"2", b"after"]
    assert len(broker.registrations) == 1


@pytest.mark.parametrize("code", [0, 1, 2, 7, 9])
async def test_other_refusals_register_this_producer_again(broker: Broker, code: int) -> None:
    refused: list[int] = []

    def refuse(command: Any) -> int | None:
        if len(refused) < 2:
            refused.append(command.sequence_id)
            return code
        return None

    async with producer(broker, batching=False) as sends:
        broker.refuse_send = refuse
        futures = [sends.send_nowait(b"%d" % number) for number in range(3)]
        await asyncio.gather(*futures)
        assert len(broker.links) == 1  # the connection, and its other producers, stay
    assert broker.values("orders")[-3:] == [b"0", b"1", b"2"]
    assert len(broker.registrations) > 1


@pytest.mark.parametrize("code", [15, 25])
async def test_the_end_of_a_topic_or_a_fence_ends_the_producer(broker: Broker, code: int) -> None:
    async with producer(broker) as sends:
        broker.refuse_send = lambda _: code
        with pytest.raises(PulsarServerError) as caught:
            await sends.send(b"v")
        assert caught.value.code == code
        with pytest.raises(PulsarServerError):
            sends.send_nowait(b"w")
        with pytest.raises(PulsarServerError):
            await sends.enqueue(b"w")
        assert len(broker.registrations) == 1


async def test_a_fence_at_a_reconnect_fails_what_is_pending(broker: Broker) -> None:
    async with producer(broker, access_mode="exclusive", max_pending_messages=1) as sends:
        broker.refuse_producer = lambda _: 25
        broker.holds_receipts = True
        pending = sends.send_nowait(b"v")
        waiting = asyncio.create_task(sends.send(b"w"))
        await asyncio.sleep(0.1)
        broker.cut()
        for each in (pending, waiting):
            with pytest.raises(PulsarServerError, match="ProducerFenced"):
                await each


async def test_a_full_backlog_fails_what_is_pending_or_keeps_it(broker: Broker) -> None:
    async with producer(broker, send_timeout=0) as sends:
        broker.refuse_producer = lambda _: 8
        broker.holds_receipts = True
        refused = sends.send_nowait(b"refused")
        await asyncio.sleep(0.1)
        broker.drop_receipts()
        broker.holds_receipts = False
        broker.cut()
        with pytest.raises(PulsarServerError, match="ProducerBlockedQuotaExceededException"):
            await refused
        broker.refuse_producer = lambda _: 7
        kept = sends.send_nowait(b"kept")
        await asyncio.sleep(100)
        assert not kept.done()
        broker.refuse_producer = lambda _: None
        await kept


async def test_a_busy_name_is_tried_again_after_a_first_success(broker: Broker) -> None:
    async with producer(broker, producer_name="p") as sends:
        broker.refuse_producer = lambda _: 16
        broker.cut()
        future = sends.send_nowait(b"v")
        await asyncio.sleep(5)
        assert len(broker.registrations) > 2, "it was tried again"
        assert not future.done()
        broker.refuse_producer = lambda _: None
        await future


async def test_a_receipt_that_was_lost_closes_the_connection(broker: Broker) -> None:
    async with producer(broker, batching=False) as sends:
        broker.holds_receipts = True
        first = sends.send_nowait(b"first")
        await asyncio.sleep(0.1)
        broker.drop_receipts()
        broker.holds_receipts = False
        second = sends.send_nowait(b"second")
        await asyncio.gather(first, second)
    assert [each.epoch for each in broker.registrations] == [0, 1]
    assert broker.values("orders") == [b"first", b"second", b"first", b"second"]  # without deduplication


async def test_a_close_while_it_reconnects_ends_in_time(broker: Broker) -> None:
    sends = producer(broker, close_timeout=2)
    await sends.__aenter__()
    broker.refuse_producer = lambda _: 6
    broker.cut()
    await sends.enqueue(b"v")
    with pytest.raises(DeliveryFailedError):
        await sends.aclose()


async def test_a_close_during_a_registration_closes_it_at_the_broker(broker: Broker) -> None:
    sends = producer(broker)
    await sends.__aenter__()
    broker.silent = True
    broker.close_producers()
    await asyncio.sleep(1)
    await sends.aclose()
    await asyncio.sleep(0.1)
    assert [type(each) for each in broker.commands[-2:]] == [CommandProducer, CommandCloseProducer]


# --- sequence ids -------------------------------------------------------------------------------------------------------


async def test_a_second_producer_of_a_name_continues_after_the_first(broker: Broker) -> None:
    broker.deduplicates = True
    for first in (0, 2):
        async with producer(broker, producer_name="p") as sends:
            assert sends.last_sequence_id == first - 1
            await sends.send(b"v")
            await sends.send(b"w")
            assert sends.last_sequence_id == first + 1
    assert len(broker.values("orders")) == 4


async def test_a_program_that_numbers_its_messages_can_repeat_them(broker: Broker) -> None:
    broker.deduplicates = True
    async with producer(broker, producer_name="p") as sends:
        await asyncio.gather(*(sends.send(b"%d" % number, sequence_id=number) for number in range(5)))
    async with producer(broker, producer_name="p") as sends:  # it does not know how far the first one came
        ids = await asyncio.gather(*(sends.send(b"%d" % number, sequence_id=number) for number in range(10)))
    assert broker.values("orders") == [b"%d" % number for number in range(10)]
    assert [each.ledger_id for each in ids] == [-1] * 5 + [1] * 5


async def test_an_initial_sequence_id(broker: Broker) -> None:
    async with producer(broker, initial_sequence_id=41) as sends:
        await sends.send(b"v")
        assert sends.last_sequence_id == 42

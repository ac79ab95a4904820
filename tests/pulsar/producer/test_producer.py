"""The producer and a scripted broker, in virtual time: sends, flush, close, limits, partitions, interceptors."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from asyncgroup.errors import (
    ClosedError,
    ConfigError,
    DeliveryFailedError,
    InvalidRecordError,
    QueueFull,
    RequestTimedOut,
    UsageError,
)
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.interceptors import PulsarProducerRecord
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.producer.routing import java_string_hash
from asyncgroup.pulsar.wire.commands import CommandCloseProducer, CommandProducer
from asyncgroup.pulsar.wire.message_id import MessageId
from tests.pulsar.producer.broker import Broker


def producer(broker: Broker, topic: str = "orders", **options: Any) -> PulsarProducer:
    return PulsarProducer(broker.url, topic, PulsarProducerConfig(**options))


async def loop_time() -> float:
    return asyncio.get_running_loop().time()


# --- sends --------------------------------------------------------------------------------------------------------------


async def test_a_message_is_stored_when_send_returns(broker: Broker) -> None:
    async with producer(broker) as sends:
        assert sends.name == "standalone-1"
        assert await sends.send(b"one dozen", key="eggs", properties={"a": "b"}) == MessageId(1, 0)
        assert sends.last_sequence_id == 0
    (entry,) = broker.entries["orders"]
    (message,) = entry.messages()
    assert (message.value, message.key, message.properties) == (b"one dozen", b"eggs", {"a": "b"})
    assert isinstance(broker.commands[-1], CommandCloseProducer)


async def test_callers_of_one_turn_share_a_batch_that_waits_for_nothing(broker: Broker) -> None:
    async with producer(broker, batching_max_delay=60) as sends:
        started = await loop_time()
        ids = await asyncio.gather(*(sends.send(b"%d" % number) for number in range(5)))
        assert await loop_time() - started < 1
    assert ids == [MessageId(1, 0, -1, index) for index in range(5)]


async def test_a_caller_behind_messages_in_flight_waits_for_their_receipt_only(broker: Broker) -> None:
    async with producer(broker, batching_max_delay=60) as sends:
        broker.holds_receipts = True
        first = asyncio.create_task(sends.send(b"first"))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(sends.send(b"second"))
        await asyncio.sleep(0.1)
        assert broker.values("orders") == [b"first"]
        broker.release()
        assert await first == MessageId(1, 0)
        assert await second == MessageId(1, 1)


async def test_a_batch_is_sent_after_its_delay(broker: Broker) -> None:
    async with producer(broker, batching_max_delay=0.5) as sends:
        await sends.enqueue(b"a")
        await asyncio.sleep(0.4)
        await sends.enqueue(b"b")
        assert broker.values("orders") == []
        await asyncio.sleep(0.2)
        assert broker.values("orders") == [b"a", b"b"]
        await sends.enqueue(b"c")  # the timer of the batch before is not that of this one
        await asyncio.sleep(0.4)
        assert broker.values("orders") == [b"a", b"b"]


async def test_full_batches_are_sent_at_once(broker: Broker) -> None:
    async with producer(broker, batching_max_delay=60, batching_max_messages=10) as sends:
        for number in range(25):
            await sends.enqueue(b"%d" % number)
        await asyncio.sleep(0.1)
        assert [entry.count for entry in broker.entries["orders"]] == [10, 10]
        await sends.flush()
        assert [entry.count for entry in broker.entries["orders"]] == [10, 10, 5]


async def test_ids_of_a_batch_know_its_size(broker: Broker) -> None:
    async with producer(broker, batching_max_messages=3) as sends:
        ids = await asyncio.gather(*(sends.send(b"v") for _ in range(3)))
    assert ids == [MessageId(1, 0, -1, index) for index in range(3)]
    assert [each.batch_size for each in ids] == [3, 3, 3]


async def test_without_batches_each_message_is_an_entry(broker: Broker) -> None:
    async with producer(broker, batching=False) as sends:
        ids = await asyncio.gather(*(sends.send(b"v") for _ in range(3)))
    assert ids == [MessageId(1, entry) for entry in range(3)]


async def test_a_batch_for_each_key(broker: Broker) -> None:
    async with producer(broker, key_based_batching=True) as sends:
        for number in range(6):
            await sends.enqueue(b"%d" % number, key="ab"[number % 2])
    assert [[m.value for m in e.messages()] for e in broker.entries["orders"]] == [
        [b"0", b"2", b"4"],
        [b"1", b"3", b"5"],
    ]


async def test_chunks(broker: Broker) -> None:
    broker.max_message_size = 1000
    async with producer(broker, chunking=True) as sends:
        found = await sends.send(bytes(3000))
        assert (found, found.first_chunk_id) == (MessageId(1, 3), MessageId(1, 0))
        small = await sends.send(b"small")
        assert (small, small.first_chunk_id) == (MessageId(1, 4), None)
    chunks = broker.entries["orders"][:4]
    assert [entry.metadata.chunk_id for entry in chunks] == [0, 1, 2, 3]
    assert b"".join(entry.body for entry in chunks) == bytes(3000)


@pytest.mark.parametrize("size", [500, 900, 1100, 4000, 5000])
@pytest.mark.parametrize("batching", [False, True])
async def test_no_frame_is_larger_than_the_limit(broker: Broker, size: int, batching: bool) -> None:
    async with producer(broker, chunking=True, chunk_max_size=1000, batching=batching) as sends:
        await asyncio.gather(*(sends.send(bytes(size), key="k", properties={"a": "b"}) for _ in range(3)))
    entries = broker.entries["orders"]
    if size > 1000:
        assert all(len(entry.body) < 1000 for entry in entries)
    assert sum(len(entry.body) for entry in entries) >= 3 * size


async def test_a_value_that_is_too_large_without_chunks(broker: Broker) -> None:
    broker.max_message_size = 1000
    async with producer(broker) as sends:
        with pytest.raises(InvalidRecordError, match="chunking=True"):
            await sends.send(bytes(200_000))
        await sends.send(b"next")
    assert broker.values("orders") == [b"next"]


async def test_a_cancelled_caller_has_sent(broker: Broker) -> None:
    async with producer(broker) as sends:
        broker.holds_receipts = True
        caller = asyncio.create_task(sends.send(b"v"))
        await asyncio.sleep(0.1)
        caller.cancel()
        await asyncio.wait([caller])
        broker.release()
        await sends.flush()
    assert broker.values("orders") == [b"v"]


async def test_many_partitions_and_keys(broker: Broker) -> None:
    broker.partitions["orders"] = 4
    async with producer(broker) as sends:
        assert sends.partitions == 4
        for number in range(40):
            key = f"key-{number}"
            found = await sends.send(b"v", key=key)
            assert found.partition == java_string_hash(key) % 4
        assert {each.producer_name for each in broker.registrations if each.producer_name} == {"standalone-1"}


async def test_a_function_chooses_the_partition(broker: Broker) -> None:
    broker.partitions["orders"] = 4

    def route(record: PulsarProducerRecord, partitions: int) -> int:
        return int(record.value or b"") if record.value != b"9" else partitions

    async with producer(broker, routing=route) as sends:
        for number in (3, 0, 2):
            assert (await sends.send(b"%d" % number, key="same")).partition == number
        with pytest.raises(InvalidRecordError, match="a partition from 0 to 3"):
            await sends.send(b"9")


async def test_partitions_that_are_added_are_used_when_their_producers_are_ready(broker: Broker) -> None:
    broker.partitions["orders"] = 1
    async with producer(broker, routing=lambda _, partitions: partitions - 1) as sends:
        assert (await sends.send(b"v")).partition == 0
        broker.partitions["orders"] = 3
        await asyncio.sleep(70)
        assert sends.partitions == 3
        assert (await sends.send(b"v")).partition == 2


async def test_a_partition_that_cannot_be_added_is_tried_again(broker: Broker) -> None:
    broker.partitions["orders"] = 1
    async with producer(broker) as sends:
        broker.refuse_producer = lambda command: 22 if command.topic.endswith("-1") else None
        broker.partitions["orders"] = 2
        await asyncio.sleep(70)
        assert sends.partitions == 1
        await sends.send(b"v")
        broker.refuse_producer = lambda _: None
        await asyncio.sleep(60)
        assert sends.partitions == 2


# --- limits -------------------------------------------------------------------------------------------------------------


async def test_a_limit_of_messages(broker: Broker) -> None:
    async with producer(broker, max_pending_messages=3) as sends:
        broker.holds_receipts = True
        futures = [sends.send_nowait(b"%d" % number) for number in range(3)]
        with pytest.raises(QueueFull, match="max_pending_messages=3: 3 messages in use"):
            sends.send_nowait(b"3")
        waiting = asyncio.create_task(sends.send(b"4"))
        withdrawn = asyncio.create_task(sends.send(b"5"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        withdrawn.cancel()
        await asyncio.wait([withdrawn])
        broker.release()
        await asyncio.gather(*futures, waiting)
    assert broker.values("orders") == [b"0", b"1", b"2", b"4"]


async def test_the_memory_of_a_client_is_shared_by_its_producers(broker: Broker) -> None:
    async with PulsarClient(broker.url, PulsarConfig(memory_limit=1000)) as client:
        async with PulsarProducer(client, "one") as one, PulsarProducer(client, "other") as other:
            broker.holds_receipts = True
            first = one.send_nowait(bytes(900))
            with pytest.raises(QueueFull, match="memory_limit=1000"):
                other.send_nowait(bytes(200))
            second = asyncio.create_task(other.send(bytes(200)))
            await asyncio.sleep(0.1)
            broker.release()
            await asyncio.gather(first, second)
        assert client._inner.memory.used == 0


async def test_who_waits_for_memory_waits_for_no_open_batch_of_another_producer(broker: Broker) -> None:
    config = PulsarProducerConfig(batching_max_delay=60)
    async with PulsarClient(broker.url, PulsarConfig(memory_limit=1000)) as client:
        async with client.producer("one", config) as one, client.producer("other", config) as other:
            await one.enqueue(bytes(900))
            started = await loop_time()
            await other.send(bytes(200))
            assert await loop_time() - started < 1


async def test_close_waits_for_a_silent_broker_for_its_timeout_only(broker: Broker) -> None:
    async with producer(broker, close_timeout=0) as sends:
        await sends.send(b"v")
        broker.silent = True
        started = await loop_time()
    assert await loop_time() - started == 1


async def test_a_value_with_more_chunks_than_the_limit_is_refused(broker: Broker) -> None:
    broker.max_message_size = 1000
    async with producer(broker, chunking=True, max_pending_messages=3) as sends:
        with pytest.raises(InvalidRecordError, match="at most 3 chunks"):
            await sends.send(bytes(5000))
        await sends.send(bytes(2000))


async def test_chunks_wait_for_all_their_places(broker: Broker) -> None:
    broker.max_message_size = 1000
    async with producer(broker, chunking=True, max_pending_messages=3) as sends:
        broker.holds_receipts = True
        first = sends.send_nowait(b"first")
        waiting = asyncio.create_task(sends.send(bytes(2000)))
        with pytest.raises(QueueFull):
            sends.send_nowait(bytes(2000))
        await asyncio.sleep(0.1)
        assert len(broker.entries["orders"]) == 1
        broker.release()
        await asyncio.gather(first, waiting)
        assert len(broker.entries["orders"]) == 4


# --- flush, close, failures ---------------------------------------------------------------------------------------------


async def test_flush_waits_for_what_was_sent_before(broker: Broker) -> None:
    async with producer(broker) as sends:
        broker.holds_receipts = True
        await sends.enqueue(b"a")
        flush = asyncio.create_task(sends.flush())
        await asyncio.sleep(0.1)
        assert not flush.done()
        assert sends.pending_messages == 1
        broker.release()
        await flush
        await sends.flush()  # nothing is pending


async def test_a_message_times_out_and_the_later_ones_do_not(broker: Broker) -> None:
    async with producer(broker, send_timeout=5) as sends:
        broker.holds_receipts = True
        first = sends.send_nowait(b"first")
        await sends.enqueue(b"lost")
        await asyncio.sleep(3)
        second = sends.send_nowait(b"second")
        await asyncio.sleep(2.5)
        error = first.exception()
        assert isinstance(error, RequestTimedOut)
        assert error.may_be_written
        assert "send_timeout=5 s" in str(error)
        assert not second.done()
        broker.release()
        await second
        with pytest.raises(DeliveryFailedError, match="1 record not delivered") as caught:
            await sends.flush()
        assert caught.value.may_be_written
        await sends.flush()


async def test_close_waits_for_receipts(broker: Broker) -> None:
    async with producer(broker) as sends:
        broker.holds_receipts = True
        future = sends.send_nowait(b"v")
        closing = asyncio.create_task(sends.aclose())
        await asyncio.sleep(5)
        assert not closing.done()
        with pytest.raises(ClosedError):
            await sends.send(b"w")
        broker.release()
        await closing
        assert await future == MessageId(1, 0)


async def test_close_fails_what_is_not_acknowledged_in_time(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    sends = producer(broker, close_timeout=2, max_pending_messages=1)
    with pytest.raises(DeliveryFailedError, match=r"close_timeout=2 s"):
        async with sends:
            broker.holds_receipts = True
            await sends.enqueue(b"v")
            waiting = asyncio.create_task(sends.send(b"w"))
            await asyncio.sleep(0.1)
    with pytest.raises(ClosedError):
        await waiting
    assert "closed before all its messages were stored" in caplog.text
    with pytest.raises(ClosedError):
        sends.send_nowait(b"x")
    await sends.aclose()


async def test_close_without_drain(broker: Broker) -> None:
    async with producer(broker) as sends:
        broker.holds_receipts = True
        future = sends.send_nowait(b"v")
        await asyncio.sleep(0.1)
        await sends.aclose(drain=False)
        error = future.exception()
        assert isinstance(error, ClosedError)
        assert error.may_be_written


async def test_the_errors_of_a_block_hide_no_lost_messages(broker: Broker) -> None:
    with pytest.raises(KeyError) as caught:
        async with producer(broker, close_timeout=1) as sends:
            broker.holds_receipts = True
            await sends.enqueue(b"v")
            raise KeyError
    assert "1 record not delivered" in caught.value.__notes__[0]


async def test_a_producer_is_entered_once(broker: Broker) -> None:
    sends = producer(broker)
    with pytest.raises(ClosedError, match="async with"):
        await sends.send(b"v")
    async with sends:
        with pytest.raises(UsageError, match="was entered before"):
            await sends.__aenter__()
    with pytest.raises(UsageError):
        await sends.__aenter__()


async def test_a_client_that_is_passed_in_stays_open(broker: Broker) -> None:
    async with PulsarClient(broker.url) as client:
        for _ in range(2):
            async with PulsarProducer(client, "orders") as sends:
                await sends.send(b"v")
    assert broker.values("orders") == [b"v", b"v"]


async def test_a_client_makes_producers(broker: Broker) -> None:
    async with PulsarClient(broker.url) as client:
        async with client.producer("orders", PulsarProducerConfig(producer_name="p")) as sends:
            assert await sends.send(b"v") == MessageId(1, 0)
            assert sends.name == "p"


async def test_a_client_that_is_not_open(broker: Broker) -> None:
    with pytest.raises(ClosedError, match="enter the client first"):
        async with PulsarClient(broker.url).producer("orders"):
            pytest.fail("it was opened")
    with pytest.raises(ConfigError, match="a PulsarClient, or a service URL"):
        PulsarProducer(5, "orders")  # type: ignore[arg-type]


def test_names_of_other_clients_are_errors_with_a_hint() -> None:
    sends = PulsarProducer("pulsar://x", "orders")
    for name in ("send_async", "sendAsync", "newMessage", "close", "getProducerName"):
        with pytest.raises(AttributeError, match="here it is: "):
            getattr(sends, name)


async def test_encryption_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match="this client does not encrypt messages"):
        PulsarProducerConfig(encryption_keys=["my-key"])


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("send_timeout_millis", "did you mean send_timeout, in seconds"),
        ("batchingMaxPublishDelayMicros", "did you mean batching_max_delay, in seconds"),
        ("accessMode", "did you mean access_mode?"),
        ("compresion", "did you mean compression?"),
        ("crypto_key_reader", "this client does not encrypt messages"),
        ("nonsense", "there is no such key"),
    ],
)
def test_settings_of_other_clients_are_errors_with_a_hint(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)):
        PulsarProducerConfig(**{key: 1})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("access_mode", "Shared", "one of shared, exclusive"),
        ("send_timeout", -1, "a number of seconds, 0 or more"),
        ("batching_max_messages", 0, "1 or more"),
        ("compression", "gzip", "one of none, lz4"),
        ("routing", "random", "a function (message, number of partitions)"),
        ("max_pending_messages", 0, "None or a number of messages"),
        ("chunk_max_size", 5, "None without chunking=True"),
        ("properties", {"a": 1}, "a mapping of str to str"),
        ("initial_sequence_id", -2, "-1 or more"),
        ("producer_name", "", "a string, not empty"),
    ],
)
def test_invalid_settings_are_refused_by_name(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(allowed)) as caught:
        PulsarProducerConfig(**{key: value})
    assert caught.value.key == key


def test_limits_of_pending_messages() -> None:
    assert PulsarProducerConfig().pending_limit(3) is None
    assert PulsarProducerConfig(max_pending_messages=7).pending_limit(3) == 7
    assert PulsarProducerConfig(max_pending_messages_across_partitions=10).pending_limit(3) == 3
    both = PulsarProducerConfig(max_pending_messages=2, max_pending_messages_across_partitions=10)
    assert both.pending_limit(3) == 2
    assert both.pending_limit(20) == 1


async def test_a_memory_limit_of_any_size(broker: Broker) -> None:
    async with PulsarClient(broker.url, PulsarConfig(memory_limit=1 << 40)) as client:
        async with client.producer("orders") as sends:
            assert isinstance(await sends.send(b"v"), MessageId)


async def test_chunks_need_a_persistent_topic() -> None:
    with pytest.raises(ConfigError, match="not persistent"):
        PulsarProducer("pulsar://x", "non-persistent://public/default/x", PulsarProducerConfig(chunking=True))


# --- interceptors -------------------------------------------------------------------------------------------------------


class Interceptor:
    def __init__(self) -> None:
        self.ends: list[tuple[bytes | None, MessageId | None, Exception | None]] = []

    def on_send(self, record: PulsarProducerRecord) -> PulsarProducerRecord:
        return record._replace(properties={**(record.properties or {}), "seen": "1"})

    def on_acknowledgement(
        self, record: PulsarProducerRecord, message_id: MessageId | None, error: Exception | None
    ) -> None:
        self.ends.append((record.value, message_id, error))
        raise RuntimeError("must not break the send")


async def test_interceptors_see_each_message_once(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    each = Interceptor()

    def wrong(_: Any) -> Any:
        return "no record"

    async with PulsarProducer(broker.url, "orders", interceptors=[each, wrong]) as sends:
        await sends.send(b"sent", properties={"a": "b"})
        await sends.enqueue(b"enqueued")
        with pytest.raises(InvalidRecordError):
            await sends.send("text")  # type: ignore[arg-type]
        await sends.flush()
    assert [(value, message_id) for value, message_id, _ in each.ends] == [
        (b"sent", MessageId(1, 0)),
        ("text", None),
        (b"enqueued", MessageId(1, 1)),
    ]
    (message,) = broker.entries["orders"][0].messages()
    assert message.properties == {"a": "b", "seen": "1"}
    assert caplog.text.count("is ignored; logged once") == 2


async def test_interceptors_and_lost_messages(broker: Broker) -> None:
    each = Interceptor()
    with pytest.raises(DeliveryFailedError):
        async with PulsarProducer(
            broker.url, "orders", PulsarProducerConfig(send_timeout=1), interceptors=[each]
        ) as sends:
            broker.holds_receipts = True
            await sends.enqueue(b"v")
            await asyncio.sleep(2)
    assert isinstance(each.ends[0][2], RequestTimedOut)


# --- registrations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "number"),
    [("shared", 0), ("exclusive", 1), ("wait_for_exclusive", 2), ("exclusive_with_fencing", 3)],
)
async def test_access_modes(broker: Broker, mode: str, number: int) -> None:
    async with producer(
        broker, access_mode=mode, properties={"team": "a"}, initial_subscription="s"
    ) as sends:
        broker.cut()
        await sends.send(b"v")
    first, second = broker.registrations
    assert first.producer_access_mode == number
    assert (first.metadata, first.initial_subscription_name) == ({"team": "a"}, "s")
    assert not first.user_provided_producer_name
    assert (first.epoch, first.topic_epoch) == (0, None)
    # the name and the topic's epoch of the first success are kept
    assert (second.producer_name, second.user_provided_producer_name) == ("standalone-1", False)
    assert (second.epoch, second.topic_epoch) == (1, 5 if number else None)


async def test_a_producer_waits_for_its_turn_without_a_limit(broker: Broker) -> None:
    broker.ready = False
    entering = asyncio.create_task(producer(broker, access_mode="wait_for_exclusive").__aenter__())
    await asyncio.sleep(200)
    assert not entering.done()
    broker.make_ready()
    sends = await entering
    await sends.send(b"v")
    await sends.aclose()


async def test_a_producer_whose_connection_is_cut_waits_for_its_turn_again(broker: Broker) -> None:
    broker.ready = False
    entering = asyncio.create_task(producer(broker, access_mode="wait_for_exclusive").__aenter__())
    await asyncio.sleep(200)
    broker.cut()
    await asyncio.sleep(200)
    assert not entering.done()
    broker.make_ready()
    await (await entering).aclose()


@pytest.mark.parametrize("code", [4, 16, 25, 15, 17, 22])
async def test_a_registration_that_is_refused_is_raised(broker: Broker, code: int) -> None:
    broker.refuse_producer = lambda _: code
    with pytest.raises(PulsarServerError) as caught:
        async with producer(broker):
            pytest.fail("it was opened")
    assert caught.value.code == code


async def test_a_registration_without_answer_is_closed(broker: Broker) -> None:
    broker.silent = True
    with pytest.raises(RequestTimedOut, match="no answer within 30 s"):
        await producer(broker).__aenter__()
    await asyncio.sleep(0.1)
    kinds = [
        type(each) for each in broker.commands if isinstance(each, CommandProducer | CommandCloseProducer)
    ]
    assert kinds == [CommandProducer, CommandCloseProducer]


async def test_one_partition_that_is_refused_closes_the_others(broker: Broker) -> None:
    broker.partitions["orders"] = 3
    broker.refuse_producer = lambda command: 22 if command.topic.endswith("-2") else None
    with pytest.raises(PulsarServerError, match="NotAllowedError"):
        async with producer(broker):
            pytest.fail("it was opened")
    assert sum(isinstance(each, CommandCloseProducer) for each in broker.commands) == 2

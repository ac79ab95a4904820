"""Consumers on a real Pulsar, with messages of another client's producer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pulsar
import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.pulsar.consumer.reader import PulsarReader
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.producer.producer import PulsarProducer
from asyncgroup.pulsar.wire.message_id import EARLIEST, LATEST, MessageId, TopicMessageId
from tests.apache_pulsar import RunningPulsar
from tests.pulsar_broker.subscriptions.key_owners import KEYS, OWNERS
from tests.stories.proxy import TcpProxy

pytestmark = [pytest.mark.real, pytest.mark.java]

LIMIT = 60.0
"""Seconds; on a busy machine the first use of a topic takes some."""

Produce = Callable[..., Any]


def new_topic() -> str:
    return f"consumed-{uuid.uuid4().hex[:12]}"


async def produce(
    server: RunningPulsar, topic: str, *values: bytes, in_batch: bool = False, **options: Any
) -> list[Any]:
    """Write messages with the C++ client; return their ids."""
    keys = options.pop("keys", [None] * len(values))

    def write() -> list[Any]:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(server.service_url, logger=logger, operation_timeout_seconds=60)
        try:
            settings = {"batching_enabled": in_batch, "batching_max_publish_delay_ms": 1000, **options}
            producer = client.create_producer(topic, **settings)
            if not in_batch:
                return [
                    producer.send(value, partition_key=key, properties={"n": "1"})
                    for value, key in zip(values, keys, strict=True)
                ]
            for value, key in zip(values, keys, strict=True):
                producer.send_async(value, lambda _result, _id: None, partition_key=key)
            producer.flush()
            return []
        finally:
            client.close()

    return await asyncio.to_thread(write)


@contextlib.asynccontextmanager
async def consuming(
    server: RunningPulsar, topic: str, kind: str = "shared", **config: Any
) -> AsyncIterator[PulsarTopicConsumer]:
    settings = PulsarConsumerConfig(**{"initial_position": "earliest", **config})
    async with (
        PulsarClient(server.service_url) as client,
        client.subscribe(topic, "s", type=kind, config=settings) as consumer,
    ):
        yield consumer


async def receive(consumer: PulsarTopicConsumer, count: int) -> list[PulsarMessage]:
    async with asyncio.timeout(LIMIT):
        return [await consumer.receive() for _ in range(count)]


def values(messages: list[PulsarMessage]) -> list[bytes | None]:
    return [message.value for message in messages]


async def backlog(server: RunningPulsar, topic: str) -> int:
    stats = await server.admin.stats(topic)
    return int(stats["subscriptions"]["s"]["msgBacklog"])


async def wait_for_backlog(server: RunningPulsar, topic: str, expected: int) -> None:
    async with asyncio.timeout(LIMIT):
        while await backlog(server, topic) != expected:
            await asyncio.sleep(0.1)


async def nothing_arrives(consumer: PulsarTopicConsumer, seconds: float = 1.0) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await consumer.receive()
    except TimeoutError:
        return True
    return False


async def test_messages_of_batches_are_acknowledged_one_by_one(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    await produce(apache_pulsar, topic, b"0", b"1", b"2", in_batch=True)
    await produce(apache_pulsar, topic, b"3", keys=["k"])
    async with consuming(apache_pulsar, topic) as consumer:
        found = await receive(consumer, 4)
        assert values(found) == [b"0", b"1", b"2", b"3"]
        assert [message.message_id.batch_index for message in found] == [0, 1, 2, -1]
        assert (found[3].key, found[3].properties, found[3].headers) == (b"k", {"n": "1"}, [("n", b"1")])
        consumer.ack(found[0])
        consumer.ack(found[3])
        await consumer.flush()
        consumer.nack(found[2], 0)
        [again] = await receive(consumer, 1)
        assert (again.value, again.redelivery_count) == (b"2", 1)
        assert await nothing_arrives(consumer), "1 is still with its receiver"
    async with consuming(apache_pulsar, topic) as consumer:
        found = await receive(consumer, 2)
        assert values(found) == [b"1", b"2"]
        for message in found:
            consumer.ack(message)
    await wait_for_backlog(apache_pulsar, topic, 0)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_types_with_an_order(apache_pulsar: RunningPulsar, kind: str) -> None:
    topic = new_topic()
    await produce(apache_pulsar, topic, *(b"%d" % number for number in range(6)), in_batch=True)
    await produce(apache_pulsar, topic, b"6", b"7")
    async with consuming(apache_pulsar, topic, kind) as consumer:
        found = await receive(consumer, 8)
        consumer.ack_cumulative(found[2])
        await consumer.flush()
        consumer.nack(found[5], 0)
        assert values(await receive(consumer, 5)) == [b"3", b"4", b"5", b"6", b"7"]
        await apache_pulsar.admin.unload(topic)
        again = await receive(consumer, 5)
        assert values(again) == [b"3", b"4", b"5", b"6", b"7"]
        if kind == "exclusive":
            with pytest.raises(PulsarServerError, match="ConsumerBusy"):
                async with consuming(apache_pulsar, topic, kind):
                    pass
        else:
            [part] = consumer.partitions
            assert part.is_active
        consumer.ack_cumulative(again[-1])
    await wait_for_backlog(apache_pulsar, topic, 0)


@pytest.mark.full
async def test_another_consumer_of_a_failover_subscription_follows(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with consuming(apache_pulsar, topic, "failover", consumer_name="b") as second:
        async with consuming(apache_pulsar, topic, "failover", consumer_name="a", priority_level=0) as first:
            consumers = [each.partitions for each in (first, second)]
            async with asyncio.timeout(LIMIT):
                while sum(part.is_active for parts in consumers for part in parts) != 1:
                    await asyncio.sleep(0.05)
            await produce(apache_pulsar, topic, b"1")
            active, passive = (first, second) if first.partitions[0].is_active else (second, first)
            assert values(await receive(active, 1)) == [b"1"]
            await active.aclose()
            [message] = await receive(passive, 1)
            assert message.value == b"1"
            assert passive.partitions[0].is_active


@pytest.mark.full
async def test_the_next_consumer_of_a_failover_subscription_gets_what_is_not_yet_acknowledged(
    apache_pulsar: RunningPulsar,
) -> None:
    """The broker does not wait for acknowledgements that the client of the previous one has grouped."""
    topic = new_topic()
    settings = {"consumer_name": "b", "priority_level": 1, "ack_group_time": 600.0}
    async with consuming(apache_pulsar, topic, "failover", **settings) as before:
        await produce(apache_pulsar, topic, b"1", b"2")
        first, second = await receive(before, 2)
        before.ack(first)
        await before.flush()
        before.ack(second)
        async with consuming(apache_pulsar, topic, "failover", consumer_name="a") as after:
            assert values(await receive(after, 1)) == [b"2"]
            await before.flush()
            await wait_for_backlog(apache_pulsar, topic, 0)


@pytest.mark.full
async def test_sticky_ranges_of_keys(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with (
        consuming(apache_pulsar, topic, "key_shared", key_ranges=[(0, 32_767)]) as low,
        consuming(apache_pulsar, topic, "key_shared", key_ranges=[(32_768, 65_535)]) as high,
    ):
        with pytest.raises(PulsarServerError, match="ConsumerAssign"):
            async with consuming(apache_pulsar, topic, "key_shared", key_ranges=[(0, 5)]):
                pass
        keys = [f"k{number % 20}" for number in range(100)]
        await produce(apache_pulsar, topic, *(key.encode() for key in keys), keys=keys)
        found: dict[int, list[PulsarMessage]] = {0: [], 1: []}

        async def collect(number: int, consumer: PulsarTopicConsumer) -> None:
            async for message in consumer:
                found[number].append(message)
                consumer.ack(message)

        tasks = [asyncio.create_task(collect(*each)) for each in enumerate((low, high))]
        async with asyncio.timeout(LIMIT):
            while len(found[0]) + len(found[1]) < 100:
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        first, second = ({message.key for message in found[number]} for number in (0, 1))
        assert first
        assert second
        assert not first & second


@pytest.mark.full
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_seeks(apache_pulsar: RunningPulsar, kind: str) -> None:
    topic = new_topic()
    await produce(apache_pulsar, topic, b"0", b"1", b"2", in_batch=True)
    await asyncio.sleep(0.01)
    await produce(apache_pulsar, topic, b"3", b"4")
    async with consuming(apache_pulsar, topic, kind) as consumer:
        found = await receive(consumer, 5)
        for message in (found[1], found[3]):
            consumer.ack(message)
        await consumer.flush()
        await consumer.seek(EARLIEST)
        assert values(await receive(consumer, 5)) == [b"0", b"1", b"2", b"3", b"4"], "ack sets survive a seek"
        await consumer.seek(found[2])
        assert values(await receive(consumer, 3)) == [b"2", b"3", b"4"]
        await consumer.seek(found[1].message_id, inclusive=False)
        assert values(await receive(consumer, 3)) == [b"2", b"3", b"4"]
        await consumer.seek(found[2].message_id, inclusive=False)
        assert values(await receive(consumer, 2)) == [b"3", b"4"]
        await consumer.seek(found[3].timestamp)
        again = await receive(consumer, 2)
        assert values(again) == [b"3", b"4"]
        await consumer.seek(LATEST)
        assert await nothing_arrives(consumer)
        await produce(apache_pulsar, topic, b"5")
        [last] = await receive(consumer, 1)
        assert last.value == b"5"
        assert await consumer.last_message_ids() == [last.message_id]
        consumer.ack(last)
        await consumer.flush()
        assert await backlog(apache_pulsar, topic) == 0


@pytest.mark.full
async def test_another_consumer_moves_the_subscription_back(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    await produce(apache_pulsar, topic, b"0", b"1", b"2", in_batch=True)
    await produce(apache_pulsar, topic, b"3", b"4")
    async with consuming(apache_pulsar, topic, "shared") as first:
        found = await receive(first, 5)
        for message in found:
            first.ack(message)
        await first.flush()
        for target, inclusive, left in ((found[4], True, 1), (found[3], False, 1), (found[1], True, 4)):
            await first.seek(target, inclusive=inclusive)
            for message in await receive(first, left):
                first.ack(message)
            await first.flush()
            async with consuming(apache_pulsar, topic, "shared", start_paused=True) as second:
                await second.seek(EARLIEST)
            again = await receive(first, 5)
            assert sorted(values(again)) == [b"0", b"1", b"2", b"3", b"4"]  # type: ignore[type-var]
            for message in again:
                first.ack(message)
            await first.flush()


@pytest.mark.full
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_large_values_in_chunks(apache_pulsar: RunningPulsar, compression: str) -> None:
    topic, large = new_topic(), random.Random(1).randbytes(3_000_000)
    config = PulsarProducerConfig(
        batching=False, chunking=True, chunk_max_size=1_000_000, compression=compression
    )
    async with PulsarProducer(apache_pulsar.service_url, topic, config) as producer:
        for value in (b"small", large, b"small", large):
            await producer.send(value)
    async with consuming(apache_pulsar, topic) as consumer:
        found = await receive(consumer, 4)
        assert values(found) == [b"small", large, b"small", large]
        assert found[1].first_chunk_id is not None
        assert found[1].first_chunk_id < found[1].message_id
        consumer.nack(found[1], 0)
        [again] = await receive(consumer, 1)
        assert again.value == large
        consumer.ack(again)
        for message in (found[0], *found[2:]):
            consumer.ack(message)
        await consumer.flush()
        assert await backlog(apache_pulsar, topic) == 0
        await consumer.seek(found[1])
        assert values(await receive(consumer, 1)) == [large]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_permits_are_those_that_the_broker_counts(apache_pulsar: RunningPulsar, kind: str) -> None:
    """A chunk takes one permit, as `Consumer.sendMessages` counts entries, and a batch those of its messages."""
    topic = new_topic()
    config = PulsarProducerConfig(batching=False, chunking=True, chunk_max_size=2_000)
    async with consuming(apache_pulsar, topic, kind, receiver_queue_size=7) as consumer:
        async with PulsarProducer(apache_pulsar.service_url, topic, config) as producer:
            for size in (9_000, 10, 5_000, 20_000):
                await producer.send(random.Random(size).randbytes(size))
        await produce(apache_pulsar, topic, b"0", b"1", b"2", in_batch=True)
        for count in (1, 2, 4):
            for message in await receive(consumer, count):
                consumer.ack(message)
            await consumer.flush()
            ledger = consumer.partitions[0].permits
            async with asyncio.timeout(LIMIT):
                while await available_permits(apache_pulsar, topic) != [ledger.open]:
                    await asyncio.sleep(0.1)
        assert ledger.granted - ledger.open == ledger.delivered + ledger.dropped == 7 + 16


async def available_permits(server: RunningPulsar, topic: str) -> list[int]:
    stats = await server.admin.stats(topic)
    return [each["availablePermits"] for each in stats["subscriptions"]["s"]["consumers"]]


@pytest.mark.full
@pytest.mark.parametrize("compression", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
async def test_compressed_batches(apache_pulsar: RunningPulsar, compression: str) -> None:
    topic = new_topic()
    written = [b"%d" % number * 50 for number in range(100)]
    kind = getattr(pulsar.CompressionType, compression)
    await produce(apache_pulsar, topic, *written, in_batch=True, compression_type=kind)
    async with consuming(apache_pulsar, topic) as consumer:
        async with asyncio.timeout(LIMIT):
            found: list[PulsarMessage] = []
            while len(found) < 100:
                found += await consumer.receive_batch(max_messages=30)
        assert values(found) == written


@pytest.mark.full
async def test_partitions_that_are_added_later(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    await apache_pulsar.admin.create_partitioned_topic(topic, 2)
    settings = PulsarConsumerConfig(initial_position="earliest")
    async with (
        PulsarClient(apache_pulsar.service_url, PulsarConfig(partitions_update_interval=0.2)) as client,
        client.subscribe(topic, "s", type="shared", config=settings) as consumer,
    ):
        await produce(apache_pulsar, f"{topic}-partition-0", b"0")
        await produce(apache_pulsar, f"{topic}-partition-1", b"1")
        found = await receive(consumer, 2)
        assert {(message.value, message.partition) for message in found} == {(b"0", 0), (b"1", 1)}
        await apache_pulsar.admin.update_partitions(topic, 3)
        await produce(apache_pulsar, f"{topic}-partition-2", b"2")
        [third] = await receive(consumer, 1)
        assert (third.value, third.partition) == (b"2", 2)
        for message in (*found, third):
            consumer.ack(message)
        await consumer.unsubscribe()
    assert await apache_pulsar.admin.subscriptions(f"{topic}-partition-0") == []


@pytest.mark.full
async def test_a_topic_that_is_not_persistent(apache_pulsar: RunningPulsar) -> None:
    topic = f"non-persistent://public/default/{new_topic()}"
    config = {"initial_position": "latest", "ack_group_time": 60.0}
    async with consuming(apache_pulsar, topic, **config) as consumer:
        await produce(apache_pulsar, topic, b"1", b"2")
        for message in await receive(consumer, 2):
            consumer.ack(message)
        # all have one id: they are not taken for messages that are acknowledged
        await produce(apache_pulsar, topic, b"3", b"4", in_batch=True)
        await produce(apache_pulsar, topic, b"5", b"6", in_batch=True)
        assert [message.value for message in await receive(consumer, 4)] == [b"3", b"4", b"5", b"6"]
        await consumer.flush()


@pytest.mark.full
async def test_keys_belong_to_the_names_of_consumers(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with (
        consuming(apache_pulsar, topic, "key_shared", consumer_name="a") as first,
        consuming(apache_pulsar, topic, "key_shared", consumer_name="b") as second,
        PulsarClient(apache_pulsar.service_url) as client,
        client.producer(topic, PulsarProducerConfig(batching=False)) as producer,
    ):
        for key in KEYS:
            await producer.send(b"x", key=key)
        async with asyncio.timeout(LIMIT):
            while first.queued + second.queued < len(KEYS):
                await asyncio.sleep(0.05)
        found = {(await second.receive()).key for _ in range(second.queued)}
    assert "".join(str(int(key in found)) for key in KEYS) == OWNERS["a", "b"]


@pytest.mark.full
async def test_the_end_of_a_terminated_topic(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    await produce(apache_pulsar, topic, b"1")
    async with consuming(apache_pulsar, topic) as consumer:
        consumer.ack((await receive(consumer, 1))[0])
        assert not consumer.is_at_end
        await apache_pulsar.admin.terminate(topic)
        async with asyncio.timeout(LIMIT):
            while not consumer.is_at_end:
                await asyncio.sleep(0.05)


@pytest.mark.full
async def test_a_subscription_that_is_not_durable(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    await produce(apache_pulsar, topic, b"0", b"1", b"2", in_batch=True)
    ids = await produce(apache_pulsar, topic, b"3", b"4", b"5")
    start = MessageId(ids[0].ledger_id(), ids[0].entry_id() - 1, -1, 1)
    config = {"durable": False, "initial_position": start}
    async with consuming(apache_pulsar, topic, "exclusive", **config, start_inclusive=True) as consumer:
        assert values(await receive(consumer, 3)) == [b"1", b"2", b"3"]
        await apache_pulsar.admin.unload(topic)
        await asyncio.sleep(1)
        assert values(await receive(consumer, 2)) == [b"4", b"5"]
    async with consuming(apache_pulsar, topic, "exclusive", **config) as consumer:
        assert values(await receive(consumer, 1)) == [b"2"]


@pytest.mark.full
async def test_every_message_is_delivered_and_acknowledged_through_unloads(
    apache_pulsar: RunningPulsar,
) -> None:
    topic = new_topic()
    written = {b"%d" % number for number in range(2_000)}
    seen: set[bytes | None] = set()

    async def work(consumer: PulsarTopicConsumer, number: int) -> None:
        async for message in consumer:
            seen.add(message.value)
            if message.redelivery_count == 0 and hash(message.value) % 20 == number:
                consumer.nack(message, 0.05)
            else:
                consumer.ack(message)

    config = {"receiver_queue_size": 50, "ack_group_time": 0.02}
    async with (
        consuming(apache_pulsar, topic, **config) as first,
        consuming(apache_pulsar, topic, **config) as second,
    ):
        tasks = [asyncio.create_task(work(each, number)) for number, each in enumerate((first, second))]
        for part in range(4):
            some = sorted(written)[part * 500 : part * 500 + 500]
            await produce(apache_pulsar, topic, *some, in_batch=bool(part % 2))
            await apache_pulsar.admin.unload(topic)
        async with asyncio.timeout(LIMIT):
            while seen != written:
                await asyncio.sleep(0.1)
        await wait_for_backlog(apache_pulsar, topic, 0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_which_redeliveries_the_broker_counts(apache_pulsar: RunningPulsar) -> None:
    """Those that a consumer has asked for: not the end of a consumer; and the end of the last one ends the counts."""
    topic = new_topic()
    await produce(apache_pulsar, topic, b"0")
    async with consuming(apache_pulsar, topic) as first:
        for count in range(3):
            [message] = await receive(first, 1)
            assert message.redelivery_count == count
            if count < 2:
                first.nack(message, 0)
        async with consuming(apache_pulsar, topic) as second:
            await first.aclose()
            [message] = await receive(second, 1)
            assert message.redelivery_count == 2
    async with consuming(apache_pulsar, topic) as third:
        [message] = await receive(third, 1)
        assert message.redelivery_count == 0


@pytest.mark.full
@pytest.mark.parametrize("in_batch", [False, True])
async def test_a_reader(apache_pulsar: RunningPulsar, in_batch: bool) -> None:
    topic, values = new_topic(), [b"%d" % number for number in range(10)]
    await produce(apache_pulsar, topic, *values, in_batch=in_batch)
    async with asyncio.timeout(LIMIT), PulsarClient(apache_pulsar.service_url) as client:

        async def read_all(reader: PulsarReader) -> list[bytes | None]:
            found = []
            while await reader.has_message_available():
                found.append(await reader.read())
            ids.extend(message.message_id for message in found)
            return [message.value for message in found]

        ids: list[MessageId] = []
        async with client.reader(topic, "earliest") as reader:
            assert await read_all(reader) == values
            await reader.seek(ids[4], inclusive=True)
            assert await read_all(reader) == values[4:]
            await reader.seek("latest")
            assert await read_all(reader) == []
        async with client.reader(topic, ids[4]) as reader:
            assert await read_all(reader) == values[5:]
        async with client.reader(topic, ids[9]) as reader:
            assert not await reader.has_message_available()
        between = datetime.now(UTC)
        await asyncio.sleep(0.1)
        await produce(apache_pulsar, topic, b"new", in_batch=in_batch)
        async with client.reader(topic, between) as reader:
            assert await read_all(reader) == [b"new"]
        async with client.reader(topic) as reader:
            assert not await reader.has_message_available()
    assert await apache_pulsar.admin.subscriptions(topic) == []


@pytest.mark.full
async def test_a_reader_of_several_topics(apache_pulsar: RunningPulsar) -> None:
    """A topic with two partitions, and one without: by their ids, which a program has stored, and by time."""
    topics = [f"persistent://public/default/{new_topic()}" for _ in range(2)]
    await apache_pulsar.admin.create_partitioned_topic(topics[1], 2)
    values = [b"%d" % number for number in range(20)]
    await produce(apache_pulsar, topics[0], *values[:10])
    await produce(apache_pulsar, topics[1], *values[10:])
    stored: dict[bytes | None, tuple[str, bytes]] = {}

    async def read_all(reader: PulsarReader) -> list[bytes | None]:
        found = []
        while await reader.has_message_available():
            found.append(await reader.read())
        stored.update({each.value: (each.topic, bytes(each.message_id)) for each in found})
        return sorted((message.value for message in found), key=lambda value: int(value or b"-1"))

    def place(value: bytes) -> TopicMessageId:
        topic, data = stored[value]
        return TopicMessageId(topic, MessageId.from_bytes(data))

    async with asyncio.timeout(LIMIT), PulsarClient(apache_pulsar.service_url) as client:
        async with client.reader(topics, "earliest") as reader:
            assert await read_all(reader) == values
            ends = await reader.last_message_ids()
        places = {(end.topic, end.partition) for end in ends if isinstance(end, TopicMessageId)}
        assert places == {(topics[0], -1), (topics[1], 0), (topics[1], 1)}
        partition = place(b"15").partition
        rest = [value for value in values[10:] if int(value) > 15 or place(value).partition != partition]
        async with client.reader(topics, [place(b"4"), place(b"15")]) as reader:
            assert await read_all(reader) == [*values[5:10], *rest]
            await reader.seek([place(b"2")])
            assert await read_all(reader) == values[2:10]
        async with client.reader(topics, ends) as reader:
            assert await read_all(reader) == []
        between = datetime.now(UTC)
        await asyncio.sleep(0.1)
        await produce(apache_pulsar, topics[1], b"20")
        async with client.reader(topics, between) as reader:
            assert await read_all(reader) == [b"20"]
            await reader.seek("earliest")
            assert len(await read_all(reader)) == 21


@pytest.mark.full
@pytest.mark.parametrize("position", ["latest", "time", "seek to latest", "seek to a time"])
async def test_a_reader_that_loses_its_connection_before_its_first_message(
    apache_pulsar: RunningPulsar, position: str
) -> None:
    """It begins where it has begun before: what was written before is not read, what is written without it is."""
    topic = new_topic()
    await produce(apache_pulsar, topic, b"old", b"older")
    await asyncio.sleep(0.1)
    now = datetime.now(UTC)
    async with TcpProxy() as proxy, asyncio.timeout(LIMIT):
        config = PulsarConfig(connector=proxy.connect, retry_backoff=3.0, retry_backoff_max=3.0)
        async with PulsarClient(apache_pulsar.service_url, config) as client:
            start = {"latest": "latest", "time": now}.get(position, "earliest")
            async with client.reader(topic, start) as reader:
                if position.startswith("seek"):
                    assert len([await reader.read() for _ in range(2)]) == 2
                    await reader.seek(now if position.endswith("time") else "latest")
                await asyncio.sleep(0.3)
                proxy.reset_all()
                await produce(apache_pulsar, topic, b"new")
                assert (await reader.read()).value == b"new"
                assert not await reader.has_message_available()

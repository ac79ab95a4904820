"""Transactions on a real Pulsar: what other consumers see of them, and when."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.consumer.topic_consumer import PulsarTopicConsumer
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
from asyncgroup.pulsar.transactions.errors import (
    PulsarTransactionConflict,
    PulsarTransactionTimedOut,
)
from tests.apache_pulsar import RunningPulsar

pytestmark = [pytest.mark.real, pytest.mark.java]

LIMIT = 60.0
"""Seconds; on a busy machine the first use of a topic takes some."""
QUIET = 1.0
"""Seconds without a message after which none is expected."""


def new_topic() -> str:
    return f"transactions-{uuid.uuid4().hex[:12]}"


def client_of(server: RunningPulsar) -> PulsarClient:
    return PulsarClient(server.service_url, PulsarConfig(operation_timeout=LIMIT))


@contextlib.asynccontextmanager
async def subscribed(
    client: PulsarClient, topic: str, kind: str = "shared", name: str = "s", **config: Any
) -> AsyncIterator[PulsarTopicConsumer]:
    settings = PulsarConsumerConfig(initial_position="earliest", **config)
    async with client.subscribe(topic, name, type=kind, config=settings) as consumer:
        yield consumer


async def values(consumer: PulsarTopicConsumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(LIMIT):
        return [(await consumer.receive()).value for _ in range(count)]


async def assert_quiet(consumer: PulsarTopicConsumer) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(QUIET):
            raise AssertionError(f"{await consumer.receive()!r} was delivered")


async def test_messages_and_acknowledgements_count_together(apache_pulsar: RunningPulsar) -> None:
    source, target = new_topic(), new_topic()
    async with (
        client_of(apache_pulsar) as client,
        subscribed(client, source) as consumer,
        subscribed(client, target) as reader,
        client.producer(source) as feed,
        client.producer(target) as producer,
    ):
        for number in range(4):
            await feed.send(b"%d" % number)
        async with asyncio.timeout(LIMIT):
            messages = [await consumer.receive() for _ in range(4)]
        with pytest.raises(LookupError):
            async with client.transaction() as txn:
                await producer.send(b"aborted", transaction=txn)
                consumer.ack(messages[0], transaction=txn)
                raise LookupError
        # the abort delivers it again
        async with asyncio.timeout(LIMIT):
            again = await consumer.receive()
        assert (again.value, again.redelivery_count) == (b"0", 1)
        async with client.transaction() as txn:
            for message in (again, messages[1], messages[2]):
                await producer.enqueue(b"out " + (message.value or b""), transaction=txn)
                consumer.ack(message, transaction=txn)
            await producer.flush()
            await assert_quiet(reader)
        assert await values(reader, 3) == [b"out 0", b"out 1", b"out 2"]
        consumer.redeliver_all()
        assert await values(consumer, 1) == [b"3"]
        assert not consumer.queued


@pytest.mark.full
@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_batches(apache_pulsar: RunningPulsar, kind: str) -> None:
    topic = new_topic()
    async with client_of(apache_pulsar) as client, subscribed(client, topic, kind) as consumer:
        async with client.producer(topic, PulsarProducerConfig(batching_max_delay=1.0)) as producer:
            for number in range(6):
                await producer.enqueue(b"%d" % number, key="k")
            await producer.flush()
        async with asyncio.timeout(LIMIT):
            messages = [await consumer.receive() for _ in range(6)]
        assert messages[0].message_id[:2] == messages[5].message_id[:2], "one batch"
        async with client.transaction() as txn:
            consumer.ack(messages[0], transaction=txn)
            consumer.ack(messages[1], transaction=txn)
            await txn.abort()
        if kind == "exclusive":
            async with asyncio.timeout(LIMIT):
                messages = [await consumer.receive() for _ in range(6)]
        else:
            async with asyncio.timeout(LIMIT):
                messages[:2] = [await consumer.receive() for _ in range(2)]
        assert [message.value for message in messages] == [b"%d" % number for number in range(6)]
        await assert_quiet(consumer)
        async with client.transaction() as txn:
            for message in (messages[0], messages[2]):
                consumer.ack(message, transaction=txn)
            await asyncio.sleep(0.1)
            consumer.ack(messages[4], transaction=txn)
        consumer.redeliver_all()
        assert await values(consumer, 3) == [b"1", b"3", b"5"]
        await assert_quiet(consumer)


async def share_an_entry(service_url: str, *, commits: bool, index_acks: bool = True) -> None:
    """Acknowledge one message of a batch in a transaction, and the others by another consumer before the transaction ends."""
    topic = new_topic()
    config = PulsarConfig(operation_timeout=LIMIT)
    async with PulsarClient(service_url, config) as client, PulsarClient(service_url, config) as other:
        async with client.transaction() as txn:
            async with subscribed(client, topic) as consumer:
                async with client.producer(topic, PulsarProducerConfig(batching_max_delay=1.0)) as producer:
                    for number in range(4):
                        await producer.enqueue(b"%d" % number)
                    await producer.flush()
                async with asyncio.timeout(LIMIT):
                    messages = [await consumer.receive() for _ in range(4)]
                consumer.ack(messages[0], transaction=txn)
            async with subscribed(other, topic, index_acks=index_acks) as consumer:
                async with asyncio.timeout(LIMIT):
                    messages = [await consumer.receive() for _ in range(3)]
                assert [message.value for message in messages] == [b"1", b"2", b"3"]
                for message in messages:
                    consumer.ack(message)
                await consumer.flush()
                await assert_quiet(consumer)
                await (txn.commit() if commits else txn.abort())
                if not commits:
                    async with asyncio.timeout(LIMIT):
                        message = await consumer.receive()
                    assert message.value == b"0"
                    consumer.ack(message)
                    await consumer.flush()
        # the entry has ended
        async with subscribed(other, topic) as consumer:
            await assert_quiet(consumer)


@pytest.mark.full
@pytest.mark.parametrize("index_acks", [True, False])
@pytest.mark.parametrize("commits", [True, False])
async def test_an_entry_that_two_consumers_share(
    apache_pulsar: RunningPulsar, *, commits: bool, index_acks: bool
) -> None:
    await share_an_entry(apache_pulsar.service_url, commits=commits, index_acks=index_acks)


async def acknowledge_up_to(service_url: str, number: int, ending: str) -> list[bytes | None]:
    """Acknowledge the last of four messages of a batch in a transaction, which ends so, or `alone`; then another consumer all up to one.

    Return what is left after that.
    """
    topic = new_topic()
    config = PulsarConfig(operation_timeout=LIMIT)
    async with PulsarClient(service_url, config) as client, PulsarClient(service_url, config) as other:
        async with client.transaction() as txn:
            async with subscribed(client, topic, "exclusive") as consumer:
                async with client.producer(topic, PulsarProducerConfig(batching_max_delay=1.0)) as producer:
                    for each in range(4):
                        await producer.enqueue(b"%d" % each)
                    await producer.flush()
                async with asyncio.timeout(LIMIT):
                    messages = [await consumer.receive() for _ in range(4)]
                consumer.ack(messages[3], transaction=None if ending == "alone" else txn)
            async with subscribed(other, topic, "exclusive") as consumer:
                async with asyncio.timeout(LIMIT):
                    messages = [await consumer.receive() for _ in range(3)]
                await assert_quiet(consumer)
                consumer.ack_cumulative(messages[number])
                await consumer.flush()
            await (txn.abort() if ending == "abort" else txn.commit())
        async with subscribed(other, topic, "exclusive") as consumer:
            found = []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(QUIET * 3):
                    while True:
                        found.append((await consumer.receive()).value)
    return found


UP_TO: Final = [
    (1, "abort", [b"2", b"3"]),
    (1, "commit", [b"2"]),
    (1, "alone", [b"2"]),
    (2, "abort", [b"3"]),
    (2, "commit", []),
]


@pytest.mark.full
@pytest.mark.parametrize(("number", "ending", "left"), UP_TO)
async def test_a_cumulative_acknowledgement_leaves_what_others_have_acknowledged_after_it(
    apache_pulsar: RunningPulsar, number: int, ending: str, left: list[bytes | None]
) -> None:
    assert await acknowledge_up_to(apache_pulsar.service_url, number, ending) == left


async def seek_to_what_a_transaction_has_acknowledged(service_url: str, kind: str) -> list[bytes | None]:
    """Acknowledge the last message of a batch in a transaction, and seek to it; return what comes."""
    topic = new_topic()
    async with PulsarClient(service_url, PulsarConfig(operation_timeout=LIMIT)) as client:
        async with client.producer(topic, PulsarProducerConfig(batching_max_delay=1.0)) as producer:
            for each in range(4):
                await producer.enqueue(b"%d" % each)
            await producer.flush()
        async with subscribed(client, topic, kind) as consumer:
            async with asyncio.timeout(LIMIT):
                messages = [await consumer.receive() for _ in range(4)]
            async with client.transaction() as txn:
                consumer.ack(messages[3], transaction=txn)
            await asyncio.sleep(0.5)
            await consumer.seek(messages[3])
            return await values(consumer, 1)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_a_seek_to_what_a_transaction_has_acknowledged(apache_pulsar: RunningPulsar, kind: str) -> None:
    assert await seek_to_what_a_transaction_has_acknowledged(apache_pulsar.service_url, kind) == [b"3"]


@pytest.mark.full
async def test_a_message_in_two_transactions(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with (
        client_of(apache_pulsar) as client,
        subscribed(client, topic) as consumer,
        client.producer(topic) as producer,
    ):
        await producer.send(b"a")
        async with asyncio.timeout(LIMIT):
            message = await consumer.receive()
        async with client.transaction() as first:
            consumer.ack(message, transaction=first)
            await asyncio.sleep(0.2)
            with pytest.raises(PulsarTransactionConflict):
                async with client.transaction() as second:
                    consumer.ack(message, transaction=second)
        with pytest.raises(PulsarTransactionConflict):
            async with client.transaction() as third:
                consumer.ack(message, transaction=third)
        await assert_quiet(consumer)


async def acknowledge_beside_a_conflict(url: str, *, in_batch: bool) -> None:
    """Acknowledge several entries in one command, of which one is acknowledged already; the others come again."""
    topic = new_topic()
    config = PulsarProducerConfig(batching=in_batch, batching_max_messages=2)
    async with (
        PulsarClient(url, PulsarConfig(operation_timeout=LIMIT)) as client,
        subscribed(client, topic) as consumer,
        client.producer(topic, config) as feed,
    ):
        await asyncio.gather(*(feed.send(b"%d" % number) for number in range(10)))
        async with asyncio.timeout(LIMIT):
            messages = [await consumer.receive() for _ in range(10)]
        for message in messages[4:6]:
            consumer.ack(message)
        await consumer.flush()
        with pytest.raises(PulsarTransactionConflict):
            async with client.transaction() as txn:
                for message in messages:
                    consumer.ack(message, transaction=txn)
        again = await values(consumer, 8)
        assert sorted(again, key=str) == [message.value for message in messages[:4] + messages[6:]]
        await assert_quiet(consumer)


@pytest.mark.full
@pytest.mark.parametrize("in_batch", [False, True])
async def test_what_is_acknowledged_beside_a_conflict_comes_again(
    apache_pulsar: RunningPulsar, *, in_batch: bool
) -> None:
    await acknowledge_beside_a_conflict(apache_pulsar.service_url, in_batch=in_batch)


@pytest.mark.full
async def test_all_up_to_a_message(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with (
        client_of(apache_pulsar) as client,
        subscribed(client, topic, "exclusive") as consumer,
        client.producer(topic, PulsarProducerConfig(batching=False)) as producer,
    ):
        for number in range(6):
            await producer.send(b"%d" % number)
        async with asyncio.timeout(LIMIT):
            messages = [await consumer.receive() for _ in range(5)]
        async with client.transaction() as txn:
            consumer.ack_cumulative(messages[3], transaction=txn)
            await txn.abort()
        async with asyncio.timeout(LIMIT):
            messages = [await consumer.receive() for _ in range(6)]
        assert [message.value for message in messages] == [b"%d" % number for number in range(6)]
        async with client.transaction() as txn:
            consumer.ack_cumulative(messages[3], transaction=txn)
        consumer.redeliver_all()
        assert await values(consumer, 2) == [b"4", b"5"]
        await assert_quiet(consumer)


@pytest.mark.full
async def test_the_timeout(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    async with (
        client_of(apache_pulsar) as client,
        subscribed(client, topic) as consumer,
        client.producer(topic) as producer,
    ):
        await producer.send(b"a")
        async with asyncio.timeout(LIMIT):
            message = await consumer.receive()
        with pytest.raises(PulsarTransactionTimedOut):
            async with client.transaction(timeout=1.0) as txn:
                await producer.send(b"never", transaction=txn)
                consumer.ack(message, transaction=txn)
                await asyncio.sleep(2.0)
        assert await values(consumer, 1) == [b"a"]
        await assert_quiet(consumer)


@pytest.mark.full
async def test_a_client_that_dies(apache_pulsar: RunningPulsar) -> None:
    source, target = new_topic(), new_topic()
    async with client_of(apache_pulsar) as client, subscribed(client, target) as reader:
        dying = client_of(apache_pulsar)
        await dying.__aenter__()
        consumer = dying.subscribe(
            source, "s", type="shared", config=PulsarConsumerConfig(initial_position="earliest")
        )
        await consumer.__aenter__()
        async with client.producer(source) as feed:
            await feed.send(b"a")
        async with asyncio.timeout(LIMIT):
            message = await consumer.receive()
        txn = await dying.transaction(timeout=3.0).__aenter__()
        producer = dying.producer(target)
        await producer.__aenter__()
        await producer.send(b"lost", transaction=txn)
        consumer.ack(message, transaction=txn)
        await asyncio.sleep(0.5)
        # as if its process had died: nothing is closed in order
        assert dying._core is not None
        await producer.aclose()
        await consumer.aclose()
        await dying._core.aclose()
        async with subscribed(client, source) as other:
            # its coordinator aborts it
            assert await values(other, 1) == [b"a"]
        await assert_quiet(reader)


@pytest.mark.full
async def test_partitions_chunks_and_several_batches(apache_pulsar: RunningPulsar) -> None:
    topic = new_topic()
    config = PulsarProducerConfig(batching_max_messages=5, chunking=True, chunk_max_size=2000)
    async with client_of(apache_pulsar) as client:
        async with (
            client.producer(topic, config) as producer,
            subscribed(client, topic, "exclusive") as consumer,
        ):
            large = bytes(range(256)) * 40
            async with client.transaction() as txn:
                for number in range(12):
                    await producer.enqueue(b"%d" % number, transaction=txn)
                await producer.enqueue(large, transaction=txn)
            found = await values(consumer, 13)
            assert found == [*(b"%d" % number for number in range(12)), large]
            with contextlib.suppress(LookupError):
                async with client.transaction() as txn:
                    await producer.enqueue(large, transaction=txn)
                    await producer.enqueue(b"x", transaction=txn)
                    raise LookupError
            await producer.send(b"after")
            assert await values(consumer, 1) == [b"after"]
            await assert_quiet(consumer)

"""Transactions of our producer on a real Kafka, read with read_committed by our consumer."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from typing import Any

import pytest

from asyncgroup import (
    Cluster,
    CommittedOffset,
    Consumer,
    ConsumerConfig,
    GroupOffsets,
    OffsetManager,
    TopicPartition,
    end_transaction,
)
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import CommitFailedError, ProducerFencedError, TransactionAbortedError
from asyncgroup.producer import Producer
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.interop.test_foreign_clients import WAIT, in_thread
from tests.real.support import NEEDS_KAFKA_4, RunningKafka
from tests.real.test_producer import new_topic


def producer_of(cluster: Cluster, name: str, **config: Any) -> Producer:
    """Return a transactional producer."""
    return Producer(cluster, ProducerConfig(transactional_id=name, linger=0.0, **config))


async def committed(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Return what read_committed delivers of partition 0, up to the record `end` that this writes."""
    async with producer_of(cluster, f"{topic}-end") as producer, producer.transaction():
        await producer.send(topic, b"end", partition=0)
    config = ConsumerConfig(isolation_level="read_committed")
    values: list[bytes | None] = []
    async with asyncio.timeout(WAIT), Consumer(cluster, config) as consumer:
        async for record in await consumer.partition(topic, 0, 0):
            if record.value == b"end":
                return values
            values.append(record.value)
    raise AssertionError("the topic ended")


async def committed_offset(cluster: Cluster, group: str, topic: str) -> int:
    """Return the committed offset of partition 0."""
    async with OffsetManager(cluster, group) as offsets:
        return (await offsets.manage(topic, 0)).next_offset


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def offsets_of(group: str, topic: str, offset: int, **member: int) -> GroupOffsets:
    return GroupOffsets(group, {TopicPartition(topic, 0): CommittedOffset(offset, "meta")}, **member)  # type: ignore[arg-type]


async def commit_and_abort_with_offsets(servers: str) -> None:
    """Run five transactions, each second of them aborted."""
    group, name = unique("g"), unique("tx")
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, name) as producer:
            for number in range(5):
                try:
                    async with producer.transaction():
                        await producer.send(topic, b"%d" % number, partition=0)
                        await producer.enqueue(topic, b"more %d" % number, partition=0)
                        await producer.send_offsets(offsets_of(group, topic, number))
                        if number % 2:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    assert await committed_offset(cluster, group, topic) == number - 1
        assert await committed(cluster, topic) == [b"0", b"more 0", b"2", b"more 2", b"4", b"more 4"]
        assert await committed_offset(cluster, group, topic) == 4


async def test_commit_and_abort_with_offsets(apache_kafka: RunningKafka) -> None:
    await commit_and_abort_with_offsets(apache_kafka.bootstrap_servers)


async def test_commit_and_abort_in_version_1(kafka_39: ApacheKafka) -> None:
    """AddPartitionsToTxn and AddOffsetsToTxn, epochs by InitProducerId: Kafka 3.9 has no KIP-890."""
    await commit_and_abort_with_offsets(kafka_39.bootstrap_servers)
    await a_detached_transaction_is_ended_elsewhere(kafka_39.bootstrap_servers, version=1)


async def a_detached_transaction_is_ended_elsewhere(servers: str, version: int) -> None:
    """Commit one transaction, and abort another one, by their plain values."""
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, 1)
        for commit in (True, False):
            async with producer_of(cluster, unique("tx")) as producer, producer.transaction():
                await producer.enqueue(topic, b"kept" if commit else b"dropped", partition=0)
                detached = await producer.detach_transaction()
            assert detached.version == version
            for _ in range(2):  # a repeated end finds it done
                await end_transaction(cluster, pickle.loads(pickle.dumps(detached)), commit=commit)
        assert await committed(cluster, topic) == [b"kept"]


@NEEDS_KAFKA_4
async def test_a_detached_transaction_is_ended_elsewhere(apache_kafka: RunningKafka) -> None:
    await a_detached_transaction_is_ended_elsewhere(apache_kafka.bootstrap_servers, version=2)


async def test_a_second_producer_fences_the_first_one(apache_kafka: RunningKafka) -> None:
    name = unique("tx")
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, name) as first:
            with pytest.raises(ProducerFencedError, match="the coordinator has producer id") as raised:
                async with first.transaction():
                    await first.send(topic, b"lost", partition=0)
                    async with producer_of(cluster, name) as second:
                        async with second.transaction():
                            await second.send(topic, b"kept", partition=0)
                        await first.send(topic, b"zombie", partition=0)
            assert raised.value.current is not None
            assert raised.value.current[1] > raised.value.epoch
        assert await committed(cluster, topic) == [b"kept"]


async def test_a_member_that_the_group_does_not_know(apache_kafka: RunningKafka) -> None:
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, unique("tx")) as producer:
            with pytest.raises(CommitFailedError, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
                async with producer.transaction():
                    await producer.send(topic, b"lost", partition=0)
                    await producer.send_offsets(offsets_of(unique("g"), topic, 1, generation_id=3))
            async with producer.transaction():
                await producer.send(topic, b"kept", partition=0)
        assert await committed(cluster, topic) == [b"kept"]


async def test_records_that_failed_leave_no_gap(apache_kafka: RunningKafka) -> None:
    """A record that is too large for the broker aborts; the next transactions go on under the next epoch."""
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, unique("tx"), max_request_size=8_000_000) as producer:
            for number in range(3):
                with pytest.raises(TransactionAbortedError, match="MESSAGE_TOO_LARGE"):
                    async with producer.transaction():
                        await producer.send(topic, b"lost", partition=0)
                        await producer.enqueue(topic, b"." * 4_000_000, partition=0)
                async with producer.transaction():
                    await producer.send(topic, b"%d" % number, partition=0)
        assert await committed(cluster, topic) == [b"0", b"1", b"2"]


async def test_many_transactions_in_a_row(apache_kafka: RunningKafka) -> None:
    """The coordinator may still write markers of the last one: CONCURRENT_TRANSACTIONS is retried soon."""
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, unique("tx")) as producer:
            for number in range(100):
                async with producer.transaction():
                    producer.send_nowait(topic, b"%d" % number, partition=0)
        assert await committed(cluster, topic) == [b"%d" % number for number in range(100)]


def confluent_reads(servers: str, topic: str) -> list[bytes]:
    """Return what read_committed of librdkafka delivers of partition 0, up to its end."""
    from confluent_kafka import Consumer as Confluent, TopicPartition as Place

    consumer = Confluent(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    values = []
    try:
        while (message := consumer.poll(WAIT)) is not None and message.error() is None:
            values.append(message.value())
    finally:
        consumer.close()
    return values


async def test_librdkafka_reads_the_same(apache_kafka: RunningKafka) -> None:
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, unique("tx"), compression_type="zstd") as producer:
            for number in range(4):
                try:
                    async with producer.transaction():
                        await producer.send(topic, b"%d" % number, partition=0)
                        if number % 2:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
        ours = await committed(cluster, topic)
        assert ours == [b"0", b"2"]
        theirs = await in_thread(confluent_reads, apache_kafka.bootstrap_servers, topic)
        assert theirs == [*ours, b"end"]


@pytest.mark.full
async def test_transactions_that_time_out(apache_kafka: RunningKafka) -> None:
    """The coordinator looks for them every 10 s (`transaction.abort.timed.out.transaction.cleanup.interval.ms`)."""
    async with Cluster(apache_kafka.bootstrap_servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with (
            producer_of(cluster, unique("tx"), transaction_timeout=1.0) as writing,
            producer_of(cluster, unique("tx"), transaction_timeout=1.0) as detached,
        ):
            with pytest.raises(ProducerFencedError, match="transaction_timeout=1 s") as raised:
                async with writing.transaction(), detached.transaction():
                    await writing.send(topic, b"a", partition=0)
                    await detached.send(topic, b"b", partition=0)
                    left_open = await detached.detach_transaction()
                    async with asyncio.timeout(WAIT):
                        while True:  # until it is fenced
                            await writing.send(topic, b"c", partition=0)
                            await asyncio.sleep(0.2)
            assert raised.value.state in ("PrepareAbort", "CompleteAbort")
            with pytest.raises((TransactionAbortedError, ProducerFencedError)):
                await end_transaction(cluster, left_open, commit=True)
        assert await committed(cluster, topic) == []


@pytest.mark.full
async def test_the_broker_is_killed(kafka_to_break: ApacheKafka) -> None:
    """The coordinators are killed with it: a transaction whose block ended is in the log once, one whose block raised is not."""
    servers, ended, failed = kafka_to_break.bootstrap_servers, list[bytes](), list[bytes]()
    async with Cluster(servers) as cluster:
        topic = await new_topic(cluster, 1)
        async with producer_of(cluster, unique("tx")) as producer:
            for number in range(60):
                value = b"%d" % number
                try:
                    async with producer.transaction():
                        await producer.enqueue(topic, value, partition=0)
                        if number in (20, 39):  # one aborts, the other one commits
                            await producer.flush()
                            await asyncio.to_thread(kafka_to_break.kill, 1)
                            restart = asyncio.create_task(asyncio.to_thread(kafka_to_break.restart, 1))
                        if number % 3 == 2:
                            raise ZeroDivisionError
                    ended.append(value)
                except ZeroDivisionError:
                    failed.append(value)
                if number in (20, 39):
                    await restart
        assert await committed(cluster, topic) == ended
    assert (len(ended), len(failed)) == (40, 20)

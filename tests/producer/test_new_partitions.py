"""Records for a partition that the metadata does not show: it is looked up as often as a topic is, and nothing else waits.

Right after partitions were added, brokers answer with the former number until the change has reached them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.control.faults import Fault
from asyncgroup.consumer import Consumer
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    DeliveryFailedError,
    InvalidRecordError,
    RequestTimedOut,
    TransactionAbortedError,
)
from asyncgroup.offsets import OffsetManager
from asyncgroup.producer import Producer
from tests.producer.support import QUICK, TOPIC, now, produced, stored, writing

Limits = dict[str, Any]
LIMITS: list[Limits] = [{}, {"max_pending_records_per_partition": 100}]


def former(count: int) -> Callable[[Any], Any]:
    """Return a change of a Metadata response: the topic has its former number of partitions."""

    def change(response: Any) -> Any:
        for topic in response.topics:
            topic.partitions = [each for each in topic.partitions if each.partition_index < count]
        return response

    return change


def stale(cluster: EmbeddedCluster, times: int | None = 1, count: int = 3) -> Fault:
    """Answer the next `times` Metadata requests with the former number of partitions."""
    return cluster.faults.on("Metadata", times=times).mutate(former(count))


def lookups(cluster: EmbeddedCluster) -> int:
    return len(cluster.history.of("Metadata"))


@asynccontextmanager
async def extended(total: int = 4, **config: Any) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Yield a producer that knows three partitions of its topic, which has had `total` since then."""
    async with writing(nodes=1, partitions=3, **QUICK | config) as (cluster, producer):
        if producer.config.transactional_id is None:
            await producer.send(TOPIC, b"first", partition=0)
        cluster.create_partitions(TOPIC, total)
        yield cluster, producer


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("answers", [1, 5])
async def test_stale_answers_after_partitions_were_added(answers: int, limits: Limits) -> None:
    async with extended(**limits) as (cluster, producer):
        fault = stale(cluster, answers)
        assert (await producer.send(TOPIC, b"x", partition=3)).partition == 3
        assert fault.hits == answers
        assert stored(cluster, 3) == [b"x"]


async def test_a_partition_is_looked_up_as_often_as_a_topic() -> None:
    async with extended(metadata_retry_max=4) as (cluster, producer):
        before = lookups(cluster)
        with pytest.raises(InvalidRecordError, match=r"partition=4 .*has 4 partitions") as raised:
            await producer.send(TOPIC, b"x", partition=4)
        assert (raised.value.field, raised.value.value, raised.value.retriable) == ("partition", 4, False)
        assert lookups(cluster) - before == 5


@pytest.mark.parametrize("limits", LIMITS)
async def test_no_other_record_waits_for_a_missing_partition(limits: Limits) -> None:
    async with extended(**limits) as (cluster, producer):
        wrong = [producer.send_nowait(TOPIC, b"x", partition=number) for number in (7, 99, 7)]
        await asyncio.sleep(0.05)  # the first lookup has ended
        began = now()
        await producer.send(TOPIC, b"a", partition=0)
        await producer.send(TOPIC, b"b", partition=3)
        await producer.send(TOPIC, b"c", key=b"k")
        await producer.send(TOPIC, b"d")
        assert now() - began < 0.5
        assert not any(future.done() for future in wrong)
        for future in wrong:
            with pytest.raises(InvalidRecordError, match="has 4 partitions"):
                await future
        assert len(stored(cluster)) == 5
        assert "0 of" in repr(producer)


async def test_a_wrong_partition_does_not_use_up_the_lookups_of_another() -> None:
    """The second lookup begins when the first one is about to give up."""
    async with writing(nodes=1, partitions=3, **QUICK) as (cluster, producer):
        await producer.send(TOPIC, b"first", partition=0)
        wrong = producer.send_nowait(TOPIC, b"x", partition=9)
        await cluster.faults.on("Metadata", nth=6).observe(lambda _: None).wait_hit()
        cluster.create_partitions(TOPIC, 4)
        stale(cluster, 2)
        late = producer.send_nowait(TOPIC, b"y", partition=3)
        with pytest.raises(InvalidRecordError, match="orders-9"):
            await wrong
        assert (await late).partition == 3


async def test_the_records_of_a_new_partition_keep_their_order() -> None:
    """This includes records that are sent after another refresh has found the partition, while the lookup pauses."""
    async with extended() as (cluster, producer):
        fault = stale(cluster)
        for number in range(3):
            producer.send_nowait(TOPIC, b"%d" % number, partition=3)
        await fault.wait_hit()
        await producer.cluster.refresh()
        assert producer.cluster.view.partition(TOPIC, 3) is not None
        assert stored(cluster, 3) == []
        await producer.enqueue_all([(TOPIC, b"3", None, (), 3, None)])
        await producer.send(TOPIC, b"4", partition=3)
        assert stored(cluster, 3) == [b"0", b"1", b"2", b"3", b"4"]


def to_the_last(_key: bytes | None, partitions: int) -> int:
    """A partitioner."""
    return partitions - 1


@pytest.mark.parametrize("limits", LIMITS)
async def test_records_that_the_partitioner_puts_into_a_new_partition_come_after_those_that_wait(
    limits: Limits,
) -> None:
    """Later ones for a given partition come after these in turn, and each is counted where it is."""
    async with extended(partitioner=to_the_last, **limits) as (cluster, producer):
        fault = stale(cluster)
        futures = [producer.send_nowait(TOPIC, b"0", partition=3)]
        await fault.wait_hit()
        futures.append(
            producer.send_nowait(TOPIC, b"before", key=b"k")
        )  # the topic has three partitions still
        await producer.cluster.refresh()
        futures += [producer.send_nowait(TOPIC, b"%d" % number, key=b"k") for number in (1, 2)]
        futures += [
            producer.send_nowait(TOPIC, b"3", partition=3),
            producer.send_nowait(TOPIC, b"4", key=b"k"),
        ]
        await asyncio.wait_for(asyncio.gather(*futures), 5.0)
        assert stored(cluster, 3) == [b"0", b"1", b"2", b"3", b"4"]
        assert stored(cluster, 2) == [b"before"]
        assert "0 of" in repr(producer)
        await producer.send(TOPIC, b"5", key=b"k")


async def test_a_record_that_cannot_be_routed_fails_those_that_wait_behind_it_in_the_transaction() -> None:
    def refuses(key: bytes | None, _partitions: int) -> int:
        return -7 if key == b"bad" else 3

    async with extended(transactional_id="tx", partitioner=refuses) as (cluster, producer):
        cluster.create_topic("unknown", 4)
        began = now()
        with pytest.raises(TransactionAbortedError):
            async with producer.transaction():
                sends = [
                    asyncio.ensure_future(producer.send("unknown", b"x", key=key)) for key in (b"bad", b"k")
                ]
                _, pending = await asyncio.wait(sends, timeout=30.0)
                assert not pending
                assert all(isinstance(each.exception(), AsyncGroupError) for each in sends)
        assert now() - began < 5.0


async def test_flush_waits_for_the_lookup_of_a_partition() -> None:
    """Of a topic that was unknown, whose metadata then lacks the partition; `flush` names the partition."""
    async with writing(nodes=1, partitions=4, **QUICK) as (cluster, producer):
        stale(cluster, 3)
        await producer.enqueue(TOPIC, b"x", partition=3)
        await producer.flush()
        assert stored(cluster, 3) == [b"x"]
        await producer.enqueue(TOPIC, b"x", partition=8)
        with pytest.raises(DeliveryFailedError, match="orders-8") as raised:
            await producer.flush()
        assert {tp.partition: count for tp, (count, _) in raised.value.failed.items()} == {8: 1}


@pytest.mark.full
async def test_a_missing_partition_expires_with_the_delivery_timeout() -> None:
    """While no broker answers, a lookup is no failed one."""
    async with extended(delivery_timeout=5.0, request_timeout=4.0) as (cluster, producer):
        await cluster.stop_node(1)
        began = now()
        with pytest.raises(RequestTimedOut, match=r"orders-3.*within delivery_timeout=5 s"):
            await producer.send(TOPIC, b"x", partition=3)
        assert now() - began == pytest.approx(5.0, abs=0.5)


@pytest.mark.full
async def test_closing_ends_the_lookup_of_a_partition() -> None:
    async with extended() as (cluster, producer):
        future = producer.send_nowait(TOPIC, b"x", partition=9)
        await asyncio.sleep(0.01)
        await producer.aclose(drain=False)
        with pytest.raises(Exception, match="closed"):
            await future
        assert len(produced(cluster)) == 1


async def test_a_transaction_waits_for_a_new_partition_and_fails_with_a_wrong_one() -> None:
    async with extended(transactional_id="tx") as (cluster, producer):
        stale(cluster, 2)
        async with producer.transaction():
            await producer.send(TOPIC, b"x", partition=3)
        with pytest.raises(TransactionAbortedError, match="orders-9"):
            async with producer.transaction():
                await producer.enqueue(TOPIC, b"x", partition=9)
        assert stored(cluster, 3) == [b"x"]


async def test_readers_wait_for_a_new_partition_too() -> None:
    async with writing(nodes=1, partitions=3) as (cluster, _):
        async with Consumer(cluster.bootstrap_servers) as consumer:
            await consumer.partitions(TOPIC)
            consumer.cluster.track([TOPIC])
            await consumer.cluster.refresh()
            cluster.create_partitions(TOPIC, 4)
            stale(cluster, 2)
            await consumer.partition(TOPIC, 3, "earliest")
            with pytest.raises(BrokerError, match=r"orders-4: UNKNOWN_TOPIC_OR_PARTITION .*the topic has 4"):
                await consumer.partition(TOPIC, 4, "earliest")
            with pytest.raises(BrokerError, match="orders--1: UNKNOWN_TOPIC_OR_PARTITION"):
                await consumer.partition(TOPIC, -1, "earliest")


async def test_offsets_are_managed_for_a_new_partition_too() -> None:
    async with writing(nodes=1, partitions=3) as (cluster, _):
        async with OffsetManager(cluster.bootstrap_servers, "g") as offsets:
            await offsets.manage(TOPIC, 0)
            await offsets.cluster.refresh()
            cluster.create_partitions(TOPIC, 4)
            stale(cluster, 2)
            managed = await offsets.manage(TOPIC, 3)
            managed.mark_offset(5)
            with pytest.raises(BrokerError, match=r"orders-4: UNKNOWN_TOPIC_OR_PARTITION .*the topic has 4"):
                await offsets.manage(TOPIC, 4)

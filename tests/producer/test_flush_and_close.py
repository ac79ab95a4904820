"""flush(), aclose(), a shared cluster, and hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.config import ClientConfig, ProducerConfig
from asyncgroup.errors import ClosedError, DeliveryFailedError, NoBrokersError
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.producer import Producer
from tests.producer.support import TOPIC, fill_memory, now, stored, writing


async def test_flush_does_not_linger_and_waits_only_for_earlier_records() -> None:
    async with writing(linger=50.0, delivery_timeout=100.0) as (cluster, producer):
        await producer.enqueue(TOPIC, b"before", partition=0)
        await producer.flush()
        assert now() < 1.0
        assert stored(cluster, 0) == [b"before"]
        cluster.faults.on("Produce").delay(3.0)
        await producer.enqueue(TOPIC, b"slow", partition=0)
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(1)
        await producer.enqueue(TOPIC, b"after", partition=0)
        await flushing
        assert now() < 10.0
        assert stored(cluster, 0) == [b"before", b"slow"]
        await producer.flush()


async def test_flush_with_nothing_to_send_and_concurrent_flushes() -> None:
    async with writing() as (cluster, producer):
        await producer.flush()
        assert not cluster.history.of("Produce")
        await producer.enqueue(TOPIC, b"x")
        impatient = asyncio.create_task(producer.flush())
        flushes = [asyncio.create_task(producer.flush()) for _ in range(5)]
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(*flushes)
        assert impatient.cancelled()
        assert stored(cluster) == [b"x"]


async def test_leaving_the_context_sends_the_remaining_records() -> None:
    async with EmbeddedCluster(nodes=3, seed=1) as cluster:
        cluster.create_topic(TOPIC, 6)
        config = ProducerConfig(linger=50.0)
        async with Producer(cluster.bootstrap_servers, config) as producer:
            futures = [producer.send_nowait(TOPIC, b"%d" % number) for number in range(10)]
            for number in range(10, 20):
                await producer.enqueue(TOPIC, b"%d" % number)
        assert all(future.done() for future in futures)
        assert len(stored(cluster)) == 20
        assert now() < 1.0
        assert "closed" in repr(producer)


async def test_a_closed_producer_raises_closed_error() -> None:
    async with writing() as (_, producer):
        await producer.aclose()
        await producer.aclose()
        for call in (producer.send, producer.enqueue):
            with pytest.raises(ClosedError, match="closed"):
                await call(TOPIC, b"x")
        with pytest.raises(ClosedError):
            producer.send_nowait(TOPIC, b"x")
        await producer.flush()


async def test_a_producer_that_was_never_entered_raises_closed_error() -> None:
    producer = Producer("localhost:9092")
    with pytest.raises(ClosedError, match="never entered"):
        await producer.send(TOPIC, b"x")
    await producer.aclose()


async def test_closing_fails_callers_that_wait_for_memory() -> None:
    async with writing(buffer_bytes=400) as (cluster, producer):
        first, waiting = await fill_memory(cluster, producer, delay=2.0)
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(producer.aclose())
        with pytest.raises(ClosedError):
            await waiting
        assert now() < 0.5, "at once, not when memory is freed"
        await closing
        assert (await first).offset == 0


async def test_closing_without_drain_fails_all_records_at_once() -> None:
    """As Java's close(0): also those in flight, which may be in the log."""
    async with writing(linger=50.0, delivery_timeout=200.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        fault = cluster.faults.on("Produce").hold()
        in_flight = producer.send_nowait(TOPIC, b"sent", partition=1)
        await asyncio.sleep(60)
        lingering = producer.send_nowait(TOPIC, b"never sent", partition=2)
        backlog = producer.send_nowait("unknown", b"never sent")
        await producer.enqueue(TOPIC, b"never sent", partition=2)
        start = now()
        with pytest.raises(DeliveryFailedError, match=r"1 record not delivered: .*4 records"):
            await producer.aclose(drain=False)
        assert now() == start
        for future in (in_flight, lingering, backlog):
            with pytest.raises(
                ClosedError, match=r"4 records for 2 partitions .*\(drain=False\); .* may be in the log"
            ):
                await future
        fault.release()
        await asyncio.sleep(1)
        assert b"never sent" not in stored(cluster)


async def test_a_second_close_without_drain_ends_the_first_one() -> None:
    async with writing() as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").hold()
        future = producer.send_nowait(TOPIC, b"x", partition=1)
        closing = asyncio.create_task(producer.aclose())
        await asyncio.sleep(1)
        assert not closing.done()
        start = now()
        await asyncio.gather(producer.aclose(drain=False), closing)
        assert now() == start
        with pytest.raises(ClosedError, match="drain=False"):
            await future


async def test_entering_raises_if_no_broker_answers() -> None:
    with pytest.raises(NoBrokersError, match=r"10\.9\.9\.9:9092"):
        async with Producer("10.9.9.9:9092"):
            pass


async def test_a_shared_cluster_stays_open_and_stops_tracking_the_topics() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic(TOPIC, 2)
        async with Cluster(broker.bootstrap_servers, ClientConfig(client_id="shared")) as cluster:
            async with Producer(cluster, ProducerConfig(linger=0.0)) as producer:
                await producer.send(TOPIC, b"x")
            assert cluster.is_open
            await cluster.refresh()
            assert TOPIC not in cluster.view.topics
            async with Producer(cluster) as producer:
                await producer.send(TOPIC, b"y")
        assert {asked.client_id for asked in broker.history} == {"shared"}


async def test_closing_a_shared_cluster_fails_records_in_flight() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic(TOPIC, 2)
        async with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
            await producer.send(TOPIC, b"x")
            broker.faults.on("Produce").drop()
            sending = asyncio.create_task(producer.send(TOPIC, b"y"))
            await asyncio.sleep(1)
            await cluster.aclose()
            with pytest.raises(ClosedError):
                await sending
            with pytest.raises(ClosedError):
                await producer.send(TOPIC, b"z")
        assert now() < 5.0


class RecordedHooks:
    """Hooks that record their calls."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_produce(self, *values: Any) -> None:
        self.events.append(values)

    def on_delivered(self, *values: Any) -> None:
        self.events.append(("delivered", *values))


async def test_hooks_are_called_for_every_batch() -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic(TOPIC, 2)
        seen = RecordedHooks()
        async with Producer(broker.bootstrap_servers, ProducerConfig(linger=0.1), hooks=[seen]) as producer:
            for _ in range(3):
                await producer.enqueue(TOPIC, b"x", partition=1)
            await producer.flush()
            await producer.enqueue(TOPIC, b"y", partition=1)
        assert seen.events == [
            *[(TOPIC, 1, 3, None), ("delivered", TOPIC, 1, 0, 3)],
            *[(TOPIC, 1, 1, None), ("delivered", TOPIC, 1, 3, 1)],
        ]


async def test_many_topics_and_tasks_at_once() -> None:
    async with EmbeddedCluster(nodes=3, seed=1) as broker:
        for number in range(20):
            broker.create_topic(f"topic-{number}", 3)
        async with Producer(broker.bootstrap_servers) as producer:

            async def one(topic: int) -> list[RecordMetadata]:
                return [await producer.send(f"topic-{topic}", b"%d" % n, key=b"k") for n in range(20)]

            for places in await asyncio.gather(*(one(number) for number in range(20))):
                assert [place.offset for place in places] == list(range(20))
        assert (
            len(
                {
                    TopicPartition(r.topic, r.partition)
                    for n in range(20)
                    for r in broker.records(f"topic-{n}")
                }
            )
            == 20
        )

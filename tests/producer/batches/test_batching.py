"""Batches, requests, and a full buffer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.errors import QueueFull
from asyncgroup.producer.sending.requests import PRODUCE_LANE
from asyncgroup.wire.batch_view import iter_batches
from tests.broker.internals import log_of
from tests.producer.support import TOPIC, now, produced, stored, writing

# --- batches and requests ---------------------------------------------------------------------------------------


async def test_linger_collects_records_of_one_partition() -> None:
    async with writing(linger=0.5) as (cluster, producer):
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(producer.send(TOPIC, b"%d" % number, partition=0))
                await asyncio.sleep(0.1)
        assert len(produced(cluster)) == 1
        assert produced(cluster)[0].time == pytest.approx(0.5)
        assert stored(cluster, 0) == [b"0", b"1", b"2", b"3", b"4"]


async def test_without_linger_records_written_during_a_request_form_one_batch() -> None:
    async with writing(linger=0.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").delay(1.0)
        first = asyncio.create_task(producer.send(TOPIC, b"first", partition=0))
        await asyncio.sleep(0.1)
        rest = [asyncio.create_task(producer.send(TOPIC, b"rest", partition=0)) for _ in range(10)]
        await asyncio.gather(first, *rest)
        assert len(produced(cluster)) == 3


async def test_one_request_carries_the_batches_of_all_partitions_of_a_node() -> None:
    async with writing(nodes=1, linger=0.1) as (cluster, producer):
        await asyncio.gather(*(producer.send(TOPIC, b"x", partition=partition) for partition in range(6)))
        (asked,) = produced(cluster)
        assert [part.index for topic in asked.request.topic_data for part in topic.partition_data] == list(
            range(6)
        )


async def test_a_slow_node_delays_only_its_own_partitions() -> None:
    async with writing(linger=0.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        leaders = [cluster.leader(TOPIC, partition) for partition in range(6)]
        slow = leaders[0]
        cluster.faults.on("Produce", node=slow, times=None).delay(10.0)
        first = asyncio.create_task(producer.send(TOPIC, b"x", partition=0))
        await asyncio.sleep(1)
        started = now()
        await asyncio.gather(
            *(producer.send(TOPIC, b"x", partition=p) for p in range(6) if leaders[p] != slow)
        )
        assert now() == started
        await first


async def test_at_most_five_requests_in_flight_to_a_node() -> None:
    async with writing(linger=0.0, partitions=8, nodes=1) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce", times=None).delay(10.0)
        sends = []
        for number in range(8):
            sends.append(producer.send_nowait(TOPIC, b"%d" % number, partition=0 if number < 4 else number))
            await asyncio.sleep(0.1)
        assert (await producer.cluster._inner.network.connection(1, PRODUCE_LANE)).in_flight == 5
        await asyncio.gather(*sends)
        assert stored(cluster, 0) == [b"warm up", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_no_request_overtakes_one_that_waits_for_the_connection(turns: int) -> None:
    async with writing(linger=0.0, nodes=1) as (cluster, producer):
        for partition in (0, 1):
            await producer.send(TOPIC, b"warm up", partition=partition)
        producer.cluster._inner.pool.abort_lane(PRODUCE_LANE)
        first = producer.send_nowait(TOPIC, b"first", partition=0)
        for _ in range(turns):
            await asyncio.sleep(0)
        second = producer.send_nowait(TOPIC, b"second", partition=1)
        await asyncio.gather(first, second)
        requests = [request.request.topic_data[0].partition_data for request in produced(cluster)[2:]]
        assert [part.index for parts in requests for part in parts] == [0, 1]


async def test_without_idempotence_a_partition_has_one_batch_in_flight() -> None:
    async with writing(linger=0.0, nodes=1, enable_idempotence=False) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce", times=None).delay(10.0)
        sends = []
        for number in range(4):
            sends.append(producer.send_nowait(TOPIC, b"%d" % number, partition=0))
            await asyncio.sleep(0.1)
        assert (await producer.cluster._inner.network.connection(1, PRODUCE_LANE)).in_flight == 1
        assert not cluster.history.of("InitProducerId")
        await asyncio.gather(*sends)


@pytest.mark.parametrize("partition", [0, None])
async def test_a_batch_is_sent_when_it_has_batch_records(partition: int | None) -> None:
    """Pulsar's `batchingMaxMessages`, sarama's `Flush.Messages`."""
    async with writing(nodes=1, linger=60.0, batch_records=10) as (cluster, producer):
        sends = [producer.send_nowait(TOPIC, b"%d" % number, partition=partition) for number in range(25)]
        started = now()
        await asyncio.gather(*sends[:20])
        assert now() - started < 1
        assert not any(send.done() for send in sends[20:])
        await producer.flush()
        found = iter_batches(bytes(log_of(cluster, TOPIC, 0).read(0, 1 << 30)))
        if partition == 0:
            assert [batch.record_count for batch in found] == [10, 10, 5]


async def test_batches_and_requests_respect_their_size_limits() -> None:
    async with writing(nodes=1, linger=60.0, batch_size=1000, max_request_size=2500) as (cluster, producer):
        for number in range(200):
            await producer.enqueue(TOPIC, b"." * 90, partition=number % 6)
        await producer.enqueue(TOPIC, b"." * 2000, partition=0)
        await producer.flush()
        assert len(cluster.records(TOPIC)) == 201
        assert max(asked.request_bytes for asked in produced(cluster)) < 2500 + 200


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compression(codec: Any) -> None:
    async with writing(compression_type=codec, linger=1.0) as (cluster, producer):
        for number in range(500):
            await producer.enqueue(TOPIC, b"%05d" % number * 20, partition=0)
        await producer.flush()
        assert stored(cluster, 0) == [b"%05d" % number * 20 for number in range(500)]
        assert (produced(cluster)[0].request_bytes < 20_000) == (codec != "none")


@pytest.mark.parametrize(("acks", "on_the_wire", "offset"), [("all", -1, 0), (1, 1, 0), (0, 0, -1)])
async def test_acks(acks: Any, on_the_wire: int, offset: int) -> None:
    async with writing(acks=acks) as (cluster, producer):
        assert (await producer.send(TOPIC, b"x", partition=0)).offset == offset
        await producer.send(TOPIC, b"y", partition=0)
        assert {asked.request.acks for asked in produced(cluster)} == {on_the_wire}
        await asyncio.sleep(1)
        assert stored(cluster, 0) == [b"x", b"y"]


async def test_topic_ids_are_used_where_the_broker_has_them() -> None:
    async with writing() as (cluster, producer):
        await producer.send(TOPIC, b"x")
        (asked,) = produced(cluster)
        assert asked.version == 13
        assert asked.request.topic_data[0].topic_id == cluster.topic(TOPIC).id


# --- the buffer ----------------------------------------------------------------------------------------------------


async def test_send_nowait_raises_when_the_buffer_is_full_and_others_wait() -> None:
    async with writing(buffer_bytes=1000, linger=100.0, delivery_timeout=200.0) as (cluster, producer):
        await producer.enqueue(TOPIC, b"warm up")
        await producer.flush()
        futures = [producer.send_nowait(TOPIC, b"." * 300, partition=0) for _ in range(3)]
        with pytest.raises(QueueFull, match=r"no room for 321 bytes: buffer_bytes=1000: 963 bytes in use"):
            producer.send_nowait(TOPIC, b"." * 300, partition=0)
        await producer.enqueue(TOPIC, b"." * 300, partition=0)
        assert now() < 1.0, "a caller that waits for memory does not wait for linger"
        await asyncio.gather(*futures)
        await producer.flush()
        assert len(stored(cluster, 0)) >= 4


async def test_enqueue_waits_for_memory_in_fifo_order() -> None:
    async with writing(buffer_bytes=1000, max_request_size=10_000) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").delay(5.0)
        tasks = [
            asyncio.create_task(producer.enqueue(TOPIC, b"%02d" % number + b"." * 300, partition=1))
            for number in range(12)
        ]
        await asyncio.sleep(1)
        assert 0 < sum(task.done() for task in tasks) < 12
        tasks[5].cancel()
        await asyncio.wait(tasks)
        await producer.flush()
        numbers = [int((value or b"")[:2]) for value in stored(cluster, 1)]
        assert numbers == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


async def test_a_record_larger_than_the_buffer_is_sent_when_the_buffer_is_empty() -> None:
    async with writing(buffer_bytes=100) as (cluster, producer):
        await asyncio.gather(*(producer.send(TOPIC, b"." * 500, partition=0) for _ in range(3)))
        assert len(stored(cluster, 0)) == 3


async def test_enqueue_that_never_waits_still_yields_to_the_event_loop() -> None:
    async with writing(batch_size=1000) as (_, producer):
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(other())
        await producer.send(TOPIC, b"warm up")
        before = turns
        for _ in range(1000):
            await producer.enqueue(TOPIC, b"." * 100)
        assert turns - before > 50
        beside.cancel()
        await producer.flush()

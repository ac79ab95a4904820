"""A producer with many partitions: what one node, or one partition, does to the others, and to the memory of all."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.errors import RequestTimedOut
from asyncgroup.producer.batches.schedule import MAX_BATCHES
from tests.producer.support import TOPIC, now, produced, stored, writing

PARTITIONS = 300  # more than MAX_BATCHES


async def test_each_record_expires_at_its_own_time_while_other_nodes_go_on() -> None:
    """Partitions of a node that does not respond, written to one after the other, and those of two other nodes."""
    async with writing(partitions=PARTITIONS, delivery_timeout=31.0) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        silent = cluster.leader(TOPIC, 0)
        cluster.faults.on("Produce", node=silent, times=None).drop()
        lost, begun = {}, {}
        for partition in range(PARTITIONS):
            if cluster.leader(TOPIC, partition) == silent:
                begun[partition] = now()
                lost[partition] = asyncio.create_task(
                    ended_at(producer.send(TOPIC, b"x", partition=partition))
                )
                await asyncio.sleep(0.01)
            else:
                before = now()
                await producer.send(TOPIC, b"x", partition=partition)
                assert now() == before
        for partition, task in lost.items():
            assert await task == pytest.approx(begun[partition] + 31.0, abs=1e-6)
        assert len(lost) > 50
        assert producer._inner.memory.used == 0


async def ended_at(sending: object) -> float:
    with pytest.raises(RequestTimedOut):
        await sending  # type: ignore[misc]  # a coroutine
    return now()


async def test_partitions_of_a_node_take_turns() -> None:
    """A request has at most so many batches; no partition gets a second one before each got its first."""
    async with writing(nodes=1, partitions=PARTITIONS, max_in_flight_requests=1, batch_size=6_000) as (
        cluster,
        producer,
    ):
        await producer.send(TOPIC, b"warm up", partition=0)
        held = cluster.faults.on("Produce").hold()
        sends = [producer.send_nowait(TOPIC, b"first", partition=0)]
        await held.wait_hit()
        for value in (b"1", b"2", b"3"):
            sends += [
                producer.send_nowait(TOPIC, value * 5_000, partition=partition)
                for partition in range(PARTITIONS)
            ]
        await asyncio.sleep(0)
        held.release()
        await asyncio.gather(*sends)
        requests = [
            [part.index for topic in each.request.topic_data for part in topic.partition_data]
            for each in produced(cluster)[2:]
        ]
        assert max(map(len, requests)) <= MAX_BATCHES
        served = [partition for request in requests for partition in request]
        assert sorted(served[:PARTITIONS]) == list(range(PARTITIONS))


async def test_memory_is_a_limit_with_many_partitions() -> None:
    async with writing(
        nodes=3, partitions=PARTITIONS, linger=60.0, delivery_timeout=200.0, buffer_bytes=40_000
    ) as (
        cluster,
        producer,
    ):
        most = 0
        for number in range(3 * PARTITIONS):
            await producer.enqueue(TOPIC, b"." * 100, partition=number % PARTITIONS)
            most = max(most, producer._inner.memory.used)
        assert 39_000 < most <= 40_000
        await producer.flush()
        assert now() < 1.0, "no batch lingers while a caller waits for memory"
        assert len(stored(cluster)) == 3 * PARTITIONS
        assert producer._inner.memory.used == 0


@pytest.mark.full
async def test_order_is_kept_in_each_of_many_partitions_with_retries() -> None:
    async with writing(partitions=PARTITIONS, linger=0.005, retry_backoff=0.01) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        for each in range(20):
            cluster.faults.on("Produce", nth=3 * each + 1).disconnect("before" if each % 2 else "after")
        for number in range(3000):
            await producer.enqueue(TOPIC, b"%05d" % number, partition=number % 300)
            if number % 100 == 0:
                await asyncio.sleep(0.002)
        await producer.flush()
        for partition in range(1, 300):
            assert stored(cluster, partition) == [b"%05d" % number for number in range(partition, 3000, 300)]
        cluster.faults.clear()

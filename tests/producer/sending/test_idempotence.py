"""Each acknowledged record is in the log once, in order: producer ids, epochs and sequence numbers on the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.config import ProducerConfig
from asyncgroup.errors import BrokerError, ErrorCode, RequestTimedOut
from asyncgroup.producer import Producer
from asyncgroup.wire.batch_view import BatchView, iter_batches
from tests.broker.internals import log_of
from tests.cluster.scripted import ScriptedCluster
from tests.producer.support import QUICK, TOPIC, now, stored, writing


def batches(cluster: EmbeddedCluster, partition: int = 0) -> list[BatchView]:
    """Return the batches in the log of a partition."""
    log = log_of(cluster, TOPIC, partition)
    return list(iter_batches(bytes(log.read(0, 1 << 30))))


def numbers(cluster: EmbeddedCluster, partition: int = 0) -> list[tuple[int, int, int]]:
    """Return producer epoch, first sequence number and number of records of each batch in the log of a partition."""
    found = batches(cluster, partition)
    return [(batch.producer_epoch, batch.base_sequence, batch.record_count) for batch in found]


# --- producer ids ---------------------------------------------------------------------------------------------------


async def test_one_producer_id_for_all_partitions() -> None:
    async with writing() as (cluster, producer):
        await asyncio.gather(*(producer.send(TOPIC, b"x", partition=partition) for partition in range(6)))
        await producer.send(TOPIC, b"y", partition=0)
        ids = {batch.producer_id for partition in range(6) for batch in batches(cluster, partition)}
        assert len(ids) == len(cluster.history.of("InitProducerId")) == 1
        assert numbers(cluster) == [(0, 0, 1), (0, 1, 1)]


async def test_a_refused_producer_id_fails_the_records_and_is_asked_for_again() -> None:
    """Before Kafka 2.8 a user needs the right to idempotent writes."""
    async with writing() as (cluster, producer):
        cluster.faults.on("InitProducerId").error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match=r"the producer's id: CLUSTER_AUTHORIZATION_FAILED"):
            await producer.send(TOPIC, b"x", partition=0)
        assert (await producer.send(TOPIC, b"y", partition=0)).offset == 0


async def test_a_producer_id_is_waited_for() -> None:
    async with writing(**QUICK) as (cluster, producer):
        cluster.faults.on("InitProducerId", times=3).error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert (await producer.send(TOPIC, b"x", partition=0)).offset == 0
        assert len(cluster.history.of("InitProducerId")) == 4


async def test_no_producer_id_until_delivery_timeout() -> None:
    async with writing(delivery_timeout=40.0, **QUICK) as (cluster, producer):
        cluster.faults.on("InitProducerId", times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        with pytest.raises(RequestTimedOut, match=r"no producer id: .*COORDINATOR_NOT_AVAILABLE"):
            await producer.send(TOPIC, b"x", partition=0)
        assert now() == pytest.approx(40.0, abs=0.1)


async def test_a_broker_without_producer_ids() -> None:
    async with ScriptedCluster("10.0.0.1") as scripted:
        scripted.topics = {TOPIC: {0: (1, 0)}}
        scripted[1].versions["InitProducerId"] = (90, 91)
        async with Producer(scripted.servers) as producer:
            with pytest.raises(RequestTimedOut, match=r"no producer id: .*InitProducerId.* offers 90-91"):
                await producer.send(TOPIC, b"x")


async def test_a_forgotten_topic_gets_another_producer_id() -> None:
    """The brokers remember sequence numbers of the former id, which the producer has forgotten with the topic."""
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, 1)
        config = ProducerConfig(linger=0.0, metadata_max_idle=5.0)
        async with Producer(cluster.bootstrap_servers, config) as producer:
            for number in range(3):
                assert (await producer.send(TOPIC, b"%d" % number)).offset == number
                await asyncio.sleep(10)
        assert len({batch.producer_id for batch in batches(cluster)}) == 3
        assert stored(cluster) == [b"0", b"1", b"2"]


# --- batches in flight ----------------------------------------------------------------------------------------------


async def test_several_batches_of_a_partition_in_flight_stay_in_order() -> None:
    async with writing(nodes=1, batch_size=100, **QUICK) as (cluster, producer):
        await producer.send(TOPIC, b"first", partition=0)
        cluster.faults.on("Produce").disconnect("before")
        sends = [producer.send_nowait(TOPIC, b"%02d" % number, partition=0) for number in range(40)]
        await asyncio.gather(*sends)
        assert stored(cluster, 0) == [b"first", *(b"%02d" % number for number in range(40))]
        assert {epoch for epoch, _, _ in numbers(cluster)} == {0}


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_given_up_batch_and_the_ones_behind_it(cut: Any) -> None:
    """The batches after it are written once, whether it is in the log or not."""
    config = {"delivery_timeout": 8.0, "request_timeout": 5.0, **QUICK}
    async with writing(nodes=1, **config) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").disconnect(cut)
        lost = producer.send_nowait(TOPIC, b"lost", partition=0)
        await asyncio.sleep(0.05)
        cluster.faults.on("Produce", times=None).error(ErrorCode.NOT_ENOUGH_REPLICAS)
        await asyncio.sleep(7.0)
        behind = producer.send_nowait(TOPIC, b"behind", partition=0)
        with pytest.raises(RequestTimedOut):
            await lost
        cluster.faults.clear()
        where = await behind
        assert (await producer.send(TOPIC, b"next", partition=0)).offset == where.offset + 1
        written = [b"lost"] if cut == "after" else []
        assert stored(cluster, 0) == [b"warm up", *written, b"behind", b"next"]


async def test_a_rejected_batch_does_not_stop_the_ones_behind_it() -> None:
    """Its sequence numbers are a gap, after which the next epoch begins (KIP-360)."""
    async with writing(nodes=1, **QUICK) as (cluster, producer):
        await producer.send(TOPIC, b"warm up", partition=0)
        cluster.faults.on("Produce").error(ErrorCode.INVALID_RECORD)
        sends = []
        for number in range(3):
            sends.append(producer.send_nowait(TOPIC, b"%d" % number, partition=0))
            await asyncio.sleep(0)
        results = await asyncio.gather(*sends, return_exceptions=True)
        failed = [number for number, result in enumerate(results) if isinstance(result, BrokerError)]
        assert 0 in failed
        await producer.send(TOPIC, b"next", partition=0)
        kept = [b"%d" % number for number in range(3) if number not in failed]
        assert stored(cluster, 0) == [b"warm up", *kept, b"next"]
        assert numbers(cluster)[-1][0] == 1


async def test_a_broker_that_has_lost_its_last_records() -> None:
    """As after an election of a replica that was not in sync: the sequence begins again under the next epoch."""
    async with writing(nodes=1, **QUICK) as (cluster, producer):
        for number in range(3):
            await producer.send(TOPIC, b"%d" % number, partition=0)
        cluster.faults.on("Produce").error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert (await producer.send(TOPIC, b"3", partition=0)).offset == 3
        assert (await producer.send(TOPIC, b"4", partition=0)).offset == 4
        assert numbers(cluster)[-3:] == [(0, 2, 1), (1, 0, 1), (1, 1, 1)]

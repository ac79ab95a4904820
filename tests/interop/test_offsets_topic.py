"""Our `__consumer_offsets` in other people's hands: aiokafka reads the topic, Kafka's own classes its records."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from asyncgroup import ConsumerConfig, OffsetManager
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.coordinator.records import decode_record
from asyncgroup.java import require_java
from asyncgroup.testing.kafka_jars import kafka_jars
from tests.broker.client import connect
from tests.broker.requests import commit_request, member
from tests.broker.transactional import end_transaction, init_producer, txn_offset_commit
from tests.interop.test_foreign_clients import WAIT

pytestmark = pytest.mark.asyncio

OFFSETS = "__consumer_offsets"


async def lived(cluster: EmbeddedCluster) -> int:
    """A group with a member, commits of three kinds, a tombstone; the partition where all of it stands."""
    cluster.create_topic("t", 2)
    async with connect(cluster) as client:
        joined = await member(client, 0, 1)
        fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        await client.ask(commit_request(cluster, 9, {0: 5}, **fields), 9)
        await client.ask(commit_request(cluster, 2, {1: 6}, retention_time_ms=60_000, **fields), 2)
        producer = await init_producer(client)
        inside = txn_offset_commit(producer, {0: 7}, generation_id=1, member_id=joined.member_id)
        await client.ask(inside, 5)
        await end_transaction(client, producer)
        cluster.create_topic("gone")
        request = commit_request(cluster, 9, {0: 1}, **fields)
        request.topics[0].name = "gone"
        await client.ask(request, 9)
        cluster.delete_topic("gone")
    return cluster.nodes[1].controller.offsets_partition("g")


async def test_aiokafka_reads_it():
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with EmbeddedCluster() as cluster:
        place = await lived(cluster)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        async with consumer:
            consumer.assign([TopicPartition(OFFSETS, place)])
            read = [await consumer.getone() for _ in range(7)]
        ours = cluster.records(OFFSETS, place)
        assert [(r.key, r.value, r.timestamp) for r in read] == [(r.key, r.value, r.timestamp) for r in ours]
        kinds = [type(decode_record(r.key, r.value)).__name__ for r in read]
        assert kinds == ["GroupRecord"] * 2 + ["OffsetRecord"] * 5


async def test_kafkas_own_classes_read_it_and_would_write_the_same_bytes(kafka_at_hand):
    java = require_java("run Kafka's own classes")
    async with EmbeddedCluster() as cluster:
        place = await lived(cluster)
        program = await asyncio.create_subprocess_exec(
            *(java.executable, "-cp", f"{kafka_jars()}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
            Path(__file__).with_name("OffsetsRecords.java"),
            *(cluster.bootstrap_servers, str(place), "7"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(2 * WAIT):
                said, complaints = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
        assert program.returncode == 0, complaints.decode()
        lines = said.decode().splitlines()
        members = cluster.group("g").members
    assert [line.split()[0] for line in lines] == ["same"] * 7, said.decode()
    made, stable, plain, expiring, inside, gone, tombstone = lines
    assert "GroupMetadataKey(group='g')" in made
    (member_id,) = members
    assert f"leader='{member_id}'" in stable
    assert "rebalanceTimeout=30000, sessionTimeout=10000" in stable
    assert re.search(r"topic='t', partition=0\).*offset=5, leaderEpoch=3, metadata='m5'", plain)
    assert re.search(r"partition=1\).*offset=6.*expireTimestamp=\d{13}", expiring)
    assert re.search(r"partition=0\).*offset=7.*metadata='m7'", inside)
    assert "topic='gone'" in gone
    assert "value=null" in tombstone


async def test_a_group_of_aiokafka_lives_through_moves_of_the_partition():
    """Its member, generation and offsets go with it, and it goes on reading."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1)
        place = cluster.nodes[1].controller.offsets_partition("aio")
        servers = cluster.bootstrap_servers
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=servers,
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer, consumer:
            for number in range(3):
                await producer.send_and_wait("t", b"%d" % number)
                async with asyncio.timeout(WAIT):
                    assert (await consumer.getone()).value == b"%d" % number
                    await consumer.commit()
                generation = cluster.group("aio").generation
                cluster.move_leader(OFFSETS, place, cluster.coordinator("aio") % 3 + 1)
                assert cluster.group("aio").generation == generation == 1
                assert [each.offset for each in cluster.group("aio").offsets.values()] == [number + 1]


async def test_our_offset_manager_finds_what_it_left_after_its_coordinator_died():
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1, 3)
        config = ConsumerConfig(auto_commit=False)
        async with OffsetManager(cluster.bootstrap_servers, "g", config) as offsets:
            managed = await offsets.manage("t", 0)
            managed.mark(4, "four")
            await offsets.commit()
            await cluster.stop_node(cluster.coordinator("g"))
            managed.mark(5, "five")
            await offsets.commit()
        async with OffsetManager(cluster.bootstrap_servers, "g", config) as offsets:
            managed = await offsets.manage("t", 0)
            assert (managed.next_offset, managed.metadata) == (5, "five")

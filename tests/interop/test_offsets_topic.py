"""Other clients read the embedded cluster's `__consumer_offsets`, and Kafka's own classes decode its records."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncgroup import ConsumerConfig, OffsetManager
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.groups.store.coordinator_records import decode_record
from asyncgroup.wire import messages as m
from tests.broker.client import connect
from tests.broker.internals import offsets_partition_of
from tests.broker.requests import SUBSCRIPTION, assigned, commit_request, member
from tests.broker.transactional import end_transaction, init_producer, txn_offset_commit
from tests.interop.java_tools import JavaTools
from tests.interop.test_foreign_clients import WAIT, in_thread
from tests.interop.test_java_tools import ClusterTools

OFFSETS = "__consumer_offsets"
TIMES = ("currentStateTimestamp", "commitTimestamp")


async def write_records(cluster: EmbeddedCluster) -> int:
    """Create a group with a member, commits of three kinds and a tombstone; return the partition with its records."""
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
    return offsets_partition_of(cluster, "g")


async def test_aiokafka_reads_it():
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with EmbeddedCluster() as cluster:
        partition = await write_records(cluster)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        async with consumer:
            consumer.assign([TopicPartition(OFFSETS, partition)])
            read = [await consumer.getone() for _ in range(7)]
        ours = cluster.records(OFFSETS, partition)
        assert [(r.key, r.value, r.timestamp) for r in read] == [(r.key, r.value, r.timestamp) for r in ours]
        kinds = [type(decode_record(r.key, r.value)).__name__ for r in read]
        assert kinds == ["GroupRecord"] * 2 + ["OffsetRecord"] * 5


Read = list[tuple[bytes | None, bytes | None, int]]
"""Key, value and timestamp of each record, in the order of the log."""


def by_librdkafka(servers: str, partition: int, count: int) -> Read:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reads", "enable.auto.commit": False})
    consumer.assign([TopicPartition(OFFSETS, partition, OFFSET_BEGINNING)])
    messages = consumer.consume(count, WAIT)
    consumer.close()
    assert not [message.error() for message in messages if message.error()]
    return [(message.key(), message.value(), message.timestamp()[1]) for message in messages]


def by_kafka_python(servers: str, partition: int, count: int) -> Read:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(OFFSETS, partition)])
    records = list(itertools.islice(consumer, count))
    consumer.close()
    return [(record.key, record.value, record.timestamp) for record in records]


@pytest.mark.parametrize("reader", [by_librdkafka, by_kafka_python])
async def test_librdkafka_and_kafka_python_read_it(reader: Callable[[str, int, int], Read]):
    async with EmbeddedCluster() as cluster:
        partition = await write_records(cluster)
        async with asyncio.timeout(WAIT):
            read = await in_thread(reader, cluster.bootstrap_servers, partition, 7)
        assert read == [(r.key, r.value, r.timestamp) for r in cluster.records(OFFSETS, partition)]


async def test_kafkas_console_consumer_prints_it(java_tools: JavaTools):
    """With Kafka's formatter for offsets, as operators look at commits."""
    formatter = "org.apache.kafka.tools.consumer.OffsetsMessageFormatter"
    async with EmbeddedCluster() as cluster:
        partition = await write_records(cluster)
        run = ClusterTools(cluster, java_tools)
        where = ("--topic", OFFSETS, "--partition", str(partition), "--offset", "earliest")
        output = await run.checked(
            "kafka-console-consumer", *where, "--formatter", formatter, "--max-messages", "7"
        )
    # The objects are not separated by newlines.
    (line,) = [line for line in output.lines if line.startswith("{")]
    objects = line[: line.rindex("}") + 1].replace("}{", "},{")
    printed = json.loads(f"[{objects}]")
    keys = [(each["key"]["data"]["topic"], each["key"]["data"]["partition"]) for each in printed]
    assert keys == [("t", 0), ("t", 1), ("t", 0), ("gone", 0), ("gone", 0)]
    values = [each["value"] and each["value"]["data"]["offset"] for each in printed]
    assert values == [5, 6, 7, 1, None]


async def decode_with_kafka(
    java_tools: JavaTools, cluster: EmbeddedCluster, partition: int, count: int
) -> list[dict[str, Any]]:
    """Return the records of a partition, read by Kafka's consumer and decoded by Kafka's own classes."""
    program = Path(__file__).with_name("OffsetsRecords.java")
    output = await java_tools(program, cluster.bootstrap_servers, str(partition), str(count))
    assert output.code == 0, output.text
    return [json.loads(line) for line in output.lines]


def offset_at(topic: str, partition: int) -> dict[str, Any]:
    return {"type": 1, "key": {"group": "g", "topic": topic, "partition": partition}}


def plain(value: bytes) -> str:
    return base64.b64encode(value).decode()


async def test_kafkas_own_classes_decode_it_and_encode_the_same_bytes(java_tools: JavaTools):
    """Every field of every record has the value of the group. Timestamps are compared with each other."""
    start = 1_700_000_000_000
    async with EmbeddedCluster(start_time=start) as cluster:
        partition = await write_records(cluster)
        topic_id = base64.urlsafe_b64encode(cluster.topic("t").id.bytes).decode().rstrip("=")
        records = await decode_with_kafka(java_tools, cluster, partition, 7)
        (member_id,) = cluster.group("g").members
    assert [record.pop("same") for record in records] == [True] * 7
    times = [
        record["value"].pop(name) for record in records for name in TIMES if name in (record["value"] or ())
    ]
    expires = records[3]["value"].pop("expireTimestamp")
    assert times == sorted(times)
    assert start <= times[0] <= times[-1] < start + 60_000
    assert times[3] <= expires - 60_000 < times[3] + 1000
    made, stable, plain_offset, expiring, inside, gone, tombstone = records
    group = {"type": 2, "version": 3, "key": {"group": "g"}}
    nobody = {"protocolType": "", "generation": 0, "protocol": None, "leader": None, "members": []}
    assert made == {**group, "value": nobody}
    member = {
        "memberId": member_id,
        "groupInstanceId": None,
        "clientId": "test",
        "clientHost": "/127.0.0.1",
        "rebalanceTimeout": 30_000,
        "sessionTimeout": 10_000,
        "subscription": plain(SUBSCRIPTION),
        "assignment": plain(assigned(0, 1)),
    }
    assert stable == {
        **group,
        "value": {
            "protocolType": "consumer",
            "generation": 1,
            "protocol": "range",
            "leader": member_id,
            "members": [member],
        },
    }
    committed = {"offset": 5, "leaderEpoch": 3, "metadata": "m5", "topicId": topic_id}
    assert plain_offset == {**offset_at("t", 0), "version": 4, "value": committed}
    assert expiring == {**offset_at("t", 1), "version": 1, "value": {"offset": 6, "metadata": "m6"}}
    in_transaction = {"offset": 7, "leaderEpoch": -1, "metadata": "m7"}  # as Kafka's, without a topic id
    assert inside == {**offset_at("t", 0), "version": 4, "value": in_transaction}
    gone_id = gone["value"].pop("topicId")
    forgotten = {"offset": 1, "leaderEpoch": 3, "metadata": "m1"}
    assert gone == {**offset_at("gone", 0), "version": 4, "value": forgotten}
    assert gone_id not in (topic_id, "AAAAAAAAAAAAAAAAAAAAAA")
    assert tombstone == {**offset_at("gone", 0), "version": -1, "value": None}


async def test_kafkas_own_classes_decode_the_records_of_a_group_that_changes_its_protocol(
    java_tools: JavaTools,
):
    """A classic group becomes a consumer group, and a classic group again when the second member leaves."""
    Beat = m.ConsumerGroupHeartbeatRequest
    new = {"rebalance_timeout_ms": 30_000, "topic_partitions": [], "subscribed_topic_names": ["t"]}
    async with EmbeddedCluster(topics={"t": 2}, group_consumer_assignment_interval=0.0) as cluster:
        async with connect(cluster) as client:
            classic = await member(client, 0, 1)
            assert not (await client.ask(Beat("g", "two", 0, **new))).error_code
            assert not (await client.ask(Beat("g", "two", -1))).error_code
        partition = offsets_partition_of(cluster, "g")
        count = len(cluster.records(OFFSETS, partition))
        records = await decode_with_kafka(java_tools, cluster, partition, count)
        topic_id = base64.urlsafe_b64encode(cluster.topic("t").id.bytes).decode().rstrip("=")
    assert all(record["same"] for record in records)
    upgrade = records[2:-9]
    assert [(record["type"], record["value"] is None) for record in upgrade[:2]] == [(2, True), (5, False)]
    mine = [record for record in upgrade if record["key"].get("memberId") == classic.member_id]
    assert [record["type"] for record in mine] == [5, 7, 8]
    assert mine[0]["value"] == {
        "instanceId": None,
        "rackId": None,
        "clientId": "test",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": ["t"],
        "subscribedTopicRegex": "",
        "rebalanceTimeoutMs": 30_000,
        "serverAssignor": None,
        "classicMemberMetadata": {
            "sessionTimeoutMs": 10_000,
            "supportedProtocols": [{"name": "range", "metadata": plain(SUBSCRIPTION)}],
        },
    }
    assert mine[2]["value"]["assignedPartitions"] == [
        {"topicId": topic_id, "partitions": [0, 1], "assignmentEpochs": [1, 1]}
    ]
    downgrade = [(record["type"], record["value"] is None) for record in records[-9:]]
    removed = [(8, True), (8, True), (7, True), (7, True), (6, True), (5, True), (5, True), (3, True)]
    assert downgrade == [*removed, (2, False)], "the order that Kafka's `GroupMetadataManager.replay` needs"
    last = records[-1]["value"]
    assert (last["generation"], [one["memberId"] for one in last["members"]]) == (2, [classic.member_id])
    assert last["members"][0]["assignment"] == plain(assigned(0))


async def test_kafkas_own_classes_decode_the_records_of_consumer_groups(java_tools: JavaTools):
    """A member by regular expression joins, a second one takes over a partition, the first leaves."""
    Beat = m.ConsumerGroupHeartbeatRequest
    first = {"rebalance_timeout_ms": 30_000, "topic_partitions": []}
    async with EmbeddedCluster(topics={"t": 2}, group_consumer_assignment_interval=0.0) as cluster:
        async with connect(cluster) as client:

            async def beat(member_id: str, epoch: int, **fields: Any) -> None:
                assert not (await client.ask(Beat("g", member_id, epoch, **fields))).error_code

            await beat(
                "one", 0, subscribed_topic_regex="t|u", instance_id="i", server_assignor="range", **first
            )
            await beat("one", 1, instance_id="i")
            await beat("two", 0, subscribed_topic_names=["t"], **first)
            owned = [Beat.TopicPartitions(cluster.topic("t").id, [0])]
            await beat("one", 2, instance_id="i")
            await beat("one", 2, instance_id="i", topic_partitions=owned)
            await beat("two", 3)
            await beat("one", -1, instance_id="i")
        partition = offsets_partition_of(cluster, "g")
        count = len(cluster.records(OFFSETS, partition))
        records = await decode_with_kafka(java_tools, cluster, partition, count)
        topic_id = base64.urlsafe_b64encode(cluster.topic("t").id.bytes).decode().rstrip("=")
    assert all(record["same"] for record in records)
    assert {record["type"] for record in records} == {3, 5, 6, 7, 8, 16}
    removed = [record["type"] for record in records if record["value"] is None]
    assert removed == [8, 7, 16, 5], "the order that Kafka's `GroupMetadataManager.replay` needs"
    current = [record for record in records if record["type"] == 8 and record["key"]["memberId"] == "two"]
    assert current[-1]["value"] == {
        "memberEpoch": 3,
        "previousMemberEpoch": 3,
        "state": 0,
        "assignedPartitions": [{"topicId": topic_id, "partitions": [1], "assignmentEpochs": [3]}],
        "partitionsPendingRevocation": [],
    }


async def test_a_group_of_aiokafka_survives_moves_of_the_partition():
    """It keeps its member, generation and offsets, and continues reading."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1)
        partition = offsets_partition_of(cluster, "aio")
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
                cluster.move_leader(OFFSETS, partition, cluster.coordinator("aio") % 3 + 1)
                assert cluster.group("aio").generation == generation == 1
                assert [each.offset for each in cluster.group("aio").offsets.values()] == [number + 1]


async def test_the_offset_manager_finds_its_offsets_after_its_coordinator_stopped():
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 1, 3)
        config = ConsumerConfig(auto_commit=False)
        async with OffsetManager(cluster.bootstrap_servers, "g", config) as offsets:
            managed = await offsets.manage("t", 0)
            managed.mark_offset(4, "four")
            await offsets.commit()
            await cluster.stop_node(cluster.coordinator("g"))
            managed.mark_offset(5, "five")
            await offsets.commit()
        async with OffsetManager(cluster.bootstrap_servers, "g", config) as offsets:
            managed = await offsets.manage("t", 0)
            assert (managed.next_offset, managed.metadata) == (5, "five")

"""Groups of the embedded broker continue on a real Kafka that gets its records of `__consumer_offsets`, and vice versa.

The record batches are appended unchanged to the other cluster's topic, then the partition gets another leader, which loads
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.metadata.coordinator_election import java_hash
from asyncgroup.broker.metadata.topics import OFFSETS_PARTITIONS
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import iter_batches
from tests.broker.client import Client, connect
from tests.broker.requests import assigned
from tests.real.support import NEEDS_KAFKA_4, RunningKafka
from tests.real.test_offsets_topic import OFFSETS, RETRIABLE, GroupsOnNode, connect_first_node
from tests.stories.admin import Admin

ADMIN = "__admin_client"
"""Clients with this id can write to internal topics (`Topic.isInternal` in `KafkaApis.handleProduceRequest`)."""


class SharedPartitionGroups(GroupsOnNode):
    """Groups whose ids map to one partition of `__consumer_offsets` on this cluster, and to one on the other cluster."""

    def __init__(self, client: Client, topic: str, count: int) -> None:
        super().__init__(client, topic)
        self._other_count = count  # partitions on the other cluster
        self.place = java_hash("first") % count  # the partition there

    def name(self, of: str) -> str:
        while java_hash(found := super().name(of)) % self._other_count != self.place:
            pass
        return found


@contextlib.asynccontextmanager
async def at(kafka: ApacheKafka, node: int, client_id: str = "theirs") -> AsyncIterator[Client]:
    host, _, port = kafka.address(node).rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port)), client_id)
    try:
        yield client
    finally:
        await client.close()


async def offsets_partitions(client: Client) -> dict[int, Any]:
    """Wait until `__consumer_offsets` exists and has leaders, and return its partitions."""
    async with asyncio.timeout(60):
        while True:
            await client.ask(m.FindCoordinatorRequest(coordinator_keys=["anybody"]), 4)
            found = await _read_partitions(client)
            if found and all(partition.leader_id >= 0 for partition in found.values()):
                return found
            await asyncio.sleep(0.1)


async def _read_partitions(client: Client) -> dict[int, Any]:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=OFFSETS)]
    (known,) = (await client.ask(m.MetadataRequest(topics), 9)).topics
    return {p.partition_index: p for p in known.partitions}


async def append(leader: Client, place: int, data: bytes) -> None:
    """Append record batches to `__consumer_offsets`; the client's id must be `ADMIN`."""
    cls = m.ProduceRequest
    for found in iter_batches(data):
        # a producer's batch has base offset 0; the CRC does not include the base offset
        batch = bytes(8) + bytes(found.data[8:])
        topics = [cls.TopicProduceData(OFFSETS, partition_data=[cls.PartitionProduceData(place, batch)])]
        answer = await leader.ask(cls(acks=-1, timeout_ms=30_000, topic_data=topics), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


async def move(client: Client, place: int, replicas: list[int]) -> None:
    """Make the first of the replicas the leader."""
    alter = m.AlterPartitionReassignmentsRequest
    wanted = [alter.ReassignableTopic(OFFSETS, [alter.ReassignablePartition(place, replicas)])]
    answer = await client.ask(alter(30_000, topics=wanted), 1)
    assert answer.responses[0].partitions[0].error_code == 0
    elect = m.ElectLeadersRequest
    request = elect(0, [elect.TopicPartitions(OFFSETS, [place])], 30_000)
    async with asyncio.timeout(60):
        while (await offsets_partitions(client))[place].leader_id != replicas[0]:
            await client.ask(request, 2)
            await asyncio.sleep(0.1)


async def wait_until_loaded(client: Client, group: str) -> None:
    """Wait until the node coordinates the group."""
    wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
    async with asyncio.timeout(60):
        while (await client.ask(m.OffsetFetchRequest(groups=[wanted]), 9)).groups[0].error_code in RETRIABLE:
            await asyncio.sleep(0.1)


async def describe_groups(client: Client, *groups: str) -> list[dict[str, Any]]:
    """Return the responses of DescribeGroups, without error messages."""
    answer = await client.ask(m.DescribeGroupsRequest(list(groups)), 6)
    return [
        {
            "id": group.group_id,
            "error": group.error_code,
            "state": group.group_state,
            "type": group.protocol_type,
            "protocol": group.protocol_data,
            "members": sorted(map(repr, group.members)),
        }
        for group in answer.groups
    ]


@dataclass
class GroupsBefore:
    """The state of groups before they are moved."""

    names: list[str]
    member_id: str
    """A member of the first group."""
    offsets: dict[str, Any]
    described: list[dict[str, Any]]
    data: bytes
    """Their record batches in `__consumer_offsets`."""


async def create_groups(life: SharedPartitionGroups) -> GroupsBefore:
    """Create a group with a member, an empty, a deleted and a simple one."""
    await life.ready("first")
    names = [life.name(of) for of in ("live", "empty", "gone", "simple")]
    live, empty, gone, simple = names
    start = max((batch.next_offset for batch in iter_batches(await life.log())), default=0)
    joined = await life.member(live)
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    await life.commit(live, 3, **member)
    await life.commit(live, 4, partition=1, **member)
    await life.create_without_members(empty, simple, gone)
    offsets = {name: await life.offsets(name) for name in names}
    descriptions = await describe_groups(life.client, *names)
    return GroupsBefore(names, joined.member_id, offsets, descriptions, await life.log(start))


async def check_groups(client: Client, topic: str, before: GroupsBefore) -> None:
    """Check that the groups have not changed, and that the first one's member can heartbeat, sync and commit."""
    live = before.names[0]
    await wait_until_loaded(client, live)
    life = GroupsOnNode(client, topic)
    # stable offsets: Kafka waits until the loaded records are replicated, which a new leader does not know at once
    assert {name: await life.offsets(name, stable=True) for name in before.names} == before.offsets
    assert await describe_groups(client, *before.names) == before.described
    assert (await client.ask(m.HeartbeatRequest(live, 1, before.member_id), 4)).error_code == 0
    asked = m.SyncGroupRequest(live, 1, before.member_id, None, "consumer", "range")
    assert bytes((await client.ask(asked, 5)).assignment) == assigned(0, 1)
    await life.commit(live, 10, generation_id_or_member_epoch=1, member_id=before.member_id)


@NEEDS_KAFKA_4
async def test_groups_of_the_embedded_broker_continue_on_kafka(apache_kafka_3: ApacheKafka) -> None:
    topic = f"taken-over-{uuid.uuid4().hex[:8]}"
    admin = Admin(apache_kafka_3.bootstrap_servers)
    async with admin.cluster, at(apache_kafka_3, 1) as first, EmbeddedCluster() as ours:
        await admin.create_topic(topic, 2)
        theirs = await offsets_partitions(first)
        ours.create_topic(topic, 2)
        async with connect_first_node(ours) as client:
            life = SharedPartitionGroups(client, topic, len(theirs))
            before = await create_groups(life)
        there = theirs[life.place]
        async with at(apache_kafka_3, there.leader_id, ADMIN) as leader:
            await append(leader, life.place, before.data)
        # not the current leader, which may be any replica after a restart: it would not load anything
        new, *others = sorted(there.replica_nodes, key=lambda node: node == there.leader_id)
        await move(first, life.place, [new, *others])
        async with at(apache_kafka_3, new) as client:
            await check_groups(client, topic, before)


@NEEDS_KAFKA_4
async def test_groups_of_kafka_continue_on_the_embedded_broker(apache_kafka: RunningKafka) -> None:
    topic = f"taken-over-{uuid.uuid4().hex[:8]}"
    admin = Admin(apache_kafka.bootstrap_servers)
    async with admin.cluster, connect_first_node(apache_kafka) as theirs, EmbeddedCluster(nodes=2) as ours:
        await admin.create_topic(topic, 2)
        ours.create_topic(topic, 2, 2)
        life = SharedPartitionGroups(theirs, topic, OFFSETS_PARTITIONS)
        before = await create_groups(life)
        old = ours.coordinator(before.names[0])
        async with connect(ours, old, ADMIN) as leader:
            await leader.ask(m.FindCoordinatorRequest(coordinator_keys=before.names))
            await append(leader, life.place, before.data)
        ours.move_leader(OFFSETS, life.place, 3 - old)
        async with connect(ours, 3 - old, "theirs") as client:
            await check_groups(client, topic, before)

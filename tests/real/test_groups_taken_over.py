"""Groups that lived on the embedded broker go on at a real Kafka, which has nothing of them but our `__consumer_offsets`,
and the other way round.

The record batches are appended to the other's topic as they are, then the partition gets another leader, which loads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS
from asyncgroup.broker.java_hash import java_hash
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import iter_batch_headers
from tests.broker.client import Client, connect
from tests.broker.requests import assigned
from tests.real.support import RunningKafka
from tests.real.test_offsets_topic import OFFSETS, RETRIABLE, Life, connected
from tests.stories.admin import Admin

pytestmark = pytest.mark.asyncio

ADMIN = "__admin_client"
"""Clients of this name may write to internal topics (`Topic.isInternal` in `KafkaApis.handleProduceRequest`)."""


class TwoLives(Life):
    """Groups whose ids fall into one partition here and into one there."""

    def __init__(self, client: Client, topic: str, count: int) -> None:
        super().__init__(client, topic)
        self._there = count
        self.place = java_hash("first") % count

    def name(self, of: str) -> str:
        while java_hash(found := super().name(of)) % self._there != self.place:
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


async def partitions(client: Client) -> dict[int, Any]:
    """Those of `__consumer_offsets`, once it is there and has leaders."""
    async with asyncio.timeout(60):
        while True:
            await client.ask(m.FindCoordinatorRequest(coordinator_keys=["anybody"]), 4)
            found = await _partitions(client)
            if found and all(partition.leader_id >= 0 for partition in found.values()):
                return found
            await asyncio.sleep(0.1)


async def _partitions(client: Client) -> dict[int, Any]:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=OFFSETS)]
    (known,) = (await client.ask(m.MetadataRequest(topics), 9)).topics
    return {p.partition_index: p for p in known.partitions}


async def append(leader: Client, place: int, data: bytes) -> None:
    """As an admin client, which may write to internal topics."""
    cls = m.ProduceRequest
    for header in iter_batch_headers(data):
        # a producer counts from 0; its offset is no part of what the CRC covers
        batch = bytes(8) + data[header.start + 8 : header.start + header.size]
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
        while (await partitions(client))[place].leader_id != replicas[0]:
            await client.ask(request, 2)
            await asyncio.sleep(0.1)


async def loaded(client: Client, group: str) -> None:
    """Wait until the node coordinates the group."""
    wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
    async with asyncio.timeout(60):
        while (await client.ask(m.OffsetFetchRequest(groups=[wanted]), 9)).groups[0].error_code in RETRIABLE:
            await asyncio.sleep(0.1)


async def described(client: Client, *groups: str) -> list[dict[str, Any]]:
    """What DescribeGroups says, but for messages to people."""
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
class Lived:
    """What groups left behind: their names, a member of the first, what was said of them, the log."""

    names: list[str]
    member_id: str
    offsets: dict[str, Any]
    described: list[dict[str, Any]]
    data: bytes


async def lived(life: TwoLives) -> Lived:
    """A live group, an empty, a deleted and a simple one."""
    await life.ready("first")
    names = [life.name(of) for of in ("live", "empty", "gone", "simple")]
    live, empty, gone, simple = names
    start = max((header.next_offset for header in iter_batch_headers(await life.log())), default=0)
    joined = await life.member(live)
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    await life.commit(live, 3, **member)
    await life.commit(live, 4, partition=1, **member)
    left = await life.member(empty)
    await life.commit(empty, 5, generation_id_or_member_epoch=1, member_id=left.member_id)
    leaving = [m.LeaveGroupRequest.MemberIdentity(left.member_id)]
    await life.client.ask(m.LeaveGroupRequest(empty, members=leaving), 5)
    await life.commit(simple, 7)
    await life.commit(simple, 8, partition=1, version=2, retention_time_ms=3_600_000)
    await life.commit(gone, 9)
    await life.client.ask(m.DeleteGroupsRequest([gone]), 2)
    offsets = {name: await life.offsets(name) for name in names}
    said = await described(life.client, *names)
    return Lived(names, joined.member_id, offsets, said, await life.log(start))


async def goes_on(client: Client, topic: str, before: Lived) -> None:
    """The groups are what they were, and the member of the first lives on."""
    live = before.names[0]
    await loaded(client, live)
    life = Life(client, topic)
    # stable ones: Kafka waits until what it has loaded is replicated, which a new leader does not know at once
    assert {name: await life.offsets(name, stable=True) for name in before.names} == before.offsets
    assert await described(client, *before.names) == before.described
    assert (await client.ask(m.HeartbeatRequest(live, 1, before.member_id), 4)).error_code == 0
    asked = m.SyncGroupRequest(live, 1, before.member_id, None, "consumer", "range")
    assert bytes((await client.ask(asked, 5)).assignment) == assigned(0, 1)
    await life.commit(live, 10, generation_id_or_member_epoch=1, member_id=before.member_id)


async def test_our_groups_go_on_at_a_real_kafka(apache_kafka_3: ApacheKafka) -> None:
    topic = f"taken-over-{uuid.uuid4().hex[:8]}"
    admin = Admin(apache_kafka_3.bootstrap_servers)
    async with admin.cluster, at(apache_kafka_3, 1) as first, EmbeddedCluster() as ours:
        await admin.create_topic(topic, 2)
        theirs = await partitions(first)
        ours.create_topic(topic, 2)
        async with connected(ours) as client:
            life = TwoLives(client, topic, len(theirs))
            before = await lived(life)
        there = theirs[life.place]
        async with at(apache_kafka_3, there.leader_id, ADMIN) as leader:
            await append(leader, life.place, before.data)
        # not the first replica, where a node was restarted: who leads already would not load anything
        new, *others = sorted(there.replica_nodes, key=lambda node: node == there.leader_id)
        await move(first, life.place, [new, *others])
        async with at(apache_kafka_3, new) as client:
            await goes_on(client, topic, before)


async def test_groups_of_a_real_kafka_go_on_here(apache_kafka: RunningKafka) -> None:
    topic = f"taken-over-{uuid.uuid4().hex[:8]}"
    admin = Admin(apache_kafka.bootstrap_servers)
    async with admin.cluster, connected(apache_kafka) as theirs, EmbeddedCluster(nodes=2) as ours:
        await admin.create_topic(topic, 2)
        ours.create_topic(topic, 2, 2)
        life = TwoLives(theirs, topic, OFFSETS_PARTITIONS)
        before = await lived(life)
        old = ours.coordinator(before.names[0])
        async with connect(ours, old, ADMIN) as leader:
            await leader.ask(m.FindCoordinatorRequest(coordinator_keys=before.names))
            await append(leader, life.place, before.data)
        ours.move_leader(OFFSETS, life.place, 3 - old)
        async with connect(ours, 3 - old, "theirs") as client:
            await goes_on(client, topic, before)

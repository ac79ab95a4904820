"""The records that a real Kafka writes to `__consumer_offsets`, read by the embedded broker's coordinator.

The groups and offsets that it finds equal those that Kafka returns, and its own records would have the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import Consumer, TopicPartition
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.groups.shared.requests import GroupSnapshot
from asyncgroup.broker.groups.store.coordinator_records import (
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from asyncgroup.broker.groups.store.replayed import ReplayedPartition
from asyncgroup.broker.metadata.coordinator_election import java_hash
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import iter_batches
from asyncgroup.wire.records import decode_batch, read_control_type
from tests.broker.client import Client
from tests.broker.requests import SUBSCRIPTION, assigned
from tests.real.support import NEEDS_KAFKA_4, RunningKafka, require_newest_release
from tests.stories.admin import Admin

pytestmark = pytest.mark.usefixtures("apache_kafka")

OFFSETS = "__consumer_offsets"
RETRIABLE = {14, 15, 16}


@contextlib.asynccontextmanager
async def connect_first_node(kafka: RunningKafka | EmbeddedCluster) -> AsyncIterator[Client]:
    host, _, port = kafka.bootstrap_servers.split(",")[0].rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port)), "theirs")
    try:
        yield client
    finally:
        await client.close()


class GroupsOnNode:
    """Requests of groups to one node of Kafka; all groups have the same partition of `__consumer_offsets`."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.partition = 0  # of `__consumer_offsets`
        self._count = 0  # partitions of `__consumer_offsets`

    def name(self, of: str) -> str:
        """Return a new group id that maps to the same partition as the others."""
        while True:
            found = f"{of}-{uuid.uuid4().hex[:8]}"
            if java_hash(found) % self._count == self.partition:
                return found

    async def ready(self, group: str) -> None:
        """Wait until `__consumer_offsets` exists and the group's partition is loaded; all groups use it from now on."""
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
        async with asyncio.timeout(60):
            while True:
                await self.client.ask(m.FindCoordinatorRequest(coordinator_keys=[group]), 4)
                (found,) = (await self.client.ask(m.OffsetFetchRequest(groups=[wanted]), 9)).groups
                if found.error_code not in RETRIABLE:
                    break
                await asyncio.sleep(0.1)
        topics = [m.MetadataRequest.MetadataRequestTopic(name=OFFSETS)]
        (known,) = (await self.client.ask(m.MetadataRequest(topics), 9)).topics
        assert known.is_internal
        self._count = len(known.partitions)
        self.partition = java_hash(group) % self._count

    async def member(self, group: str, instance: str | None = None) -> m.JoinGroupResponse:
        """Join as the only member of a group, and sync."""
        cls = m.JoinGroupRequest
        protocols = [cls.JoinGroupRequestProtocol("range", SUBSCRIPTION)]
        request = cls(group, 30_000, 60_000, "", instance, "consumer", protocols)
        joined = await self.client.ask(request, 9)
        if joined.error_code == 79:
            request.member_id = joined.member_id
            joined = await self.client.ask(request, 9)
        assert joined.error_code == 0
        plan = [m.SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, assigned(0, 1))]
        synced = await self.client.ask(
            m.SyncGroupRequest(group, 1, joined.member_id, instance, "consumer", "range", plan), 5
        )
        assert synced.error_code == 0
        return joined

    async def commit(
        self, group: str, offset: int, partition: int = 0, version: int = 9, **fields: Any
    ) -> None:
        cls = m.OffsetCommitRequest
        epoch = 4 if version >= 6 else -1
        places = [cls.OffsetCommitRequestPartition(partition, offset, epoch, f"at {offset}")]
        topics = [cls.OffsetCommitRequestTopic(self.topic, partitions=places)]
        answer = await self.client.ask(cls(group, topics=topics, **fields), version)
        assert answer.topics[0].partitions[0].error_code == 0

    async def create_without_members(self, empty: str, simple: str, deleted: str) -> None:
        """Create a group whose member has left, one by offset commits alone, and one that is deleted again."""
        left = await self.member(empty)
        await self.commit(empty, 5, generation_id_or_member_epoch=1, member_id=left.member_id)
        leaving = [m.LeaveGroupRequest.MemberIdentity(left.member_id)]
        await self.client.ask(m.LeaveGroupRequest(empty, members=leaving), 5)
        await self.commit(simple, 7)
        await self.commit(simple, 8, partition=1, version=2, retention_time_ms=3_600_000)
        await self.commit(deleted, 9)
        await self.client.ask(m.DeleteGroupsRequest([deleted]), 2)

    async def transaction(self, group: str, offset: int, *, ends: bool | None) -> None:
        """Run a transaction that commits an offset; `ends`: commit it, abort it, or (None) leave it open."""
        name = f"tx-{group}-{offset}"
        await self.client.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
        async with asyncio.timeout(60):
            while True:
                got = await self.client.ask(m.InitProducerIdRequest(name, 60_000), 4)
                if got.error_code == 0:
                    break
                await asyncio.sleep(0.1)
        producer = got.producer_id, got.producer_epoch
        added = await self.client.ask(m.AddOffsetsToTxnRequest(name, *producer, group), 3)
        assert added.error_code == 0
        cls = m.TxnOffsetCommitRequest
        place = cls.TxnOffsetCommitRequestPartition(1, offset, -1, "inside")
        request = cls(name, group, *producer, topics=[cls.TxnOffsetCommitRequestTopic(self.topic, [place])])
        answer = await self.client.ask(request, 3)
        assert answer.topics[0].partitions[0].error_code == 0
        if ends is not None:
            ended = await self.client.ask(m.EndTxnRequest(name, *producer, ends), 3)
            assert ended.error_code == 0

    async def offsets(
        self, group: str, *, stable: bool = False
    ) -> dict[TopicPartition, tuple[int, int, str]]:
        """Return a group's committed offsets."""
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
        request = m.OffsetFetchRequest(groups=[wanted], require_stable=stable)
        async with asyncio.timeout(60):
            while True:
                (found,) = (await self.client.ask(request, 9)).groups
                if found.error_code not in RETRIABLE:
                    break
                await asyncio.sleep(0.1)
        assert found.error_code == 0
        return {
            TopicPartition(topic.name, p.partition_index): (
                p.committed_offset,
                p.committed_leader_epoch,
                p.metadata or "",
            )
            for topic in found.topics
            for p in topic.partitions
        }

    async def log(self, start: int = 0) -> bytes:
        """Return the partition's record batches from `start` on, including markers, unchanged."""
        cls, data, offset = m.FetchRequest, b"", start
        while True:
            wanted = cls.FetchPartition(self.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = cls(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 24,
                topics=[cls.FetchTopic(OFFSETS, partitions=[wanted])],
            )
            answer = await self.client.ask(request, 12)
            (got,) = answer.responses[0].partitions
            assert got.error_code == 0
            if not got.records:
                return data
            data += bytes(got.records)
            offset = max(batch.next_offset for batch in iter_batches(got.records))


@pytest_asyncio.fixture
async def life(apache_kafka: RunningKafka) -> AsyncIterator[GroupsOnNode]:
    topic = f"real-offsets-{uuid.uuid4().hex[:8]}"
    admin = Admin(apache_kafka.bootstrap_servers)
    async with admin.cluster, connect_first_node(apache_kafka) as client:
        await admin.create_topic(topic, 2)
        made = GroupsOnNode(client, topic)
        await made.ready(f"first-{uuid.uuid4().hex[:8]}")
        yield made


async def create_groups(life: GroupsOnNode) -> list[str]:
    """Create groups of all kinds, and return their ids."""
    live, static, empty, simple, gone, mixed = (
        life.name(of) for of in ("live", "static", "empty", "simple", "gone", "mixed")
    )
    joined = await life.member(live)
    fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    for offset in (3, 9):
        await life.commit(live, offset, **fields)
    await life.member(static, instance="i-1")
    await life.create_without_members(empty, simple, gone)
    await life.commit(mixed, 1, partition=1)
    await life.transaction(mixed, 2, ends=True)
    await life.transaction(mixed, 3, ends=False)
    await life.transaction(mixed, 4, ends=None)
    cls = m.OffsetDeleteRequest
    places = [cls.OffsetDeleteRequestTopic(life.topic, [cls.OffsetDeleteRequestPartition(0)])]
    await life.commit(mixed, 6)
    assert (await life.client.ask(cls(mixed, places), 0)).error_code == 0
    return [live, static, empty, simple, gone, mixed]


async def replayed_partition(life: GroupsOnNode, mixed: str) -> ReplayedPartition:
    """Replay the partition as our coordinator does, once it has the markers of the group's ended transactions."""
    async with asyncio.timeout(30):
        while True:
            replayed = ReplayedPartition(life.partition)
            data = await life.log()
            replayed.replay(data)
            if _open_transactions(data, mixed) == 1:
                return replayed
            await asyncio.sleep(0.1)


def _open_transactions(data: bytes, group: str) -> int:
    """Return the number of producers with offsets for the group and no marker after them."""
    found: set[int] = set()
    for batch in iter_batches(data):
        if batch.is_control:
            found.discard(batch.producer_id)
        elif batch.is_transactional:
            decoded = [decode_record(r.key, r.value) for r in decode_batch("", 0, batch)]
            if any(one is not None and one.group_id == group for one in decoded):
                found.add(batch.producer_id)
    return len(found)


@NEEDS_KAFKA_4
async def test_kafkas_records_are_decoded_as_by_kafka(life: GroupsOnNode) -> None:
    names = await create_groups(life)
    live, static, empty, simple, gone, mixed = names
    replayed = await replayed_partition(life, names[-1])
    for name in names:
        theirs = await life.offsets(name)
        ours = {
            tp: (found.offset, found.leader_epoch, found.metadata)
            for tp, found in replayed.offsets(name).items()
        }
        assert ours == theirs, name
    assert theirs == {TopicPartition(life.topic, 1): (2, -1, "inside")}  # of `mixed`
    assert set(replayed.unstable_partitions(mixed)) == {TopicPartition(life.topic, 1)}
    assert gone not in replayed.groups
    described = (await life.client.ask(m.DescribeGroupsRequest(names[:5]), 6)).groups
    for group in described[:4]:
        assert _as_replayed(replayed.groups[group.group_id]) == _as_described_by_kafka(group)
    assert described[4].error_code == 69
    assert replayed.groups[live].generation_id == 1
    assert replayed.groups[empty].generation_id == 2
    assert replayed.groups[static].members[0].group_instance_id == "i-1"
    kept = replayed.offsets(simple)[TopicPartition(life.topic, 1)]
    assert kept.expire_timestamp - kept.commit_timestamp == 3_600_000


def _as_replayed(snapshot: GroupSnapshot) -> tuple[Any, ...]:
    members = [
        (
            one.member_id,
            one.group_instance_id,
            *one.client,
            one.subscription,
            one.assignment,
        )
        for one in snapshot.members
    ]
    state = "Stable" if members else "Empty"
    protocol = (snapshot.protocol_name or "") if members else ""
    return snapshot.group_id, state, snapshot.protocol_type or "", protocol, members


def _as_described_by_kafka(group: m.DescribeGroupsResponse.DescribedGroup) -> tuple[Any, ...]:
    members = [
        (
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            bytes(one.member_metadata),
            bytes(one.member_assignment),
        )
        for one in group.members
    ]
    return group.group_id, group.group_state, group.protocol_type, group.protocol_data, members


@NEEDS_KAFKA_4
async def test_our_encoding_equals_kafkas(apache_kafka: RunningKafka, life: GroupsOnNode) -> None:
    """The records are read by our Consumer, which returns all records except markers."""
    names = await create_groups(life)
    replayed = await replayed_partition(life, names[-1])
    assert replayed.groups
    seen = set()
    async with Consumer(apache_kafka.bootstrap_servers) as consumer:
        partition = await consumer.partition(OFFSETS, life.partition, 0)
        async for record in partition:
            decoded = decode_record(record.key, record.value)
            if decoded is not None:
                assert encode_record(decoded) == (record.key, record.value), decoded
                seen.add((type(decoded), record.value is None))
                if (
                    isinstance(decoded, OffsetRecord)
                    and decoded.group_id == names[-1]
                    and decoded.offset is None
                ):
                    break  # the last record of `create_groups`
    classic = {(kind, is_deleted) for kind, is_deleted in seen if kind in (GroupRecord, OffsetRecord)}
    assert len(classic) == 4


async def test_the_same_requests_write_the_same_log(life: GroupsOnNode) -> None:
    """Compared batch by batch and field by field, without ids and times; the positions of markers may differ."""
    require_newest_release("a comparison with the embedded broker")
    before = max((batch.next_offset for batch in iter_batches(await life.log())), default=0)
    names = await create_groups(life)
    await replayed_partition(life, names[-1])
    async with EmbeddedCluster() as cluster, connect_first_node(cluster) as client:
        cluster.create_topic(life.topic, 2)
        ours = GroupsOnNode(client, life.topic)
        await ours.ready("first-ours")
        our_names = await create_groups(ours)
        await replayed_partition(ours, our_names[-1])
        left = comparable_batches(await ours.log(), our_names)
    theirs = comparable_batches(await life.log(before), names)
    assert len(theirs) == 22
    assert [batch for batch in left if batch["records"]] == [batch for batch in theirs if batch["records"]]
    assert sorted(map(repr, left)) == sorted(map(repr, theirs))


def comparable_batches(data: bytes, groups: Collection[str]) -> list[dict[str, Any]]:
    """Return the batches of these groups with ids numbered in order, the kind of each group, and without times.

    The log also has records of groups of earlier tests, whose members' sessions expire meanwhile.
    """
    ids: dict[Any, int] = {}
    found = []
    for batch in iter_batches(data):
        records = [] if batch.is_control else decode_batch("", 0, batch)
        decoded = [decode_record(record.key, record.value) for record in records]
        if decoded and not any(one is not None and one.group_id in groups for one in decoded):
            continue
        producer = batch.producer_id
        if batch.is_control and producer not in ids:
            continue  # the marker of a transaction that an earlier test has left open
        found.append(
            {
                "records": [_without_ids(one, ids) for one in decoded],
                "producer": -1 if producer < 0 else ids.setdefault(producer, len(ids)),
                "is_control": batch.is_control,
                "is_transactional": batch.is_transactional,
                "epoch": (batch.producer_epoch, batch.base_sequence, batch.leader_epoch),
                "marker": read_control_type(batch) if batch.is_control else None,
            }
        )
    return found


def _without_ids(record: GroupRecord | OffsetRecord | None, ids: dict[Any, int]) -> Any:
    assert record is not None
    kind = record.group_id.partition("-")[0]
    if isinstance(record, OffsetRecord):
        offset = record.offset
        more = None if offset is None else (offset.topic_id.int > 0, offset.expire_timestamp >= 0)
        return kind, record.partition, offset, more
    if record.snapshot is None:
        return kind, None
    for one in record.snapshot.members:
        ids.setdefault(one.member_id, len(ids))
    members = [
        dataclasses.replace(one, member_id=f"{one.member_id[:4]} {ids[one.member_id]}")
        for one in record.snapshot.members
    ]
    leader = record.snapshot.leader
    return kind, dataclasses.replace(
        record.snapshot,
        group_id=kind,
        leader=None if leader is None else f"{ids[leader]}",
        members=tuple(members),
        current_state_timestamp=0,
    )

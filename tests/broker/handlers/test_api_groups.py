"""The group APIs over the wire, in every version."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Client, connect
from tests.broker.internals import node_of
from tests.broker.requests import (
    SUBSCRIPTION,
    assigned,
    commit_request,
    errors,
    join,
    join_request,
    member,
    sync_request,
)

# -- Join, Sync, Heartbeat, Leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_join_group(version):
    async with EmbeddedCluster() as cluster, connect(cluster, client_id="app") as client:
        answer = await join(client, version)
        assert answer.error_code == 0
        assert answer.generation_id == 1
        assert answer.leader == answer.member_id
        assert answer.member_id.startswith("app-")
        assert answer.protocol_name == "range"
        assert [bytes(each.metadata) for each in answer.members] == [SUBSCRIPTION]
        if version >= 7:
            assert answer.protocol_type == "consumer"
        view = cluster.group("g")
        assert (view.state, view.generation, view.leader) == ("CompletingRebalance", 1, answer.member_id)
        assert view.members[answer.member_id].topics == ("t",)
        assert view.members[answer.member_id].client_host == "/127.0.0.1"


@pytest.mark.parametrize("version", range(10))
async def test_join_group_errors(client, version):
    rebalance = {"rebalance_timeout_ms": -1} if version == 0 else {}
    answer = await client.ask(join_request("who", **rebalance), version)
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "who")
    assert answer.protocol_name == (None if version >= 7 else "")
    answer = await client.ask(join_request(group_id="", **rebalance), version)
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


async def test_version_0_uses_the_session_timeout_as_rebalance_timeout(cluster, client):
    answer = await join(client, 0, session_timeout_ms=7000)
    group = node_of(cluster, 1).coordinator.groups["g"]
    assert group.members[answer.member_id].timeouts.rebalance == 7.0


@pytest.mark.parametrize("version", range(6))
async def test_sync_group(cluster, client, version):
    joined = await join(client)
    answer = await client.ask(sync_request(joined, version, {joined.member_id: assigned(0, 2)}), version)
    assert (answer.error_code, bytes(answer.assignment)) == (0, assigned(0, 2))
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert cluster.group("g").assignment == {
        TopicPartition("t", 0): joined.member_id,
        TopicPartition("t", 2): joined.member_id,
    }


async def test_sync_group_requires_the_protocol_from_version_5(client):
    joined = await join(client)
    answer = await client.ask(sync_request(joined, 5, protocol_name=None))
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(5))
async def test_heartbeat(client, version):
    joined = await member(client, 0)
    request = m.HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    assert (await client.ask(request, version)).error_code == 0
    request.generation_id = 2
    assert (await client.ask(request, version)).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(6))
async def test_leave_group(cluster, client, version):
    joined = await member(client, 0)
    identity = m.LeaveGroupRequest.MemberIdentity

    def request(*members: str) -> m.LeaveGroupRequest:
        if version < 3:
            return m.LeaveGroupRequest(group_id="g", member_id=members[0])
        return m.LeaveGroupRequest(group_id="g", members=[identity(each) for each in members])

    unknown = await client.ask(request("who"), version)
    if version < 3:
        assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await client.ask(request(joined.member_id), version)).error_code == 0
    else:
        assert unknown.error_code == 0
        assert unknown.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
        answer = await client.ask(request("who", joined.member_id), version)
        assert [each.error_code for each in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert cluster.group("g").state == "Empty"


async def test_two_members_over_the_wire():
    async with EmbeddedCluster() as cluster, connect(cluster) as one, connect(cluster) as two:
        first, second = await asyncio.gather(join(one), join(two))
        leader, follower = (first, second) if first.members else (second, first)
        assert leader.leader == follower.leader == leader.member_id
        assert len(leader.members) == 2
        plan = {leader.member_id: assigned(0), follower.member_id: assigned(1)}
        clients = {first.member_id: one, second.member_id: two}
        parked = sync_request(follower)
        sent = clients[follower.member_id].send(parked)
        await asyncio.sleep(1)
        answer = await clients[leader.member_id].ask(sync_request(leader, plan=plan))
        assert bytes(answer.assignment) == assigned(0)
        assert bytes((await clients[follower.member_id].receive(parked, *sent)).assignment) == assigned(1)
        assert cluster.group("g").state == "Stable"


async def test_a_client_that_disconnects_in_the_join_phase_does_not_block_the_group():
    async with EmbeddedCluster(initial_rebalance_delay=3.0) as cluster, connect(cluster) as stays:
        async with connect(cluster) as goes:
            id_for = await goes.ask(join_request())
            goes.send(join_request(id_for.member_id))
            await asyncio.sleep(1)
        joined = await join(stays)
        assert joined.generation_id == 1
        # a closed connection does not remove a member, only missing heartbeats do
        assert len(cluster.group("g").members) == 2
        await stays.ask(sync_request(joined, plan={}))
        for _ in range(3):
            await asyncio.sleep(4)
            beat = m.HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
            answer = await stays.ask(beat)
        assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert list(cluster.group("g").members) == [joined.member_id]


# -- offsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
async def test_offset_commit(cluster, client, version):
    cluster.create_topic("t", 3)
    joined = await member(client, 0, 1, 2)
    fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    answer = await client.ask(commit_request(cluster, version, {0: 5, 2: 7, 9: 1}, **fields), version)
    assert errors(answer) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if version >= 10:
        assert answer.topics[0].topic_id == cluster.topic("t").id
    else:
        assert answer.topics[0].name == "t"
    committed = cluster.group("g").offsets
    assert {tp.partition: (o.offset, o.metadata) for tp, o in committed.items()} == {
        0: (5, "m5"),
        2: (7, "m7"),
    }
    assert {o.leader_epoch for o in committed.values()} == {3 if version >= 6 else -1}


async def test_offset_commit_errors(cluster, client):
    cluster.create_topic("t", 2)
    request = commit_request(cluster, 9, {0: 5, 1: 6}, generation_id_or_member_epoch=4, member_id="m")
    assert errors(await client.ask(request, 9)) == [ErrorCode.GROUP_ID_NOT_FOUND] * 2
    assert errors(await client.ask(request, 8)) == [ErrorCode.ILLEGAL_GENERATION] * 2
    request = commit_request(cluster, 10, {0: 5})
    request.topics[0].topic_id = uuid.UUID(int=1)
    assert errors(await client.ask(request)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    request = commit_request(cluster, 9, {0: 5})
    request.topics[0].name = "nope"
    assert errors(await client.ask(request, 9)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert cluster.group("g").state == "Dead"


@pytest.mark.parametrize("version", range(1, 8))
async def test_offset_fetch_of_one_group(cluster, client, version):
    cluster.create_topic("t", 3)
    await client.ask(commit_request(cluster, 9, {0: 5}), 9)
    topic = m.OffsetFetchRequest.OffsetFetchRequestTopic("t", [0, 1])
    answer = await client.ask(m.OffsetFetchRequest(group_id="g", topics=[topic]), version)
    zero, one = answer.topics[0].partitions
    assert (zero.committed_offset, zero.metadata, zero.error_code) == (5, "m5", 0)
    assert (one.committed_offset, one.metadata, one.error_code) == (-1, "", 0)
    if version >= 5:
        assert (zero.committed_leader_epoch, one.committed_leader_epoch) == (3, -1)
    if version >= 2:
        answer = await client.ask(m.OffsetFetchRequest(group_id="g", topics=None), version)
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics] == [("t", [0])]


@pytest.mark.parametrize("version", range(8, 11))
async def test_offset_fetch_of_several_groups(cluster, client, version):
    cluster.create_topic("t", 2)
    await client.ask(commit_request(cluster, 9, {1: 8}), 9)
    group, topics = (
        m.OffsetFetchRequest.OffsetFetchRequestGroup,
        m.OffsetFetchRequest.OffsetFetchRequestTopics,
    )
    named = {"topic_id": cluster.topic("t").id} if version >= 10 else {"name": "t"}
    request = m.OffsetFetchRequest(
        require_stable=True,
        groups=[
            group("g", topics=[topics(**named, partition_indexes=[0, 1])]),
            group("g", topics=None),
            group("unknown", topics=[topics(**named, partition_indexes=[0])]),
        ],
    )
    one, everything, unknown = (await client.ask(request, version)).groups
    assert [p.committed_offset for p in one.topics[0].partitions] == [-1, 8]
    assert [p.committed_offset for p in everything.topics[0].partitions] == [8]
    assert (unknown.error_code, unknown.topics[0].partitions[0].committed_offset) == (0, -1)
    if version >= 10:
        assert everything.topics[0].topic_id == cluster.topic("t").id
        request.groups[0].topics[0].topic_id = uuid.UUID(int=1)
        answer = await client.ask(request, version)
        assert answer.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(1, 11))
async def test_another_node_is_not_the_coordinator(version):
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t")
        async with connect(cluster, 3 - cluster.coordinator("g")) as client:
            if version >= 8:
                groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=[])]
                answer = await client.ask(m.OffsetFetchRequest(groups=groups), version)
                assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR
            else:
                topic = m.OffsetFetchRequest.OffsetFetchRequestTopic("t", [0])
                answer = await client.ask(m.OffsetFetchRequest(group_id="g", topics=[topic]), version)
                error = answer.error_code if version >= 2 else answer.topics[0].partitions[0].error_code
                assert error == ErrorCode.NOT_COORDINATOR
            assert (await join(client)).error_code == ErrorCode.NOT_COORDINATOR
            beat = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
            assert (await client.ask(beat)).error_code == ErrorCode.NOT_COORDINATOR
            assert errors(await client.ask(commit_request(cluster, 9, {0: 1}), 9)) == [
                ErrorCode.NOT_COORDINATOR
            ]


# -- DescribeGroups, ListGroups, DeleteGroups ----------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_describe_groups(version):
    async with EmbeddedCluster() as cluster, connect(cluster, client_id="app") as client:
        joined = await member(client, 0)
        request = m.DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
        known, unknown = (await client.ask(request, version)).groups
        assert (known.group_state, known.protocol_type, known.protocol_data) == (
            "Stable",
            "consumer",
            "range",
        )
        (described,) = known.members
        assert (described.member_id, described.client_id) == (joined.member_id, "app")
        assert bytes(described.member_metadata) == SUBSCRIPTION
        assert bytes(described.member_assignment) == assigned(0)
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        if version >= 3:
            assert known.authorized_operations > 0


async def create_groups(cluster: EmbeddedCluster, client: Client) -> None:
    """Create the group `g` with a member, and the group `simple` by an offset commit."""
    cluster.create_topic("t")
    await member(client, 0)
    request = commit_request(cluster, 9, {0: 1})
    request.group_id = "simple"
    await client.ask(request, 9)


@pytest.mark.parametrize("version", range(6))
async def test_list_groups(cluster, client, version):
    await create_groups(cluster, client)

    async def listed(**filters) -> dict[str, str]:
        answer = await client.ask(m.ListGroupsRequest(**filters), version)
        return {group.group_id: group.protocol_type for group in answer.groups}

    assert await listed() == {"g": "consumer", "simple": ""}
    if version >= 4:
        assert await listed(states_filter=["stable"]) == {"g": "consumer"}
        assert await listed(states_filter=["Empty", "Dead"]) == {"simple": ""}
    if version >= 5:
        assert await listed(types_filter=["classic"]) == {"g": "consumer", "simple": ""}
        assert await listed(types_filter=["consumer"]) == {}


@pytest.mark.parametrize("version", range(3))
async def test_delete_groups(cluster, client, version):
    await create_groups(cluster, client)
    names = ["g", "simple", "none"]
    results = (await client.ask(m.DeleteGroupsRequest(groups_names=names), version)).results
    assert [result.error_code for result in results] == [
        ErrorCode.NON_EMPTY_GROUP,
        0,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert cluster.groups == ["g"]

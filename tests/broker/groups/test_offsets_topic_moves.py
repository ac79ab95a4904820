"""Groups survive stopped nodes and moved partitions, thanks to `__consumer_offsets`."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster, OffsetAndMetadata
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Disconnected, connect
from tests.broker.internals import controller_of, offsets_partition_of
from tests.broker.offsets_requests import T0, TOPIC, commit, fetched, find
from tests.broker.requests import assigned, commit_request, join, member, sync_request

# -- moves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["stop the node", "move the partition", "move the coordinator", "move it twice"]
)
async def test_groups_keep_members_generation_and_offsets(how):
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", 2)
        old = cluster.coordinator("g")
        offsets_partition = offsets_partition_of(cluster, "g")
        async with connect(cluster, old) as client:
            assert await find(client) == old
            joined = await member(client, 0, 1)
            fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
            assert await commit(client, cluster, {0: 5, 1: 6}, **fields) == {0}
            before = cluster.group("g")
            if how == "stop the node":
                await cluster.stop_node(old)
            elif how == "move the partition":
                cluster.move_leader(TOPIC, offsets_partition, old % 3 + 1)
            else:
                cluster.move_coordinator("g", old % 3 + 1)
            if how == "move it twice":
                cluster.move_leader(TOPIC, offsets_partition, old)
                cluster.move_leader(TOPIC, offsets_partition, 6 - old - (old % 3 + 1))
        new = cluster.coordinator("g")
        assert new != old
        assert cluster.leader(TOPIC, offsets_partition) == new
        assert cluster.partition(TOPIC, offsets_partition).leader_epoch == (
            3 if how == "move it twice" else 1
        )
        after = cluster.group("g")
        assert (after.members, after.offsets, after.generation) == (before.members, before.offsets, 1)
        async with connect(cluster, new) as client:
            assert await find(client) == new
            assert await commit(client, cluster, {0: 7}, **fields) == {0}
            assert bytes((await client.ask(sync_request(joined))).assignment) == assigned(0, 1)
            assert await fetched(client) == {T0: 7, TopicPartition("t", 1): 6}


async def test_groups_survive_a_stop_of_all_nodes():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", replication_factor=2)
        async with connect(cluster, cluster.coordinator("g")) as client:
            await commit(client, cluster, {0: 5})
        for node in (1, 2):
            await cluster.stop_node(node)
        assert cluster.coordinator("g") == -1
        await cluster.start_node(2)
        async with connect(cluster, 2) as client:
            assert await fetched(client) == {T0: 5}
            assert await commit(client, cluster, {0: 6}) == {0}


async def test_groups_move_with_the_replicas_of_their_partition():
    """By AlterPartitionReassignments, as kafka-reassign-partitions does it.

    The group is available only while one of its replicas is.
    """
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("t", replication_factor=3)
        old = cluster.coordinator("g")
        offsets_partition = offsets_partition_of(cluster, "g")
        assert repr(controller_of(cluster).coordinators) == "<CoordinatorElection of groups [1, 2, 3]>"
        only = old % 3 + 1
        third = 6 - old - only
        async with connect(cluster, old) as client:
            await commit(client, cluster, {0: 5})
            cls = m.AlterPartitionReassignmentsRequest
            wanted = [cls.ReassignableTopic(TOPIC, [cls.ReassignablePartition(offsets_partition, [only])])]
            answer = await client.ask(cls(topics=wanted))
            assert answer.responses[0].partitions[0].error_code == 0
            assert await commit(client, cluster, {0: 6}) == {ErrorCode.NOT_COORDINATOR}
            assert await find(client) == only
        await cluster.stop_node(only)
        assert cluster.coordinator("g") == cluster.leader(TOPIC, offsets_partition) == -1
        async with connect(cluster, third) as client:
            (found,) = (await client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]))).coordinators
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await cluster.stop_node(third)
        await cluster.start_node(third)
        assert cluster.coordinator("g") == -1
        await cluster.start_node(only)
        async with connect(cluster, only) as client:
            assert await fetched(client) == {T0: 5}


async def test_a_truncated_log_is_loaded_again(cluster, client):
    cluster.create_topic("t")
    for offset in range(4):
        await commit(client, cluster, {0: offset})
    cluster.truncate(TOPIC, offsets_partition_of(cluster, "g"), 2)
    assert await fetched(client) == {T0: 1}


async def test_offsets_of_a_deleted_topic_stay_deleted_after_a_move():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.move_coordinator("g", 1)
        cluster.create_topic("t")
        cluster.create_topic("u")
        await commit(client, cluster, {0: 1})
        cluster.delete_topic("t")
        assert cluster.group("g").offsets == {}
        cluster.move_coordinator("g", 2)
        assert cluster.group("g").offsets == {}


async def test_groups_on_disk_survive_a_restart_of_the_cluster(tmp_path):
    async with EmbeddedCluster(nodes=2, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", 2)
        async with connect(cluster, cluster.coordinator("g")) as client:
            joined = await member(client, 0, 1)
            fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
            assert await commit(client, cluster, {0: 5, 1: 6}, **fields) == {0}
        before = cluster.group("g")
    async with EmbeddedCluster(nodes=2, data_dir=tmp_path) as cluster:
        after = cluster.group("g")
        assert (after.members, after.offsets, after.generation) == (before.members, before.offsets, 1)
        async with connect(cluster, cluster.coordinator("g")) as client:
            assert await commit(client, cluster, {0: 7}, **fields) == {0}
            assert bytes((await client.ask(sync_request(joined))).assignment) == assigned(0, 1)


# -- loading ---------------------------------------------------------------------------------------------------


async def test_requests_during_loading_get_load_in_progress():
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    async with EmbeddedCluster(nodes=2, offsets_load_delay=3.0) as cluster:
        cluster.create_topic("t")
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client, connect(cluster, 3 - old) as other:
            joined = await member(client, 0)  # a new cluster has nothing to load
            fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
            await commit(client, cluster, {0: 5}, **fields)
            cluster.move_coordinator("g", 3 - old)
            assert await find(client) == 3 - old
            assert (await join(other)).error_code == loading
            assert await fetched(other) == loading
            assert await commit(other, cluster, {0: 6}, **fields) == {loading}
            assert (await other.ask(m.ListGroupsRequest())).error_code == loading
            (described,) = (await other.ask(m.DescribeGroupsRequest(["g"]))).groups
            assert described.error_code == loading
            (deleted,) = (await other.ask(m.DeleteGroupsRequest(["g"]))).results
            assert deleted.error_code == loading
            beat = m.HeartbeatRequest("g", 1, joined.member_id)
            assert (await other.ask(beat)).error_code == 0
            await asyncio.sleep(3.0)
            assert await fetched(other) == {T0: 5}
            assert (await other.ask(beat)).error_code == 0
            assert [g.group_id for g in (await other.ask(m.ListGroupsRequest())).groups] == ["g"]


async def test_a_node_that_stops_during_loading():
    async with EmbeddedCluster(nodes=3, offsets_load_delay=3.0) as cluster:
        cluster.create_topic("t", replication_factor=3)
        first = cluster.coordinator("g")
        async with connect(cluster, first) as client:
            await commit(client, cluster, {0: 5})
        for _ in range(2):
            await cluster.stop_node(cluster.coordinator("g"))
            await asyncio.sleep(1.0)
        async with connect(cluster, cluster.coordinator("g")) as client:
            assert await fetched(client) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(2.0)
            assert await fetched(client) == {T0: 5}


async def test_an_offset_of_a_deleted_topic_is_not_returned_for_a_new_topic_of_that_name():
    """The topic is deleted while the coordinator is still loading, so its offsets are not removed."""
    async with EmbeddedCluster(nodes=2, offsets_load_delay=2.0) as cluster:
        cluster.create_topic("t")
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client, connect(cluster, 3 - old) as other:
            await commit(client, cluster, {0: 5})
            cluster.move_coordinator("g", 3 - old)
            cluster.delete_topic("t")
            await asyncio.sleep(2.0)
            cls = m.OffsetFetchRequest
            everything = cls(groups=[cls.OffsetFetchRequestGroup("g", topics=None)])
            assert (await other.ask(everything, 10)).groups[0].topics == []
            cluster.create_topic("t")
            for version, offset in ((9, 5), (10, -1)):
                named = {"topic_id": cluster.topic("t").id} if version >= 10 else {"name": "t"}
                topics = [cls.OffsetFetchRequestTopics(**named, partition_indexes=[0])]
                request = cls(groups=[cls.OffsetFetchRequestGroup("g", topics=topics)])
                (answer,) = (await other.ask(request, version)).groups
                assert answer.topics[0].partitions[0].committed_offset == offset
            assert await fetched(other) == {T0: 5}
            (topic,) = (await other.ask(everything, 10)).groups[0].topics
            assert topic.topic_id == cluster.topic("t").id  # a request for all topics contains no topic ids
            assert topic.partitions[0].committed_offset == 5


# -- between append and response -------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [0.5, 1.5])
async def test_a_node_that_stops_between_a_commit_and_its_response(moment):
    """The acknowledged offset is returned: the new one only if its commit was answered."""
    async with EmbeddedCluster(nodes=2, offsets_append_delay=1.0) as cluster:
        cluster.create_topic("t", replication_factor=2)
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client:
            assert await commit(client, cluster, {0: 5}) == {0}
            request = commit_request(cluster, 9, {0: 6})
            sent = client.send(request, 9)
            await asyncio.sleep(moment)
            await cluster.stop_node(old)
            answered = True
            try:
                await client.receive(request, *sent)
            except Disconnected:
                answered = False
        assert answered == (moment > 1.0)
        assert cluster.group("g").offsets == {
            T0: OffsetAndMetadata(6 if answered else 5, 3, f"m{6 if answered else 5}")
        }


async def test_a_node_that_stops_between_an_assignment_and_its_response():
    async with EmbeddedCluster(nodes=2, offsets_append_delay=1.0) as cluster:
        cluster.create_topic("t", replication_factor=2)
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client:
            joined = await join(client)
            await asyncio.sleep(1.0)
            client.send(sync_request(joined, plan={joined.member_id: assigned(0)}))
            await asyncio.sleep(0.9)
            assert cluster.group("g").state == "CompletingRebalance"
            await cluster.stop_node(old)
        view = cluster.group("g")
        assert (view.state, view.generation, view.members) == ("Empty", 0, {})


async def test_a_partition_that_moves_between_an_assignment_and_its_response():
    async with EmbeddedCluster(nodes=2, offsets_append_delay=1.0) as cluster:
        old = cluster.coordinator("g")
        async with connect(cluster, old) as client:
            joined = await join(client)
            request = sync_request(joined, plan={joined.member_id: assigned(0)})
            sent = client.send(request)
            await asyncio.sleep(0.5)
            cluster.move_coordinator("g", 3 - old)
            assert (await client.receive(request, *sent)).error_code == ErrorCode.NOT_COORDINATOR

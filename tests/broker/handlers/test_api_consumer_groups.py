"""Consumer groups (KIP-848) over the wire, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Client, connect
from tests.broker.requests import join as join_classic, now

Beat = m.ConsumerGroupHeartbeatRequest


@asynccontextmanager
async def broker(partitions: int = 4, **options: Any):
    options = {"group_consumer_assignment_interval": 0.0, **options}
    async with EmbeddedCluster(topics={"t": partitions}, **options) as cluster, connect(cluster) as client:
        yield cluster, client


def places(
    cluster: EmbeddedCluster, *partitions: int
) -> list[m.ConsumerGroupHeartbeatRequest.TopicPartitions]:
    return [Beat.TopicPartitions(cluster.topic("t").id, list(partitions))] if partitions else []


async def join(client: Client, member: str, *topics: str, **fields: Any) -> Any:
    given = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": list(topics or ("t",)),
        "topic_partitions": [],
    }
    answer = await client.ask(Beat("g", member, 0, **{**given, **fields}))
    assert not answer.error_code, answer
    return answer


async def beat(client: Client, member: str, epoch: int, **fields: Any) -> Any:
    return await client.ask(Beat("g", member, epoch, **fields))


def assigned(answer: Any) -> list[int] | None:
    """Return the partitions in a response, None if it has no assignment."""
    if answer.assignment is None:
        return None
    return [index for topic in answer.assignment.topic_partitions for index in topic.partitions]


async def test_version_0_gives_a_member_an_id():
    async with broker() as (cluster, client):
        request = Beat("g", "", 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], topic_partitions=[])
        first, second = await client.ask(request, 0), await client.ask(request, 0)
        assert first.member_id != second.member_id
        assert set(cluster.group("g").members) == {first.member_id, second.member_id}


async def test_a_view_of_the_group():
    async with broker() as (cluster, client):
        await join(client, "one", server_assignor="range")
        view = cluster.group("g")
        assert (view.state, view.generation, view.protocol, view.leader) == ("Stable", 2, "range", None)
        assert view.members["one"].topics == ("t",)
        assert view.assignment == {TopicPartition("t", index): "one" for index in range(4)}
        assert cluster.groups == ["g"]


async def test_the_target_is_computed_once_in_an_assignment_interval():
    async with broker(group_consumer_assignment_interval=1.0) as (_, client):
        assert assigned(await join(client, "one")) == [0, 1, 2, 3]
        assert assigned(await join(client, "two")) == []
        assert assigned(await beat(client, "one", 2)) is None
        await asyncio.sleep(1.0)
        assert assigned(await beat(client, "one", 2)) == [0, 1]


async def test_a_member_without_heartbeats_is_removed():
    async with broker() as (cluster, client):
        await join(client, "one")
        await join(client, "two")
        began = now()
        assert (await beat(client, "one", 2, topic_partitions=places(cluster, 0, 1))).member_epoch == 3
        while "two" in cluster.group("g").members:
            await asyncio.sleep(5)
            await beat(client, "one", 3)
        assert now() - began == 45
        assert (await beat(client, "two", 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await beat(client, "one", 4)).member_epoch == 4


async def test_the_configs_of_a_group_set_its_intervals():
    async with broker() as (cluster, client):
        cls = m.IncrementalAlterConfigsRequest
        values = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "60000"}
        configs = [cls.AlterableConfig(name, 0, value) for name, value in values.items()]
        answer = await client.ask(cls([cls.AlterConfigsResource(32, "g", configs)]))
        assert not answer.responses[0].error_code
        assert (await join(client, "one")).heartbeat_interval_ms == 7000
        await asyncio.sleep(59)
        assert cluster.group("g").members
        await asyncio.sleep(2)
        assert cluster.group("g").state == "Empty"


async def test_a_member_that_does_not_revoke_in_time_is_removed():
    async with broker() as (cluster, client):
        await join(client, "one", rebalance_timeout_ms=12_000)
        await join(client, "two")
        for _ in range(3):
            answer = await beat(client, "one", 2)
            assert answer.error_code == 0
            await asyncio.sleep(5)
        assert list(cluster.group("g").members) == ["two"]
        assert assigned(await beat(client, "two", 3)) == [0, 1, 2, 3]


async def test_new_partitions_and_deleted_topics_are_noticed():
    async with broker(2) as (cluster, client):
        await join(client, "one", "t", "later")
        cluster.create_partitions("t", 3)
        assert assigned(await beat(client, "one", 2)) == [0, 1, 2]
        cluster.create_topic("later", 1)
        answer = await beat(client, "one", 3)
        assert len(answer.assignment.topic_partitions) == 2
        cluster.delete_topic("later")
        assert assigned(await beat(client, "one", 4)) == [0, 1, 2]


async def test_groups_survive_a_move_and_a_restart(tmp_path):
    async with EmbeddedCluster(
        2, topics={"t": 4}, data_dir=tmp_path, group_consumer_assignment_interval=0.0
    ) as cluster:
        node = cluster.coordinator("g")
        async with connect(cluster, node) as client:
            await join(client, "one", instance_id="i", rack_id="r", server_assignor="range")
            await join(client, "two")
            await beat(client, "one", 2, instance_id="i")
            before = cluster.group("g")
        cluster.move_coordinator("g", 3 - node)
        async with connect(cluster, 3 - node) as client:
            assert cluster.group("g").members == before.members
            answer = await beat(client, "one", 2, instance_id="i", topic_partitions=places(cluster, 0, 1))
            assert (answer.error_code, answer.member_epoch) == (0, 3)
            described = await client.ask(m.ConsumerGroupDescribeRequest(["g"]))
            before = cluster.group("g")
    async with EmbeddedCluster(2, data_dir=tmp_path, group_consumer_assignment_interval=0.0) as cluster:
        node = cluster.coordinator("g")
        async with connect(cluster, node) as client:
            assert await client.ask(m.ConsumerGroupDescribeRequest(["g"])) == described
            assert assigned(await beat(client, "two", 3)) == [2, 3]
            await asyncio.sleep(46)
            assert cluster.group("g").state == "Empty"
            (group,) = (await client.ask(m.DeleteGroupsRequest(["g"]))).results
            assert group.error_code == 0
    async with EmbeddedCluster(2, data_dir=tmp_path) as cluster:
        assert cluster.group("g").state == "Dead"


async def test_empty_groups_change_their_kind_and_keep_their_offsets():
    async with broker(1) as (cluster, client):
        cluster.commit("g", {TopicPartition("t", 0): 5})
        await join(client, "one")
        assert cluster.group("g").protocol == "uniform"
        await beat(client, "one", -1)
        classic = await join_classic(client)
        assert classic.error_code == 0
        assert cluster.group("g").protocol == "range"
        assert cluster.group("g").offsets[TopicPartition("t", 0)].offset == 5
        answer = await beat(client, "one", 1)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await leave(client, classic.member_id)
        await join(client, "one")
        assert cluster.group("g").protocol == "uniform"
        assert cluster.group("g").offsets[TopicPartition("t", 0)].offset == 5
        cluster.move_coordinator("g", 1)
        assert cluster.groups == ["g"]


async def leave(client: Client, member: str) -> None:
    answer = await client.ask(m.LeaveGroupRequest("g", members=[m.LeaveGroupRequest.MemberIdentity(member)]))
    assert not answer.members[0].error_code


async def test_an_empty_group_expires_with_its_offsets():
    async with broker(1, offsets_retention=3600.0) as (cluster, client):
        await join(client, "one")
        cls = m.OffsetCommitRequest
        partitions = [cls.OffsetCommitRequestPartition(0, 5)]
        request = cls("g", 2, "one", topics=[cls.OffsetCommitRequestTopic("t", partitions=partitions)])
        answer = await client.ask(request, 9)
        assert answer.topics[0].partitions[0].error_code == 0
        await asyncio.sleep(3000)
        assert cluster.group("g").state == "Empty"
        assert cluster.group("g").offsets
        await asyncio.sleep(1300)
        assert cluster.group("g").state == "Dead"


async def test_responses_wait_until_the_change_is_written():
    async with broker(2, offsets_append_delay=1.0) as (cluster, client):
        began = now()
        await join(client, "one")
        assert now() - began == 1.0
        assert cluster.group("g").state == "Stable"

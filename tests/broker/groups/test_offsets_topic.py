"""`__consumer_offsets` as a topic of a cluster: its creation, records, transactions, expiration and deletion."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import Consumer
from asyncgroup.broker import EmbeddedCluster, OffsetAndMetadata, Refused
from asyncgroup.broker.groups.shared.requests import MemberTimeouts
from asyncgroup.broker.groups.store.coordinator_records import GroupRecord, OffsetRecord, decode_record
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Client, connect
from tests.broker.internals import (
    controller_of,
    log_of,
    node_of,
    offsets_partition_of,
    topic_of,
    transactions_of,
)
from tests.broker.offsets_requests import T0, TOPIC, commit, fetched, find, group_records, topics
from tests.broker.requests import assigned, commit_request, member
from tests.broker.transactional import end_transaction, init_producer, txn_offset_commit, write_markers

# -- creation and deletion --------------------------------------------------------------------------------------


async def test_it_is_created_by_the_first_find_coordinator_for_a_group():
    async with EmbeddedCluster(nodes=3) as cluster, connect(cluster) as client:
        assert await topics(client) == {}
        find_transactional = m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        await client.ask(find_transactional)
        assert await topics(client) == {}
        await find(client)
        found = (await topics(client))[TOPIC]
        assert found.is_internal
        assert [p.partition_index for p in found.partitions] == list(range(50))
        assert [p.leader_id for p in found.partitions] == [n % 3 + 1 for n in range(50)]
        assert all(p.replica_nodes[0] == p.leader_id for p in found.partitions)
        assert all(sorted(p.replica_nodes) == [1, 2, 3] for p in found.partitions)
        assert (await topics(client, TOPIC))[TOPIC].topic_id == found.topic_id
        cluster.create_topic("t")
        assert not (await topics(client, "t"))["t"].is_internal


async def test_its_creation_does_not_change_random_choices_for_other_topics():
    async def made(first: bool) -> list[tuple]:
        async with EmbeddedCluster(nodes=3, seed=5) as cluster, connect(cluster) as client:
            if first:
                await find(client)
            cluster.create_topic("t", 4)
            topic = cluster.topic("t")
            return [(topic.id, p.leader, p.replicas) for p in topic.partitions]

    assert await made(True) == await made(False)


async def test_a_commit_above_its_max_message_bytes_is_refused(cluster, client):
    cluster.create_topic("t", 1)
    await find(client)
    assert await commit(client, cluster, {0: 5}) == {0}
    topic = topic_of(cluster, TOPIC)
    controller_of(cluster).configure_topic(topic, {**topic.configs, "max.message.bytes": "100"})
    assert await commit(client, cluster, {0: 6}) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert await fetched(client) == {T0: 5}
    assert len(group_records(cluster)) == 1


async def test_its_settings_are_those_of_kafka(client):
    await find(client)
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(2, TOPIC, None)
    (result,) = (await client.ask(m.DescribeConfigsRequest([resource]))).results
    values = {config.name: config.value for config in result.configs}
    assert values["cleanup.policy"] == "compact"
    assert values["segment.bytes"] == "104857600"


async def test_creating_and_changing_it_explicitly(cluster, client):
    for make in (lambda: cluster.create_topic(TOPIC, 3), lambda: cluster.create_topic(TOPIC, 60)):
        with pytest.raises(Refused) as refused:
            make()
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    assert await topics(client) == {}
    cluster.create_topic(TOPIC)
    for make, code in (
        (lambda: cluster.create_topic(TOPIC, 50), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda: cluster.create_partitions(TOPIC, 60), ErrorCode.INVALID_PARTITIONS),
    ):
        with pytest.raises(Refused) as refused:
            make()
        assert refused.value.code is code
    assert len(cluster.topic(TOPIC).partitions) == 50


async def test_groups_are_lost_when_it_is_deleted(cluster, client):
    cluster.create_topic("t")
    joined = await member(client, 0)
    await commit(client, cluster, {0: 5}, generation_id_or_member_epoch=1, member_id=joined.member_id)
    cluster.delete_topic(TOPIC)
    assert cluster.groups == []
    assert await fetched(client) == {}
    assert await commit(client, cluster, {0: 6}) == {0}
    assert await fetched(client) == {T0: 6}
    assert len(group_records(cluster)) == 1


# -- records --------------------------------------------------------------------------------------------------


async def test_the_records_of_the_life_of_a_group():
    start = 1_700_000_000_000
    async with EmbeddedCluster(start_time=start) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 2)
        joined = await member(client, 0, 1)
        await asyncio.sleep(2)
        fields = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
        assert await commit(client, cluster, {0: 5, 1: 7}, **fields) == {0}
        leave = m.LeaveGroupRequest("g", members=[m.LeaveGroupRequest.MemberIdentity(joined.member_id)])
        await client.ask(leave)
        await client.ask(m.DeleteGroupsRequest(["g"]))
        created, stable, zero, one, empty, *tombstones = group_records(cluster)
        assert (created.snapshot.generation_id, created.snapshot.members) == (0, ())
        assert created.snapshot.protocol_type is None
        (kept,) = stable.snapshot.members
        assert (kept.member_id, kept.assignment) == (joined.member_id, assigned(0, 1))
        assert (kept.client.id, kept.timeouts) == ("test", MemberTimeouts(rebalance=30.0, session=10.0))
        assert (stable.snapshot.generation_id, stable.snapshot.leader) == (1, joined.member_id)
        assert stable.snapshot.current_state_timestamp == start
        assert zero == OffsetRecord("g", T0, OffsetAndMetadata(5, 3, "m5"))
        assert one.offset.commit_timestamp == start + 2000
        assert (empty.snapshot.generation_id, empty.snapshot.members) == (2, ())
        assert (empty.snapshot.protocol_type, empty.snapshot.protocol_name) == ("consumer", None)
        assert tombstones == [
            OffsetRecord("g", T0, None),
            OffsetRecord("g", TopicPartition("t", 1), None),
            GroupRecord("g", None),
        ]


async def test_a_commit_is_one_batch(cluster, client):
    cluster.create_topic("t", 3)
    await commit(client, cluster, {0: 1, 1: 1, 2: 1})
    offsets_partition = offsets_partition_of(cluster, "g")
    log = log_of(cluster, TOPIC, offsets_partition)
    assert log.end_offset == 3
    assert len(log.read(0, 1, at_least_one=True)) == log.size


async def test_any_consumer_can_read_it():
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t", 2)
        offsets_partition = offsets_partition_of(cluster, "g")
        async with connect(cluster, cluster.coordinator("g")) as client:
            await commit(client, cluster, {0: 5})
            async with Consumer(cluster.bootstrap_servers) as consumer:
                partition = await consumer.partition(TOPIC, offsets_partition, 0)
                found = []
                async for record in partition:
                    found.append(decode_record(record.key, record.value))
                    if len(found) == 2:
                        break
                    await commit(client, cluster, {1: 6})  # a parked fetch wakes up
        assert [each.offset.offset for each in found] == [5, 6]


async def test_the_log_stays_small(cluster, client):
    cluster.create_topic("t")
    log = controller_of(cluster).offsets_topic().partitions[offsets_partition_of(cluster, "g")].log
    metadata = "x" * 4000
    for offset in range(600):  # 2.4 MB of commits
        request = commit_request(cluster, 9, {0: offset})
        request.topics[0].partitions[0].committed_metadata = metadata
        await client.ask(request, 9)
    assert log.end_offset == 600
    assert log.size < 1.2 * 2**20
    cluster.move_leader(TOPIC, log.partition, 1)
    assert await fetched(client) == {T0: 599}


# -- transactions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("moves", [True, False])
async def test_offsets_in_a_transaction_stay_pending_over_a_move(committed, moves):
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic("t")
        cluster.move_coordinator("g", 1)
        other = transactions_of(cluster).coordinator_of("tx")
        offsets_partition = offsets_partition_of(cluster, "g")
        async with connect(cluster, 1) as client, connect(cluster, 2) as second:
            transactional = client if other == 1 else second
            await commit(client, cluster, {0: 1})
            producer = await init_producer(transactional)
            answer = await client.ask(txn_offset_commit(producer, {0: 7}), 5)
            assert answer.topics[0].partitions[0].error_code == 0
            log = log_of(cluster, TOPIC, offsets_partition)
            assert (log.end_offset, log.last_stable_offset) == (2, 1)
            coordinator = client
            if moves:
                cluster.move_coordinator("g", 2)
                coordinator = second
            assert await fetched(coordinator) == {T0: 1}
            assert await fetched(coordinator, stable=True) == {T0: -1}
            assert (await end_transaction(transactional, producer, 4, commit=committed)).error_code == 0
            assert await fetched(coordinator, stable=True) == {T0: 7 if committed else 1}
            assert (log.end_offset, log.last_stable_offset) == (3, 3)
            cluster.move_coordinator("g", 1)
            assert await fetched(client) == {T0: 7 if committed else 1}


async def test_several_commits_in_one_transaction(cluster, client):
    """A coordinator writes them with the same sequence number; none is treated as a duplicate."""
    cluster.create_topic("t", 2)
    producer = await init_producer(client)
    for offset in (5, 6, 7):
        await client.ask(txn_offset_commit(producer, {0: offset, 1: offset}), 5)
    await end_transaction(client, producer, 4)
    assert await fetched(client) == {T0: 7, TopicPartition("t", 1): 7}


async def test_an_admin_client_ends_a_transaction_with_offsets(cluster, client):
    cluster.create_topic("t")
    producer = await init_producer(client)
    await client.ask(txn_offset_commit(producer, {0: 7}), 5)
    offsets_partition = offsets_partition_of(cluster, "g")
    await client.ask(write_markers(producer, offsets_partition, commit=True, topic=TOPIC))
    assert await fetched(client, stable=True) == {T0: 7}


async def test_a_marker_ends_a_transaction_with_a_pending_commit():
    async with EmbeddedCluster(offsets_append_delay=1.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        async with connect(cluster) as other:
            producer = await init_producer(other)
            await find(client)
            request = txn_offset_commit(producer, {0: 7})
            sent = client.send(request, 5)
            await asyncio.sleep(0.5)
            await end_transaction(other, producer, 4, commit=False)
            answer = await client.receive(request, *sent)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
            await asyncio.sleep(2.0)
            assert await fetched(client, stable=True) == {}


# -- expiration and deletion, over the wire----------------------------------------------------------------------


async def test_offsets_expire():
    async with (
        EmbeddedCluster(offsets_retention=3600.0, connections_max_idle=None) as cluster,
        connect(cluster) as client,
    ):
        cluster.create_topic("t")
        await commit(client, cluster, {0: 5})
        await asyncio.sleep(3000)
        assert await fetched(client) == {T0: 5}
        await asyncio.sleep(1300)
        assert await fetched(client) == {}
        assert cluster.groups == []


async def test_an_old_client_sets_the_retention_of_its_offsets(cluster, client):
    cluster.create_topic("t")
    request = commit_request(cluster, 2, {0: 5}, retention_time_ms=60_000)
    await client.ask(request, 2)
    (record,) = group_records(cluster)
    assert record.offset.expire_timestamp == record.offset.commit_timestamp + 60_000
    await asyncio.sleep(601)
    assert cluster.groups == []


async def offset_delete(client: Client, *partitions: TopicPartition, group: str = "g") -> list[int] | int:
    """Send OffsetDelete; return the errors of the partitions, or of the group."""
    cls = m.OffsetDeleteRequest
    wanted = [
        cls.OffsetDeleteRequestTopic(topic, [cls.OffsetDeleteRequestPartition(partition)])
        for topic, partition in partitions
    ]
    answer = await client.ask(cls(group, wanted))
    return answer.error_code or [p.error_code for topic in answer.topics for p in topic.partitions]


async def test_offset_delete():
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.move_coordinator("g", 1)
        cluster.create_topic("t", 2)
        cluster.create_topic("u")
        u0 = TopicPartition("u", 0)
        assert await offset_delete(client, T0, group="") == ErrorCode.INVALID_GROUP_ID
        assert await offset_delete(client, T0) == ErrorCode.GROUP_ID_NOT_FOUND
        joined = await member(client, 0)
        await commit(client, cluster, {0: 5}, generation_id_or_member_epoch=1, member_id=joined.member_id)
        partitions = T0, u0, TopicPartition("t", 2), TopicPartition("nope", 0)
        assert await offset_delete(client, *partitions) == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            0,
            unknown,
            unknown,
        ]
        leave = m.LeaveGroupRequest("g", members=[m.LeaveGroupRequest.MemberIdentity(joined.member_id)])
        await client.ask(leave)
        assert await offset_delete(client, T0) == [0]
        assert await fetched(client) == {}
        cluster.move_coordinator("g", 2)
        assert await offset_delete(client, T0) == ErrorCode.NOT_COORDINATOR


async def test_delete_groups_without_groups_and_with_a_duplicate(cluster, client):
    cluster.create_topic("t")
    assert (await client.ask(m.DeleteGroupsRequest([]))).results == []
    await commit(client, cluster, {0: 5})
    results = (await client.ask(m.DeleteGroupsRequest(["g", "g"]))).results
    assert [(result.group_id, result.error_code) for result in results] == [("g", 0)]
    assert repr(node_of(cluster, 1).coordinator._store._log) == "<OffsetsTopic of node 1>"

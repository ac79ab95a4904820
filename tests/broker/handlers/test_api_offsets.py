"""ListOffsets, OffsetForLeaderEpoch, and committed offsets by topic id, over the wire."""

from __future__ import annotations

from uuid import UUID

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import Client, connect
from tests.broker.requests import put


async def listed(client: Client, version: int, *timestamps: int, epoch: int = -1):
    partition = m.ListOffsetsRequest.ListOffsetsPartition
    results = []
    for timestamp in timestamps:
        topic = m.ListOffsetsRequest.ListOffsetsTopic("t", [partition(0, epoch, timestamp)])
        answer = await client.ask(m.ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
        results += answer.topics[0].partitions
    return [(result.error_code, result.offset, result.timestamp) for result in results]


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets(cluster, client, version):
    cluster.create_topic("t")
    assert await listed(client, version, -1, -2, 0) == [(0, 0, -1), (0, 0, -1), (0, -1, -1)]
    await put(client, cluster, batch(b"a", b"b", b"c", timestamp=1000, step=10))
    assert await listed(client, version, -1, -2, 1005, 1020, 1021) == [
        (0, 3, -1),
        (0, 0, -1),
        (0, 1, 1010),
        (0, 2, 1020),
        (0, -1, -1),
    ]
    unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    assert await listed(client, version, -3) == [(0, 2, 1020) if version >= 7 else unsupported]
    assert await listed(client, version, -4) == [(0, 0, -1) if version >= 8 else unsupported]
    assert await listed(client, version, -5) == [(0, -1, -1) if version >= 9 else unsupported]
    assert await listed(client, version, -6) == [(0, -1, -1) if version >= 11 else unsupported]
    assert await listed(client, version, -7) == [unsupported]


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
async def test_the_latest_offset_is_unavailable_until_the_followers_catch_up(version, error):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as one, connect(cluster, 2) as two:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 1)
        await put(one, cluster, batch(b"a", timestamp=1000))
        cluster.hold_followers("t", 0)
        await put(one, cluster, batch(b"b", timestamp=2000), acks=1)
        assert await listed(one, version, -1, 1500) == [(0, 1, -1), (0, -1, -1)]
        cluster.move_leader("t", 0, 2)
        refused = (error, -1, -1)
        assert await listed(two, version, -1, 1500) == [refused, refused]
        assert await listed(two, version, -2, 500) == [(0, 0, -1), (0, 0, 1000)]
        cluster.release_followers("t", 0)
        assert await listed(two, version, -1, 1500) == [(0, 2, -1), (0, 1, 2000)]


async def test_list_offsets_errors():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        assert (await listed(client, 4, -1, epoch=0))[0][0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await listed(client, 4, -1, epoch=2))[0][0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        cluster.move_leader("t", 0, 2)
        assert (await listed(client, 4, -1))[0][0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition = m.ListOffsetsRequest.ListOffsetsPartition
        request = m.ListOffsetsRequest(
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic("t", [partition(0), partition(0), partition(9)]),
                m.ListOffsetsRequest.ListOffsetsTopic("nope", [partition(0)]),
            ]
        )
        known, unknown = (await client.ask(request)).topics
        assert [p.error_code for p in known.partitions] == [
            ErrorCode.INVALID_REQUEST,  # one error for both
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(2, 5))
async def test_offset_for_leader_epoch(version):
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 1) as client:
        cluster.create_topic("t")
        cluster.move_leader("t", 0, 1)
        await put(client, cluster, batch(b"a", b"b"))
        cluster.move_leader("t", 0, 2)
        cluster.move_leader("t", 0, 1)
        await put(client, cluster, batch(b"c"))
        request = m.OffsetForLeaderEpochRequest
        partition = request.OffsetForLeaderPartition
        answer = await client.ask(
            request(
                topics=[
                    request.OffsetForLeaderTopic("t", [partition(0, -1, epoch) for epoch in (1, 2, 3, 4)]),
                    request.OffsetForLeaderTopic("t", [partition(0, 1, 1), partition(5, -1, 1)]),
                ]
            ),
            version,
        )
        ends, errors = (topic.partitions for topic in answer.topics)
        assert [(e.leader_epoch, e.end_offset) for e in ends] == [(1, 2), (1, 2), (3, 3), (-1, -1)]
        assert [e.error_code for e in errors] == [
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


# -- committed offsets by topic id (OffsetCommit 10, OffsetFetch 10) ---------------------------------------------------


def commit_by_id(*topics: tuple[UUID, tuple[int, ...]]) -> m.OffsetCommitRequest:
    """Return a request that commits offset 7 for these partitions."""
    request = m.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition
    return request(
        group_id="g",
        topics=[
            request.OffsetCommitRequestTopic("", topic_id, [part(number, 7, 2, "m") for number in numbers])
            for topic_id, numbers in topics
        ],
    )


def fetch_by_id(*topics: tuple[UUID, tuple[int, ...]]) -> m.OffsetFetchRequest:
    request = m.OffsetFetchRequest
    asked = [request.OffsetFetchRequestTopics("", topic_id, list(numbers)) for topic_id, numbers in topics]
    return request(groups=[request.OffsetFetchRequestGroup(group_id="g", topics=asked)])


async def test_unknown_ids_and_partitions_get_individual_errors(cluster, client):
    cluster.create_topic("t")
    known, unknown = cluster.topic("t").id, UUID(int=99)
    topics = ((unknown, (0, 1)), (known, (0, 5)), (m.NO_UUID, (0,)))
    answer = await client.ask(commit_by_id(*topics))
    assert [
        (t.topic_id, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics
    ] == [
        (unknown, [(0, ErrorCode.UNKNOWN_TOPIC_ID), (1, ErrorCode.UNKNOWN_TOPIC_ID)]),
        (known, [(0, 0), (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        (m.NO_UUID, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
    ]
    (group,) = (await client.ask(fetch_by_id(*topics))).groups
    assert group.error_code == 0
    assert [
        (t.topic_id, [(p.committed_offset, p.committed_leader_epoch, p.error_code) for p in t.partitions])
        for t in group.topics
    ] == [
        (unknown, [(-1, -1, ErrorCode.UNKNOWN_TOPIC_ID)] * 2),
        (known, [(7, 2, 0), (-1, -1, 0)]),
        (m.NO_UUID, [(-1, -1, ErrorCode.UNKNOWN_TOPIC_ID)]),
    ]


async def test_offsets_of_a_deleted_and_recreated_topic(cluster, client):
    cluster.create_topic("t")
    old = cluster.topic("t").id
    await client.ask(commit_by_id((old, (0,))))
    cluster.delete_topic("t")
    cluster.create_topic("t")
    new = cluster.topic("t").id
    answer = await client.ask(commit_by_id((old, (0,)), (new, (0,))))
    assert [t.partitions[0].error_code for t in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_ID, 0]
    (group,) = (await client.ask(fetch_by_id((old, (0,)), (new, (0,))))).groups
    assert [t.partitions[0].committed_offset for t in group.topics] == [-1, 7]


async def test_fetching_all_offsets_of_a_group_returns_topic_ids(cluster, client):
    cluster.create_topic("t")
    topic_id = cluster.topic("t").id
    await client.ask(commit_by_id((topic_id, (0,))))
    request = m.OffsetFetchRequest
    everything = request(groups=[request.OffsetFetchRequestGroup(group_id="g", topics=None)])
    (group,) = (await client.ask(everything)).groups
    assert [(t.topic_id, t.partitions[0].committed_offset) for t in group.topics] == [(topic_id, 7)]

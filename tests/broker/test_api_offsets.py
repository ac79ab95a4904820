"""ListOffsets and OffsetForLeaderEpoch over the wire."""

from __future__ import annotations

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import Client, connect
from tests.broker.requests import put

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


async def listed(client: Client, version: int, *timestamps: int, epoch: int = -1):
    partition = m.ListOffsetsRequest.ListOffsetsPartition
    results = []
    for timestamp in timestamps:
        topic = m.ListOffsetsRequest.ListOffsetsTopic("t", [partition(0, epoch, timestamp)])
        answer = await client.ask(m.ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
        results += answer.topics[0].partitions
    return [(result.error_code, result.offset, result.timestamp) for result in results]


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets(version):
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
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
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
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

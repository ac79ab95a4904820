"""Requests used by many tests, with defaults for the fields that a test does not set."""

from __future__ import annotations

import asyncio

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned
from tests.broker.client import Client

LIMIT = 1 << 20


def now() -> float:
    return asyncio.get_running_loop().time()


def produce(
    cluster: EmbeddedCluster, *batches: bytes, topic="t", acks=-1, version=13, first=0
) -> m.ProduceRequest:
    """Return a Produce request with one batch for each partition from `first` on."""
    named = {"topic_id": cluster.topic(topic).id} if version >= 13 else {"name": topic}
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                **named,
                partition_data=[
                    m.ProduceRequest.PartitionProduceData(index, data)
                    for index, data in enumerate(batches, first)
                ],
            )
        ],
    )


async def put(client: Client, cluster: EmbeddedCluster, *batches: bytes, **fields):
    """Send Produce; return the results of the partitions."""
    request = produce(cluster, *batches, **fields)
    answer = await client.ask(request, fields.get("version", 13))
    return [partition for topic in answer.responses for partition in topic.partition_responses]


def fetch(
    cluster: EmbeddedCluster | None,
    *partitions: int,
    topic="t",
    version=18,
    offset=0,
    epoch=-1,
    last_epoch=-1,
    **fields,
) -> m.FetchRequest:
    """Return a Fetch request for these partitions from `offset` on."""
    named = {"topic_id": cluster.topic(topic).id} if version >= 13 and cluster else {"topic": topic}
    wanted = [
        m.FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=fields.get("partition_max_bytes", LIMIT),
            current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch,
        )
        for partition in partitions
    ]
    fields.pop("partition_max_bytes", None)
    topics = [m.FetchRequest.FetchTopic(**named, partitions=wanted)] if wanted else []
    return m.FetchRequest(
        **{"max_wait_ms": 500, "min_bytes": 1, "max_bytes": LIMIT, "topics": topics, **fields}
    )


def partitions_of(answer: m.FetchResponse) -> dict[int, m.FetchResponse.PartitionData]:
    return {p.partition_index: p for topic in answer.responses for p in topic.partitions}


SUBSCRIPTION = encode_versioned(m.ConsumerProtocolSubscription(topics=["t"]), 0)


def assigned(*partitions: int) -> bytes:
    topic = m.ConsumerProtocolAssignment.TopicPartition("t", list(partitions))
    return encode_versioned(m.ConsumerProtocolAssignment([topic]), 0)


def join_request(member_id: str = "", **fields) -> m.JoinGroupRequest:
    return m.JoinGroupRequest(
        **{
            "group_id": "g",
            "member_id": member_id,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": [m.JoinGroupRequest.JoinGroupRequestProtocol("range", SUBSCRIPTION)],
            **fields,
        }
    )


async def join(client: Client, version: int = 9, **fields) -> m.JoinGroupResponse:
    """Join as a new member, in two steps if the version requires a member id."""
    if version == 0:
        fields.setdefault("rebalance_timeout_ms", -1)
    answer = await client.ask(join_request(**fields), version)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = await client.ask(join_request(answer.member_id, **fields), version)
    return answer


def sync_request(joined: m.JoinGroupResponse, version: int = 5, plan=None, **fields) -> m.SyncGroupRequest:
    if version >= 5:
        fields = {"protocol_type": "consumer", "protocol_name": "range", **fields}
    return m.SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(*pair) for pair in (plan or {}).items()],
        **fields,
    )


async def member(client: Client, *partitions: int, **fields) -> m.JoinGroupResponse:
    """Join and sync as the only member of a stable group."""
    joined = await join(client, **fields)
    synced = await client.ask(sync_request(joined, plan={joined.member_id: assigned(*partitions)}, **fields))
    assert synced.error_code == 0
    return joined


def commit_request(
    cluster: EmbeddedCluster, version: int, offsets: dict[int, int], **fields
) -> m.OffsetCommitRequest:
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition
    named = {"topic_id": cluster.topic("t").id} if version >= 10 else {"name": "t"}
    return m.OffsetCommitRequest(
        group_id="g",
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(
                **named,
                partitions=[
                    partition(index, offset, 3 if version >= 6 else -1, f"m{offset}")
                    for index, offset in offsets.items()
                ],
            )
        ],
        **fields,
    )


def errors(answer: m.OffsetCommitResponse) -> list[int]:
    return [p.error_code for topic in answer.topics for p in topic.partitions]

"""Requests and queries of the tests of `__consumer_offsets`."""

from __future__ import annotations

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.broker.groups.store.coordinator_records import GroupRecord, OffsetRecord, decode_record
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.broker.client import Client
from tests.broker.internals import offsets_partition_of
from tests.broker.requests import commit_request

__all__ = ["T0", "TOPIC", "commit", "fetched", "find", "group_records", "topics"]

TOPIC = "__consumer_offsets"
T0 = TopicPartition("t", 0)


async def topics(client: Client, *names: str) -> dict[str, m.MetadataResponse.MetadataResponseTopic]:
    wanted = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names] or None
    answer = await client.ask(m.MetadataRequest(wanted))
    return {topic.name: topic for topic in answer.topics}


async def find(client: Client, group: str = "g") -> int:
    (found,) = (await client.ask(m.FindCoordinatorRequest(coordinator_keys=[group]))).coordinators
    assert found.error_code == 0
    return found.node_id


async def commit(client: Client, cluster: EmbeddedCluster, offsets: dict[int, int], **fields) -> set[int]:
    """Send OffsetCommit; return the errors."""
    answer = await client.ask(commit_request(cluster, 9, offsets, **fields), 9)
    return {p.error_code for topic in answer.topics for p in topic.partitions}


async def fetched(client: Client, *, stable: bool = False) -> dict[TopicPartition, int] | int:
    """Return all committed offsets of the group, or the error."""
    group = m.OffsetFetchRequest.OffsetFetchRequestGroup("g", topics=None)
    (answer,) = (await client.ask(m.OffsetFetchRequest(groups=[group], require_stable=stable), 9)).groups
    if answer.error_code:
        return answer.error_code
    return {
        TopicPartition(topic.name, p.partition_index): p.committed_offset
        for topic in answer.topics
        for p in topic.partitions
    }


def group_records(cluster: EmbeddedCluster, group: str = "g") -> list[GroupRecord | OffsetRecord | None]:
    """Return the decoded records in the group's partition of `__consumer_offsets`."""
    place = offsets_partition_of(cluster, group)
    return [decode_record(record.key, record.value) for record in cluster.records(TOPIC, place)]

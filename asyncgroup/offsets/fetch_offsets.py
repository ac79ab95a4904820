"""The offsets that a group has committed: one OffsetFetch, however many partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from asyncgroup.cluster import Cluster
from asyncgroup.errors import BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_plan import BY_NAME
from asyncgroup.offsets.partition_offsets import CommittedOffset
from asyncgroup.wire import messages as m

__all__ = ["fetch_offsets"]

BATCHED: Final = 8
"""The OffsetFetch version from which several groups fit one request (KIP-709)."""

_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def fetch_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], *, lane: str
) -> dict[TopicPartition, CommittedOffset]:
    """Committed offsets of `partitions`; those without one are left out.

    Retriable errors are retried `metadata_retry_max` times. Raises BrokerError, TransportError.
    """
    wanted = sorted(partitions)
    backoff = cluster.backoff()
    while True:
        try:
            return await _ask(cluster, group_id, wanted, lane)
        except (BrokerError, TransportError) as error:
            if isinstance(error, BrokerError) and error.code in _MOVED:
                cluster.coordinators.forget(group_id)
            if not error.retriable or backoff.failures >= cluster.config.metadata_retry_max:
                raise
            await asyncio.sleep(backoff.next())


async def _ask(
    cluster: Cluster, group_id: str, wanted: list[TopicPartition], lane: str
) -> dict[TopicPartition, CommittedOffset]:
    names: dict[str, list[int]] = {}
    for tp in wanted:
        names.setdefault(tp.topic, []).append(tp.partition)
    response = await cluster.coordinators.request_built(
        group_id,
        m.OffsetFetchRequest,
        lambda version: _request(group_id, names, version),
        lane=lane,
        highest=BY_NAME,
    )
    answer = response.groups[0] if response.groups else response
    what = f"committed offsets of group {group_id!r}"
    if answer.error_code:
        raise BrokerError(answer.error_code, what)
    found = {}
    for topic in answer.topics:
        for part in topic.partitions:
            if part.error_code:
                raise BrokerError(part.error_code, f"{what}, partition {topic.name}-{part.partition_index}")
            if part.committed_offset >= 0:
                tp = TopicPartition(topic.name, part.partition_index)
                committed = CommittedOffset(
                    part.committed_offset, part.metadata or "", part.committed_leader_epoch
                )
                found[tp] = committed
    return found


def _request(group_id: str, names: dict[str, list[int]], version: int) -> m.OffsetFetchRequest:
    request = m.OffsetFetchRequest
    if version < BATCHED:
        topics = [request.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in names.items()]
        return request(group_id=group_id, topics=topics)
    grouped = [request.OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in names.items()]
    return request(groups=[request.OffsetFetchRequestGroup(group_id=group_id, topics=grouped)])

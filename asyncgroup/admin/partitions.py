"""Partitions that a call is about: those that exist, with their leaders, and the errors of the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.metadata import TopicInfo
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["existing_partitions"]


@asynccontextmanager
async def existing_partitions(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], what: str, deadline: float = float("inf")
) -> AsyncIterator[tuple[list[TopicPartition], dict[TopicPartition, AsyncGroupError]]]:
    """Yield the partitions that exist, and for each other one an error, which begins with `what`.

    Their topics are tracked in the block, so that the cluster knows their leaders. Raises NoBrokersError, RequestTimedOut at
    the `deadline`, and as `ClusterClient.existing_topics`.
    """
    wanted = list(dict.fromkeys(partitions))
    topics: dict[str, TopicInfo] = {}
    if wanted:
        looked_up = cluster.existing_topics({tp.topic for tp in wanted})
        topics = await within(deadline, looked_up, what="metadata")
    errors: dict[TopicPartition, AsyncGroupError] = {}
    for tp in wanted:
        topic = topics.get(tp.topic)
        if topic is None or topic.error_code:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            errors[tp] = BrokerError(code, f"{what} {tp}")
        elif tp.partition not in topic.partitions:
            errors[tp] = BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{what} {tp}", "the topic has no such partition"
            )
    found = [tp for tp in wanted if tp not in errors]
    with cluster.tracking(dict.fromkeys(tp.topic for tp in found), creates=False):
        if found:
            await within(deadline, cluster.refresh(), what="metadata")
        yield found, errors

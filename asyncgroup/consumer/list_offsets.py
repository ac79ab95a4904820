"""Offsets by name or time: one ListOffsets request for each leader broker, however many partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from asyncgroup.cluster import Cluster
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["EARLIEST", "LATEST", "list_offsets"]

LATEST: Final = -1
"""Stands for the log's end instead of a timestamp."""

EARLIEST: Final = -2
"""Stands for the log's start instead of a timestamp."""


async def list_offsets(cluster: Cluster, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets at `EARLIEST`, `LATEST` or a timestamp (ms) of each partition.

    A timestamp behind the last record gives the log's end (Java's `offsetsForTimes` gives nothing, and every caller
    of it then asks for the end). Leader moves and other retriable errors are tried again `metadata_retry_max` times.
    Raises BrokerError, TransportError.
    """
    found: dict[TopicPartition, int] = {}
    backoff = cluster.backoff()
    left = dict(wanted)
    while left:
        problem = await _round(cluster, left, found)
        left = {tp: spec for tp, spec in left.items() if tp not in found}
        if not left:
            break
        problem = problem or BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offsets of {sorted(left)}")
        retriable = isinstance(problem, TransportError) or getattr(problem, "retriable", False)
        if not retriable or backoff.failures >= cluster.config.metadata_retry_max:
            raise problem
        await asyncio.sleep(backoff.next())
        await cluster.refresh()
    if ends := {tp: LATEST for tp, offset in found.items() if offset < 0 <= wanted[tp]}:
        found |= await list_offsets(cluster, ends)
    return found


async def _round(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, int]
) -> AsyncGroupError | None:
    """Ask every leader once, all at the same time; returns one of the problems met, if any."""
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, spec in wanted.items():
        by_leader.setdefault(await cluster.leader(tp), {})[tp] = spec
    results = await asyncio.gather(
        *(_ask(cluster, node_id, part, found) for node_id, part in by_leader.items()), return_exceptions=True
    )
    problem = None
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, AsyncGroupError):
            raise result
        # a final error tells more than one that passes
        if result is not None and (problem is None or not getattr(result, "retriable", True)):
            problem = result
    return problem


async def _ask(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, int]
) -> AsyncGroupError | None:
    request = m.ListOffsetsRequest(replica_id=-1)
    topics: dict[str, m.ListOffsetsRequest.ListOffsetsTopic] = {}
    for tp, timestamp in wanted.items():
        if tp.topic not in topics:
            topics[tp.topic] = m.ListOffsetsRequest.ListOffsetsTopic(name=tp.topic)
        info = cluster.view.partition(*tp)
        epoch = info.leader_epoch if info is not None else -1
        entry = m.ListOffsetsRequest.ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=epoch, timestamp=timestamp
        )
        topics[tp.topic].partitions.append(entry)
    request.topics = list(topics.values())
    response = await cluster.request(node_id, request)
    problem = None
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                problem = BrokerError(part.error_code, f"offset of {tp}")
            else:
                found[tp] = part.offset
    return problem

"""The beginning of a session's claims: where each one starts, and what stands behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.error_stream import ErrorStream
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.resets import resolve_start_offsets
from asyncgroup.group.claim import Claim
from asyncgroup.group.known_topics import KnownTopics
from asyncgroup.group.member_health import MemberHealth
from asyncgroup.group.paused_partitions import PausedPartitions
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset, Committer, PartitionOffsets

__all__ = ["GroupContext", "StartOffsets", "connect_offsets", "find_start_offsets", "make_claims"]

StartOffsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]
"""Where each claim begins to read, and the metadata of the last commit."""


class GroupContext(NamedTuple):
    """What sessions of a group share."""

    cluster: Cluster
    group_id: str
    config: ConsumerConfig
    errors: ErrorStream
    pauses: PausedPartitions
    interceptors: Interceptors
    member_health: MemberHealth
    known_topics: KnownTopics
    fetch_sessions: dict[int, FetchSession]
    """By node: each session's fetches end the fetch sessions of the one before."""
    lanes: str = ""
    """What tells this member's fetch connections from those of others on the same Cluster."""

    def report_error(self, error: Exception) -> bool:
        """An error that heals by itself: counted, and told to those who read `errors()`; whether there is somebody."""
        self.member_health.count_error(error)
        return self.errors.put(error)


async def find_start_offsets(
    context: GroupContext, committer: Committer, partitions: Sequence[TopicPartition]
) -> StartOffsets:
    """Where each claim begins: its committed offset, or what `auto_offset_reset` says where there is none.

    A partition that was added to its topic under our eyes begins at the log's start, also with `error`, as there is
    nothing that could have been lost. One OffsetFetch in all, and one ListOffsets for each leader of a partition
    without a commit. Raises BrokerError, TransportError, OffsetOutOfRangeError.
    """
    if not partitions:
        return {}
    committed = await committer.fetch(partitions)
    starts = await resolve_start_offsets(
        context.cluster,
        partitions,
        {tp: at.offset for tp, at in committed.items()},
        context.config,
        earliest_for=[tp for tp in partitions if context.known_topics.was_added(tp)],
        reader=f"group {context.group_id!r}",
    )
    return {tp: committed.get(tp) or CommittedOffset(offset) for tp, offset in starts.items()}


def make_claims(
    context: GroupContext, committer: Committer, budget: Budget, starts: StartOffsets
) -> list[Claim]:
    """A claim for each start, paused where the user has paused the partition; nothing is fetched yet."""
    claims = []
    for tp, start in starts.items():
        consumer = PartitionConsumer(
            tp,
            start.offset,
            context.config,
            budget,
            context.cluster.hooks,
            context.interceptors,
            start.leader_epoch,
        )
        if tp in context.pauses:
            consumer.pause()
        offsets = committer.manage(tp, *start)
        connect_offsets(consumer, offsets)
        claims.append(Claim(consumer, offsets))
    return claims


def connect_offsets(consumer: PartitionConsumer, offsets: PartitionOffsets) -> None:
    """Marks hear of positions that the log took away, of what is passed over or unreadable, and which topic it is.

    The topic may be made anew before the first fetch: the start is an offset of the one that the marks are for.
    """
    consumer.fetch_position.topic_id = offsets.topic_id
    consumer.fetch_position.on_topic_id = partial(offsets.bind_topic, position=lambda: consumer.position)
    consumer.on_reset = offsets.rebase
    consumer.on_restart = partial(offsets.restart, position=lambda: consumer.position)
    consumer.on_skipped_range = offsets.skip_range
    consumer.on_unreadable_batch = partial(offsets.hold_back, position=lambda: consumer.position)

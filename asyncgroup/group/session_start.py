"""Start of a session: find the start offsets and create the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.error_stream import ErrorStream
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.partition_consumer import PartitionConsumer, partition_of
from asyncgroup.consumer.resets import resolve_start_offsets
from asyncgroup.group.claim import Claim
from asyncgroup.group.member_health import MemberHealth
from asyncgroup.group.paused_partitions import PausedPartitions
from asyncgroup.group.topics import KnownTopics
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import CommittedOffset, Committer, PartitionMarks

__all__ = ["GroupContext", "StartOffsets", "connect_offsets", "find_start_offsets", "make_claims"]

StartOffsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]
"""By partition: the offset at which its claim begins to read, and the metadata of the last commit."""


class GroupContext(NamedTuple):
    """What the sessions of one group object share."""

    cluster: ClusterClient
    group_id: str
    config: ConsumerConfig
    errors: ErrorStream
    pauses: PausedPartitions
    interceptors: Interceptors
    member_health: MemberHealth
    known_topics: KnownTopics
    fetch_sessions: dict[int, FetchSession]
    """Fetch sessions by node id, kept so that the next session's fetches close those of the last one."""
    lane_suffix: str = ""
    """Suffix of the purposes of this member's fetch connections, unique among the users of a shared Cluster."""

    def report_error(self, error: Exception) -> bool:
        """Count a retried error and pass it to the readers of `errors()`; return whether there are any."""
        self.member_health.count_error(error)
        return self.errors.put(error)


async def find_start_offsets(
    context: GroupContext, committer: Committer, partitions: Sequence[TopicPartition]
) -> StartOffsets:
    """Return where each claim begins: at its committed offset, or by `auto_offset_reset` if there is none.

    A partition created while the group object was running begins at the log start, also with `error`, since none of its
    records can have been consumed. Sends one OffsetFetch, and one ListOffsets per leader of partitions without a
    committed offset. Raises BrokerError, TransportError, OffsetOutOfRangeError.
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
    """Create a claim for each start offset, paused if the user paused the partition. Nothing is fetched yet."""
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


def connect_offsets(consumer: PartitionConsumer, offsets: PartitionMarks) -> None:
    """Connect a consumer's callbacks to its marks: resets, truncation, skipped or corrupt records, the topic id.

    The topic id is set before the first fetch, so that a recreation of the topic since the offset was committed is
    noticed.
    """
    partition = partition_of(consumer)
    partition.fetch_position.topic_id = offsets.topic_id
    partition.fetch_position.on_topic_id = partial(offsets.bind_topic, position=lambda: partition.position)
    partition.on_reset = offsets.rebase
    partition.on_restart = partial(offsets.restart, position=lambda: partition.position)
    partition.on_skipped_range = offsets.skip_range
    partition.on_unreadable_batch = partial(offsets.hold_back, position=lambda: partition.position)

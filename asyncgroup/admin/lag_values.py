"""What the lag of a group is: pure functions of its commits, its members, and the logs of its partitions.

A log has lost what it deleted before the group had read it: that is loss, not lag. Offsets are counted, as in Kafka's tool: those of transaction
markers, of compacted records and of aborted transactions too, because only reading the log would show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from asyncgroup.ack_window import AckWindow
from asyncgroup.admin.group_offsets import GroupOffset
from asyncgroup.admin.groups import GroupDescription, MemberDescription
from asyncgroup.errors import AsyncGroupError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.offsets.commit_metadata import CommitMetadata, decode_metadata
from asyncgroup.offsets.window_encoding import decode_window
from asyncgroup.topic_partition import TopicPartition
from asyncgroup.wire.messages import NO_UUID

__all__ = ["AckWindowLag", "GroupLag", "PartitionFacts", "PartitionLag", "group_lag", "partition_lag"]


@dataclass(frozen=True, slots=True)
class AckWindowLag:
    """The ack window in the commit of a work queue: records that are acknowledged in any order above the committed offset.

    `open + beyond` is the lag of the partition. Records that the log has deleted are not counted.
    """

    acked_above: int
    """Acknowledged records above the committed offset."""
    open: int
    """Records below the end of the window that are not acknowledged: waiting, delivered, or to be delivered again."""
    failed: int
    """Unacknowledged records, also beyond these, that had failed deliveries before the commit."""
    end: int
    """The offset after the last acknowledged record."""
    beyond: int
    """Records from there to the end of the log; the commit does not say which of them are delivered."""


add_foreign_names(AckWindowLag, {"done": "window.acked_above"})


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind the end of one partition, with the columns of `kafka-consumer-groups.sh --describe`."""

    committed_offset: int | None
    """The next offset that the group is to read; None without a commit."""
    leader_epoch: int | None
    """The leader epoch of the commit; None if it has none."""
    log_start: int | None
    """The log start offset; None if it could not be looked up."""
    log_end: int | None
    """The high watermark, or with `read_committed` the last stable offset; None if it could not be looked up."""
    lag: int | None
    """Offsets up to the log's end that the group is still to read, without those that an ack window has as acknowledged; None
    without a commit (`-` in Kafka's tool), and if `error` is given."""
    lost: int | None
    """Offsets before the log's start that the group has not read: the log has deleted them. None as `lag`."""
    is_beyond_log_end: bool = False
    """Whether the commit is after the log's end, which makes the lag 0: the log was truncated, or, with `read_committed`, members
    read records of open transactions."""
    is_of_deleted_topic: bool = False
    """Whether the commit is of a deleted topic with the same name (members of asyncgroup note the topic id): all records count as
    lag."""
    member_id: str | None = None
    """The member that has the partition; None if no member has it."""
    host: str | None = None
    """The address from which that member joined."""
    client_id: str | None = None
    """Its client id."""
    window: AckWindowLag | None = None
    """The ack window of a work queue; None if the commit has none."""
    error: AsyncGroupError | None = None
    """Why the lag is not known: of the committed offset, or of the partition's leader."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group: of all partitions with a commit of the group, or with an owner in it."""

    group: GroupDescription
    """The group with its members."""
    partitions: Mapping[TopicPartition, PartitionLag]
    """Each partition, sorted."""

    @property
    def lag_sum(self) -> int:
        """The sum of the lags that are known."""
        return sum(each.lag or 0 for each in self.partitions.values())

    @property
    def lag_max(self) -> int:
        """The largest lag of a partition; 0 if none is known."""
        return max((each.lag or 0 for each in self.partitions.values()), default=0)

    @property
    def lost_sum(self) -> int:
        """The sum of the losses that are known."""
        return sum(each.lost or 0 for each in self.partitions.values())

    @property
    def without_commit(self) -> tuple[TopicPartition, ...]:
        """The partitions that a member has, and of which the group has no commit."""
        return tuple(
            tp for tp, each in self.partitions.items() if each.committed_offset is None and each.error is None
        )

    @property
    def errors(self) -> Mapping[TopicPartition, AsyncGroupError]:
        """The errors of the partitions whose lag is not known."""
        return {tp: each.error for tp, each in self.partitions.items() if each.error is not None}


class PartitionFacts(NamedTuple):
    """What the brokers say of a partition."""

    commit: GroupOffset | None = None
    log_start: int | None = None
    log_end: int | None = None
    topic_id: UUID = NO_UUID
    """The id of the topic; nil if unknown."""
    error: AsyncGroupError | None = None
    """Why the commit, the log's start or its end is not known."""


def group_lag(group: GroupDescription, facts: Mapping[TopicPartition, PartitionFacts]) -> GroupLag:
    """Return the lag of a group from what is known of each of its partitions."""
    owners = {tp: member for member in group.members for tp in member.assignment}
    return GroupLag(group, {tp: partition_lag(tp, facts[tp], owners.get(tp)) for tp in sorted(facts)})


def partition_lag(
    tp: TopicPartition, facts: PartitionFacts, owner: MemberDescription | None = None
) -> PartitionLag:
    """Return the lag of a partition; `owner` is the member that has it."""
    commit, start, end = facts.commit, facts.log_start, facts.log_end
    counted = _NOTHING
    if start is not None and end is not None:
        end = max(start, end)  # records may be deleted between the two requests
        if commit is not None and facts.error is None:
            counted = _count(tp, commit, start, end, facts.topic_id)
    return PartitionLag(
        committed_offset=None if commit is None else commit.offset,
        leader_epoch=None if commit is None or commit.leader_epoch < 0 else commit.leader_epoch,
        log_start=start,
        log_end=end,
        lag=counted.lag,
        lost=counted.lost,
        is_beyond_log_end=counted.is_beyond_log_end,
        is_of_deleted_topic=counted.is_of_deleted_topic,
        member_id=None if owner is None else owner.member_id,
        host=None if owner is None else owner.host,
        client_id=None if owner is None else owner.client_id,
        window=counted.window,
        error=facts.error,
    )


class _Counted(NamedTuple):
    """What is left to read, and what can no longer be read."""

    lag: int | None = None
    lost: int | None = None
    is_beyond_log_end: bool = False
    is_of_deleted_topic: bool = False
    window: AckWindowLag | None = None


_NOTHING = _Counted()


def _count(tp: TopicPartition, commit: GroupOffset, start: int, end: int, topic_id: UUID) -> _Counted:
    metadata = decode_metadata(tp, commit.offset, commit.metadata)
    if NO_UUID not in (metadata.topic_id, topic_id) and metadata.topic_id != topic_id:
        # members begin at the start of the new log
        return _Counted(end - start, 0, is_of_deleted_topic=True)
    window = _window(metadata, commit.offset)
    acked = AckWindow(commit.offset) if window is None else window
    position = max(commit.offset, start)  # after the end only if the commit is
    return _Counted(
        lag=_unacked(acked, position, end),
        lost=_unacked(acked, commit.offset, start),
        is_beyond_log_end=commit.offset > end,
        window=None if window is None else _window_lag(window, position, end),
    )


def _window(metadata: CommitMetadata, base: int) -> AckWindow | None:
    """Return the ack window of a commit; None without one, and if it cannot be decoded: a work queue ignores it then."""
    if not metadata.window:
        return None
    try:
        return decode_window(metadata.window, base)
    except ValueError:
        return None


def _window_lag(window: AckWindow, position: int, end: int) -> AckWindowLag:
    window_end = max(position, min(window.end, end))
    return AckWindowLag(
        acked_above=_acked(window, position, end),
        open=_unacked(window, position, window_end),
        failed=sum(position <= offset < end for offset in window.attempts.keys() - window.unfinished),
        end=window.end,
        beyond=max(0, end - window_end),
    )


def _unacked(window: AckWindow, start: int, end: int) -> int:
    """Return how many offsets of a range are not acknowledged; the range may be empty."""
    return max(0, end - start) - _acked(window, start, end)


def _acked(window: AckWindow, start: int, end: int) -> int:
    """Return how many offsets of a range, which begins at the window's base or above, are acknowledged."""
    return sum(max(0, min(last, end) - max(first, start)) for first, last in window.runs)

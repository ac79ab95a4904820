"""Detect log truncation with leader epochs (KIP-320): OffsetForLeaderEpoch requests and their evaluation. Pure.

When a replica that lacks records becomes the leader, the offsets that were read belong to other records. So before
anything is fetched from a new leader, it is asked for the end offset of the last fetched epoch in its log
(`OffsetsForLeaderEpochUtils.java`, `SubscriptionState.maybeCompleteValidation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from asyncgroup.consumer.fetch_plan import FetchAction
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ErrorCode, LogTruncatedError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "EpochEndOffset",
    "PositionCheck",
    "build_epoch_request",
    "complete_validation",
    "epoch_end_offsets",
    "validation_action",
]

REPLICA_ID_VERSION: Final = 3
"""The first OffsetForLeaderEpoch version in which consumers send replica id -1."""


class PositionCheck(NamedTuple):
    """A position to be validated."""

    consumer: PartitionConsumer
    version: int
    """The consumer's version at the time of the request; a seek raises it, which makes the response void."""
    fetched_epoch: int
    """The leader epoch of the record before the fetch offset."""
    leader_epoch: int
    """The current leader's epoch."""


class EpochEndOffset(NamedTuple):
    """The end offset of an epoch in the leader's log; -1 for both if the leader does not know."""

    epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        """Whether the leader knows the epoch's end."""
        return self.epoch >= 0 and self.end_offset >= 0


def build_epoch_request(checks: Iterable[PositionCheck], version: int) -> m.OffsetForLeaderEpochRequest:
    """Build one request for all partitions of a leader."""
    asked = m.OffsetForLeaderEpochRequest
    topics: dict[str, m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
    for check in checks:
        name, number = check.consumer.tp
        topic = topics.setdefault(name, asked.OffsetForLeaderTopic(topic=name))
        topic.partitions.append(
            asked.OffsetForLeaderPartition(number, check.leader_epoch, check.fetched_epoch)
        )
    return asked(replica_id=-1 if version >= REPLICA_ID_VERSION else -2, topics=list(topics.values()))


def epoch_end_offsets(
    response: m.OffsetForLeaderEpochResponse,
) -> dict[TopicPartition, tuple[int, EpochEndOffset]]:
    """Return each partition's error code and end offset."""
    return {
        TopicPartition(topic.topic, part.partition): (
            part.error_code,
            EpochEndOffset(part.leader_epoch, part.end_offset),
        )
        for topic in response.topics
        for part in topic.partitions
    }


_ACTIONS: Final[Mapping[int, FetchAction]] = {
    ErrorCode.NONE: FetchAction.DELIVER,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: FetchAction.FAIL,
}


def validation_action(code: int) -> FetchAction:
    """Return the action for a partition's error code; all but authorization errors are retried, as in Java."""
    return _ACTIONS.get(code, FetchAction.REDISPATCH)


def complete_validation(consumer: PartitionConsumer, end: EpochEndOffset) -> LogTruncatedError | None:
    """Compare a position with the leader's log; return an error if the reader has seen records that the log lost.

    If only buffered records were lost, they are dropped and fetched again, and None is returned. `on_restart` is called
    nevertheless: a reader that has sought back may have marks beyond the truncation.
    """
    position = consumer.position
    if not end.is_known:
        return LogTruncatedError(consumer.tp, position, None)
    if end.end_offset < position:
        return LogTruncatedError(consumer.tp, position, end.end_offset)
    if end.end_offset < consumer.fetch_offset or end.epoch != consumer.fetched_epoch:
        consumer.rewind(end.epoch)
        consumer.on_restart(end.end_offset, m.NO_UUID)
    return None

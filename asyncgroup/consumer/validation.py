"""Whether the log still holds what was read from it: leader epochs instead of trust (KIP-320).

When a replica that lacks records becomes the leader, offsets that were read come to mean other records. So a new
leader is asked where the epoch of the last record read has ended in its log, before anything is fetched from it
(`OffsetsForLeaderEpochUtils.java`, `SubscriptionState.maybeCompleteValidation`). Pure.
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
"""The OffsetForLeaderEpoch version from which consumers say that they are none of the replicas."""


class PositionCheck(NamedTuple):
    """A position to be confirmed: the consumer, its version when asked, the epoch read, the leader's present one."""

    consumer: PartitionConsumer
    version: int
    fetched_epoch: int
    leader_epoch: int


class EpochEndOffset(NamedTuple):
    """Where an epoch ended in the leader's log; -1 for both if it knows nothing of it."""

    epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        """Whether the leader could tell."""
        return self.epoch >= 0 and self.end_offset >= 0


def build_epoch_request(checks: Iterable[PositionCheck], version: int) -> m.OffsetForLeaderEpochRequest:
    """One request for all partitions of a leader."""
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
    """The error code and the answer for each partition."""
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
    """What a partition's error code asks for; all that may pass is tried anew, as in Java."""
    return _ACTIONS.get(code, FetchAction.REDISPATCH)


def complete_validation(consumer: PartitionConsumer, end: EpochEndOffset) -> LogTruncatedError | None:
    """The error for a reader that has seen records which the log lost; None if it has not.

    What is buffered but was not seen is dropped if it was lost, and fetched anew. Marks may stand behind that, though,
    if the reader has sought back.
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

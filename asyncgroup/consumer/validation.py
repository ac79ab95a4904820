"""Detect log truncation with leader epochs (KIP-320): OffsetForLeaderEpoch requests and their evaluation.

When a replica that lacks records becomes the leader, the offsets that were read belong to other records. So before
anything is fetched from a new leader, it is asked for the end offset of the last fetched epoch in its log
(`OffsetsForLeaderEpochUtils.java`, `SubscriptionState.maybeCompleteValidation`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.consumer.fetch_outcome import EpochEnd, EpochEndOffset, Fatal, FetchOutcome, Retriable
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import BrokerError, ErrorCode, LogTruncatedError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "PositionCheck",
    "Validation",
    "complete_validation",
    "send_epoch_request",
    "validation_outcome",
]

REPLICA_ID_VERSION: Final = 3
"""The first OffsetForLeaderEpoch version in which consumers send replica id -1."""


class PositionCheck(NamedTuple):
    """A position to be validated."""

    partition: TopicPartitionState
    version: int
    """The partition's version at the time of the request; a seek raises it, which makes the response void."""
    fetched_epoch: int
    """The leader epoch of the record before the fetch offset."""
    leader_epoch: int
    """The current leader's epoch."""

    def confirm(self) -> None:
        """Record that the leader has answered: with any result, this epoch need not be validated again."""
        source = self.partition.fetch_source
        source.validated_epoch = max(source.validated_epoch, self.leader_epoch)


Validation: TypeAlias = dict[TopicPartition, PositionCheck]
"""The positions that one OffsetForLeaderEpoch request validates."""


async def send_epoch_request(
    cluster: ClusterClient, node_id: int, checks: Iterable[PositionCheck]
) -> dict[TopicPartition, tuple[int, EpochEndOffset]]:
    """Have a leader validate positions; return each partition's error code and end offset.

    Raises UnsupportedVersionError (brokers before KIP-320), TransportError, ProtocolError.
    """
    response = await cluster.network.request_versioned(
        node_id, m.OffsetForLeaderEpochRequest, lambda version: _epoch_request(checks, version)
    )
    return {
        TopicPartition(topic.topic, part.partition): (
            part.error_code,
            EpochEndOffset(part.leader_epoch, part.end_offset),
        )
        for topic in response.topics
        for part in topic.partitions
    }


def _epoch_request(checks: Iterable[PositionCheck], version: int) -> m.OffsetForLeaderEpochRequest:
    """Build one request for all partitions of a leader."""
    asked = m.OffsetForLeaderEpochRequest
    topics: dict[str, m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
    for check in checks:
        name, number = check.partition.tp
        topic = topics.setdefault(name, asked.OffsetForLeaderTopic(topic=name))
        topic.partitions.append(
            asked.OffsetForLeaderPartition(number, check.leader_epoch, check.fetched_epoch)
        )
    return asked(replica_id=-1 if version >= REPLICA_ID_VERSION else -2, topics=list(topics.values()))


def validation_outcome(
    tp: TopicPartition, code: int, end: EpochEndOffset | None, node_id: int
) -> FetchOutcome:
    """Return the outcome of a leader's answer; all but authorization errors are retried, as in Java."""
    if code == ErrorCode.NONE and end is not None:
        return EpochEnd(end)
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return Fatal(BrokerError(code, f"epoch of {tp} from node {node_id}"))
    return Retriable(BrokerError(code, f"leader epoch of {tp} from node {node_id}"))


def complete_validation(partition: TopicPartitionState, end: EpochEndOffset) -> LogTruncatedError | None:
    """Compare a position with the leader's log; return an error if the reader has seen records that the log lost.

    If only buffered records were lost, they are dropped and fetched again, and None is returned. `on_restart` is called
    nevertheless: a reader that has sought back may have marks beyond the truncation.
    """
    position = partition.position
    if not end.is_known:
        return LogTruncatedError(partition.tp, position, None)
    if end.end_offset < position:
        return LogTruncatedError(partition.tp, position, end.end_offset)
    if end.end_offset < partition.fetch_offset or end.epoch != partition.fetched_epoch:
        partition.rewind(end.epoch)
        partition.listener.on_restart(end.end_offset, m.NO_UUID)
    return None

"""Pure functions of fetching: select partitions, build the Fetch request, map partition error codes to actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_session import TOPIC_ID_VERSION, PartitionData, SessionRequest
from asyncgroup.consumer.list_offsets import ISOLATION_LEVELS
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "FETCH_ACTIONS",
    "FetchAction",
    "FetchPlan",
    "PlannedFetch",
    "build_fetch_request",
    "make_plan",
    "response_limit",
]

SHORT_WAIT: Final = 0.02
"""Seconds of `max_wait` for a fetch that had to leave out a partition, so that the next fetch can have it soon."""

RESPONSE_SHARE: Final = 8
"""A response may have at most 1/8 of `buffer_bytes`: while its partitions are copied out of it, it takes memory beyond the
budget. The first batch of a response may exceed the limit (KIP-74)."""

RACK_ID_VERSION: Final = 11
"""The first Fetch version with a rack id (KIP-392)."""

LAST_FETCHED_EPOCH_VERSION: Final = 12
"""The first Fetch version with the last fetched epoch, by which brokers detect diverging logs (KIP-595)."""


class FetchAction(Enum):
    """What to do about a partition's error code in a Fetch response."""

    DELIVER = "no error: hand the records over"
    RESET = "the offset is not in the log: apply out_of_range_reset"
    REDISPATCH = "the leader has moved or is moving: refresh the metadata and fetch from the new leader"
    FAIL = "raise the error to the reader"


FETCH_ACTIONS: Final[Mapping[int, FetchAction]] = {
    ErrorCode.NONE: FetchAction.DELIVER,
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchAction.RESET,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchAction.REDISPATCH,
    ErrorCode.UNKNOWN_TOPIC_ID: FetchAction.REDISPATCH,
    ErrorCode.INCONSISTENT_TOPIC_ID: FetchAction.REDISPATCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchAction.REDISPATCH,
    ErrorCode.LEADER_NOT_AVAILABLE: FetchAction.REDISPATCH,
    ErrorCode.REPLICA_NOT_AVAILABLE: FetchAction.REDISPATCH,
    ErrorCode.FENCED_LEADER_EPOCH: FetchAction.REDISPATCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchAction.REDISPATCH,
    ErrorCode.OFFSET_NOT_AVAILABLE: FetchAction.REDISPATCH,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchAction.REDISPATCH,
    ErrorCode.UNKNOWN_SERVER_ERROR: FetchAction.REDISPATCH,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: FetchAction.FAIL,
    ErrorCode.CORRUPT_MESSAGE: FetchAction.FAIL,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: FetchAction.FAIL,
}
"""As `FetchCollector.handleInitializeErrors` in Kafka. Of the codes not listed, retriable ones are REDISPATCH and others
FAIL."""


class PlannedFetch(NamedTuple):
    """One partition of a planned or in-flight fetch."""

    consumer: PartitionConsumer
    version: int
    """The consumer's version at the time of the plan; a seek raises it, which makes the response void."""
    wanted: PartitionData


class FetchPlan(NamedTuple):
    """A fetch to send."""

    partitions: dict[TopicPartition, PlannedFetch]
    """In order of precedence: brokers fill the response in this order (KIP-74)."""
    max_wait: float
    """Seconds that the broker may wait for `fetch_min_bytes`."""

    @property
    def wanted(self) -> dict[TopicPartition, PartitionData]:
        """The part of the plan that goes into the request."""
        return {tp: planned.wanted for tp, planned in self.partitions.items()}


def make_plan(
    consumers: Iterable[PartitionConsumer],
    epochs: Mapping[TopicPartition, int],
    fetch_size: int,
    max_wait: float,
) -> FetchPlan:
    """Plan a fetch of all fetchable partitions in the given order, `fetch_size` bytes of each.

    `epochs` are the leaders' epochs. If a partition is left out because its buffer is full, `max_wait` is at most
    `SHORT_WAIT`, so that it does not wait for a long poll of the others once its reader makes room.
    """
    partitions = {}
    left_out = False
    for consumer in consumers:
        if consumer.is_fetchable:
            tp = consumer.tp
            epoch = epochs.get(tp, -1)
            wanted = PartitionData(
                consumer.fetch_offset,
                epoch,
                fetch_size,
                consumer.fetched_epoch,
                consumer.fetch_position.topic_id,
            )
            partitions[tp] = PlannedFetch(consumer, consumer.version, wanted)
        elif consumer.is_buffer_full:
            left_out = True
    return FetchPlan(partitions, min(max_wait, SHORT_WAIT) if left_out else max_wait)


def response_limit(config: ConsumerConfig) -> int:
    """Return the largest number of bytes that a response with several batches may have."""
    return max(1, min(config.fetch_max_bytes, config.buffer_bytes // RESPONSE_SHARE))


def build_fetch_request(
    sent: SessionRequest, config: ConsumerConfig, max_wait: float, version: int, *, send_rack: bool = True
) -> m.FetchRequest:
    """Build the request in a version; from 13 on every partition must have its topic's id.

    A leader that gets no rack id returns records itself instead of advising a preferred read replica (KIP-392).
    """
    return m.FetchRequest(
        max_wait_ms=int(max_wait * 1000),
        min_bytes=config.fetch_min_bytes,
        max_bytes=response_limit(config),
        isolation_level=ISOLATION_LEVELS[config.isolation_level],
        session_id=sent.session_id,
        session_epoch=sent.epoch,
        topics=_topics(sent.wanted, version),
        forgotten_topics_data=_forgotten(sent.forgotten, by_id=version >= TOPIC_ID_VERSION),
        rack_id=config.rack_id if send_rack and version >= RACK_ID_VERSION else "",
    )


def _topics(wanted: Mapping[TopicPartition, PartitionData], version: int) -> list[m.FetchRequest.FetchTopic]:
    fetch = m.FetchRequest
    by_id = version >= TOPIC_ID_VERSION
    has_epoch = version >= LAST_FETCHED_EPOCH_VERSION
    topics: dict[str, m.FetchRequest.FetchTopic] = {}
    for tp, data in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None:
            named = None if by_id else fetch.FetchTopic(topic=tp.topic)
            topic = topics[tp.topic] = named or fetch.FetchTopic(topic_id=data.topic_id)
        topic.partitions.append(
            fetch.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=data.leader_epoch,
                fetch_offset=data.offset,
                last_fetched_epoch=data.fetched_epoch if has_epoch else -1,
                partition_max_bytes=data.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(
    partitions: Iterable[tuple[TopicPartition, UUID]], *, by_id: bool
) -> list[m.FetchRequest.ForgottenTopic]:
    topics: dict[str | UUID, m.FetchRequest.ForgottenTopic] = {}
    for tp, topic_id in partitions:
        key = topic_id if by_id else tp.topic
        if key not in topics:
            named = {"topic_id": topic_id} if by_id else {"topic": tp.topic}
            topics[key] = m.FetchRequest.ForgottenTopic(**named)
        topics[key].partitions.append(tp.partition)
    return list(topics.values())

"""The pure part of fetching: which partitions to ask for, the request, and what each error code means."""

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
"""Seconds that a broker may park a fetch while a wanted partition had to be left out of it."""

RESPONSE_SHARE: Final = 8
"""No answer is larger than this part of `buffer_bytes`: while its partitions are copied out of it, it is in memory beside
them, and so beyond the budget. A first batch comes whole all the same (KIP-74)."""

RACK_ID_VERSION: Final = 11
"""The Fetch version from which a reader may say where it stands (KIP-392)."""

LAST_FETCHED_EPOCH_VERSION: Final = 12
"""The Fetch version from which a broker finds out by itself that the logs differ (KIP-595)."""


class FetchAction(Enum):
    """What a partition's error code in a Fetch response asks for."""

    DELIVER = "deliver"
    RESET = "the offset is not in the log: apply out_of_range_reset"
    REDISPATCH = "the leader moved or is moving: refresh metadata and ask the new one"
    FAIL = "raise to the reader"


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
"""Codes and actions of `FetchCollector.handleInitializeErrors` in Kafka; any other retriable code is redispatched."""


class PlannedFetch(NamedTuple):
    """One partition of a fetch: the consumer, its version when asked (a seek raises it), and what is asked for."""

    consumer: PartitionConsumer
    version: int
    wanted: PartitionData


class FetchPlan(NamedTuple):
    """A fetch to send: partitions in order of precedence (brokers fill the answer in this order, KIP-74)."""

    partitions: dict[TopicPartition, PlannedFetch]
    max_wait: float

    @property
    def wanted(self) -> dict[TopicPartition, PartitionData]:
        """What is asked for, without who asks."""
        return {tp: ask.wanted for tp, ask in self.partitions.items()}


def make_plan(
    consumers: Iterable[PartitionConsumer], epochs: Mapping[TopicPartition, int], ask: int, max_wait: float
) -> FetchPlan:
    """The partitions that want more, in the given order.

    If one had to be left out because its buffer is full, the broker parks the fetch for a moment only.
    """
    partitions = {}
    left_out = False
    for consumer in consumers:
        if consumer.is_fetchable:
            tp = consumer.tp
            epoch = epochs.get(tp, -1)
            wanted = PartitionData(
                consumer.fetch_offset, epoch, ask, consumer.fetched_epoch, consumer.fetch_position.topic_id
            )
            partitions[tp] = PlannedFetch(consumer, consumer.version, wanted)
        elif consumer.is_buffer_full:
            left_out = True
    return FetchPlan(partitions, min(max_wait, SHORT_WAIT) if left_out else max_wait)


def response_limit(config: ConsumerConfig) -> int:
    """Bytes that an answer with several batches may have."""
    return max(1, min(config.fetch_max_bytes, config.buffer_bytes // RESPONSE_SHARE))


def build_fetch_request(
    sent: SessionRequest, config: ConsumerConfig, max_wait: float, version: int, *, send_rack: bool = True
) -> m.FetchRequest:
    """The request in a version; from 13 on every partition must carry its topic's id.

    A leader that is not told the rack returns the records itself instead of advising a follower (KIP-392).
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
    fetch, by_id, says_epoch = (
        m.FetchRequest,
        version >= TOPIC_ID_VERSION,
        version >= LAST_FETCHED_EPOCH_VERSION,
    )
    topics: dict[str, m.FetchRequest.FetchTopic] = {}
    for tp, ask in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None:
            named = None if by_id else fetch.FetchTopic(topic=tp.topic)
            topic = topics[tp.topic] = named or fetch.FetchTopic(topic_id=ask.topic_id)
        topic.partitions.append(
            fetch.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.offset,
                last_fetched_epoch=ask.fetched_epoch if says_epoch else -1,
                partition_max_bytes=ask.max_bytes,
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

"""The pure part of fetching: which partitions to ask for, the request, and what each error code means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["ACTIONS", "Action", "Ask", "FetchPlan", "build_request", "make_plan"]

TOPIC_IDS: Final = 13
"""The Fetch version from which topics go by id (KIP-516)."""

SHORT_WAIT: Final = 0.02
"""Seconds that a broker may park a fetch while a wanted partition had to be left out of it."""


class Action(Enum):
    """What a partition's error code in a Fetch response asks for."""

    DELIVER = "deliver"
    RESET = "the offset is not in the log: apply auto_offset_reset"
    REDISPATCH = "the leader moved or is moving: refresh metadata and ask the new one"
    FAIL = "raise to the reader"


ACTIONS: Final[Mapping[int, Action]] = {
    ErrorCode.NONE: Action.DELIVER,
    ErrorCode.OFFSET_OUT_OF_RANGE: Action.RESET,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Action.REDISPATCH,
    ErrorCode.UNKNOWN_TOPIC_ID: Action.REDISPATCH,
    ErrorCode.INCONSISTENT_TOPIC_ID: Action.REDISPATCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Action.REDISPATCH,
    ErrorCode.LEADER_NOT_AVAILABLE: Action.REDISPATCH,
    ErrorCode.REPLICA_NOT_AVAILABLE: Action.REDISPATCH,
    ErrorCode.FENCED_LEADER_EPOCH: Action.REDISPATCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH: Action.REDISPATCH,
    ErrorCode.OFFSET_NOT_AVAILABLE: Action.REDISPATCH,
    ErrorCode.KAFKA_STORAGE_ERROR: Action.REDISPATCH,
    ErrorCode.UNKNOWN_SERVER_ERROR: Action.REDISPATCH,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Action.FAIL,
    ErrorCode.CORRUPT_MESSAGE: Action.FAIL,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: Action.FAIL,
}
"""Codes and actions of `FetchCollector.handleInitializeErrors` in Kafka; any other retriable code is redispatched."""


class Ask(NamedTuple):
    """One partition of a fetch: the consumer, its version when asked (a seek raises it), offset, epoch, bytes."""

    consumer: PartitionConsumer
    version: int
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchPlan(NamedTuple):
    """A fetch to send: partitions in order of precedence (brokers fill the answer in this order, KIP-74)."""

    asks: dict[TopicPartition, Ask]
    max_wait: float


def make_plan(
    consumers: Iterable[PartitionConsumer], epochs: Mapping[TopicPartition, int], ask: int, max_wait: float
) -> FetchPlan:
    """The partitions that want more, in the given order.

    If one had to be left out because its buffer is full, the broker parks the fetch for a moment only.
    """
    asks = {}
    left_out = False
    for consumer in consumers:
        if consumer.wants_more:
            tp = consumer.tp
            asks[tp] = Ask(consumer, consumer.version, consumer.fetch_offset, epochs.get(tp, -1), ask)
        elif consumer.is_left_out:
            left_out = True
    return FetchPlan(asks, min(max_wait, SHORT_WAIT) if left_out else max_wait)


def build_request(
    plan: FetchPlan, config: ConsumerConfig, topic_ids: Mapping[str, UUID], version: int
) -> m.FetchRequest:
    """The request of a plan in a version; without a fetch session (id 0, epoch -1: KIP-227's full fetch)."""
    fetch = m.FetchRequest
    topics: dict[str, m.FetchRequest.FetchTopic] = {}
    for tp, ask in plan.asks.items():
        topic = topics.get(tp.topic)
        if topic is None:
            named = fetch.FetchTopic(topic=tp.topic) if version < TOPIC_IDS else None
            topic = topics[tp.topic] = named or fetch.FetchTopic(topic_id=topic_ids[tp.topic])
        topic.partitions.append(
            fetch.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.offset,
                partition_max_bytes=ask.max_bytes,
            )
        )
    return fetch(
        max_wait_ms=int(plan.max_wait * 1000),
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        topics=list(topics.values()),
    )

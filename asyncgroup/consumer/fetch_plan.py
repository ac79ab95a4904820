"""Plans of fetches: select partitions, and build the Fetch request. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_session import TOPIC_ID_VERSION, PartitionData, SessionRequest
from asyncgroup.consumer.fetch_state import NO_NODE
from asyncgroup.consumer.list_offsets import ISOLATION_LEVELS
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "EXPRESS_LANE",
    "MAIN_LANE",
    "NO_LIMIT",
    "SHORT_WAIT",
    "FetchPlan",
    "PlannedFetch",
    "build_fetch_request",
    "lanes_of",
    "make_plan",
    "response_limit",
]

MAIN_LANE: Final = "fetch"
"""The purpose of the connections for long polls."""

EXPRESS_LANE: Final = "fetch-express"
"""The purpose of the connections for short fetches during a long poll."""

SHORT_WAIT: Final = 0.02
"""Seconds of `max_wait` for a fetch that had to leave out a partition, so that the next fetch can have it soon."""

NO_LIMIT: Final = float("inf")
"""`request_bytes` of a client whose partitions are all asked for at once."""

RESPONSE_SHARE: Final = 8
"""A response may have at most 1/8 of `buffer_bytes`: while its partitions are copied out of it, it takes memory beyond the
budget. The first batch of a response may exceed the limit (KIP-74)."""

RACK_ID_VERSION: Final = 11
"""The first Fetch version with a rack id (KIP-392)."""

LAST_FETCHED_EPOCH_VERSION: Final = 12
"""The first Fetch version with the last fetched epoch, by which brokers detect diverging logs (KIP-595)."""


class PlannedFetch(NamedTuple):
    """One partition of a planned or in-flight fetch."""

    partition: TopicPartitionState
    version: int
    """The partition's version at the time of the plan; a seek raises it, which makes the response void."""
    wanted: PartitionData


class FetchPlan(NamedTuple):
    """A fetch to send."""

    partitions: dict[TopicPartition, PlannedFetch]
    """In order of precedence: brokers fill the response in this order (KIP-74)."""
    max_wait: float
    """Seconds that the broker may wait for `fetch_min_bytes`."""
    node_id: int = NO_NODE
    lane: str = MAIN_LANE
    send_rack: bool = False
    """Whether the request has the client's rack id (KIP-392)."""

    @property
    def wanted(self) -> dict[TopicPartition, PartitionData]:
        """The part of the plan that goes into the request."""
        return {tp: planned.wanted for tp, planned in self.partitions.items()}

    @property
    def highest_version(self) -> int | None:
        """The highest usable version of Fetch, None for no limit: newer ones need the id of every topic."""
        all_known = all(planned.wanted.topic_id != m.NO_UUID for planned in self.partitions.values())
        return None if all_known else TOPIC_ID_VERSION - 1


def lanes_of(lane_suffix: str) -> set[str]:
    """Return the fetch lanes of one client."""
    return {MAIN_LANE + lane_suffix, EXPRESS_LANE + lane_suffix}


def make_plan(
    partitions: Iterable[TopicPartitionState],
    epochs: Mapping[TopicPartition, int],
    max_wait: float,
    *,
    request_bytes: float = NO_LIMIT,
) -> FetchPlan:
    """Plan a fetch of the fetchable partitions in the given order, as many bytes of each as its budget says.

    `epochs` are the leaders' epochs. Partitions are added until they ask for `request_bytes` together. If one is left out
    because its buffer is full, `max_wait` is at most `SHORT_WAIT`, so that it does not wait for a long poll of the others
    once its reader makes room.
    """
    planned = {}
    left_out = False
    bytes_left = request_bytes
    for partition in partitions:
        if bytes_left <= 0:
            break
        if partition.is_fetchable:
            fetch_size = partition.budget.fetch_size
            bytes_left -= fetch_size
            tp = partition.tp
            epoch = epochs.get(tp, -1)
            wanted = PartitionData(
                partition.fetch_offset,
                epoch,
                fetch_size,
                partition.fetched_epoch,
                partition.fetch_position.topic_id,
            )
            planned[tp] = PlannedFetch(partition, partition.version, wanted)
        elif partition.is_buffer_full:
            left_out = True
    return FetchPlan(planned, min(max_wait, SHORT_WAIT) if left_out else max_wait)


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

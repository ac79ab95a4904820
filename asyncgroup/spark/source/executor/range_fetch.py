"""Plan Fetch requests for ranges of offsets, and match responses to ranges. Pure functions, no I/O.

The requests do not use fetch sessions (KIP-227), as a range is requested only a few times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import FetchOutcome, partition_outcome, response_partitions
from asyncgroup.consumer.fetch_plan import build_fetch_request
from asyncgroup.consumer.fetch_session import TOPIC_ID_VERSION, PartitionData, sessionless_request
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.executor.range_progress import RangeProgress
from asyncgroup.wire import messages as m

__all__ = ["Asked", "RangeFetch", "fetching_config", "plan_fetches"]

SHARE: Final = 2
"""At most 1/SHARE of `max_response_size` is requested, as a response above that size closes the connection."""

BUFFER_SHARE: Final = 8
"""`build_fetch_request` allows a response of 1/BUFFER_SHARE of `buffer_bytes`."""


class Asked(NamedTuple):
    """A range, and its part of one Fetch request."""

    progress: RangeProgress
    wanted: PartitionData


class RangeFetch(NamedTuple):
    """A Fetch request: the node, and the requested ranges by partition."""

    node_id: int
    asked: dict[TopicPartition, Asked]

    @property
    def highest(self) -> int | None:
        """The highest usable API version, None for no limit: newer versions need the id of every topic."""
        known = all(one.wanted.topic_id != m.NO_UUID for one in self.asked.values())
        return None if known else TOPIC_ID_VERSION - 1

    def request(self, config: ConsumerConfig, version: int) -> m.FetchRequest:
        """Return the request for this API version."""
        wanted = {tp: one.wanted for tp, one in self.asked.items()}
        return build_fetch_request(sessionless_request(wanted), config, config.fetch_max_wait, version)

    def outcomes(self, response: m.FetchResponse) -> Iterator[tuple[Asked, FetchOutcome]]:
        """Yield each requested range with its outcome; data that was not requested is ignored."""
        names = {one.wanted.topic_id: tp.topic for tp, one in self.asked.items()}
        for tp, data in response_partitions(response, names):
            if (asked := self.asked.get(tp)) is not None:
                yield asked, partition_outcome(tp, data, response, self.node_id, zero_copy=True)


def fetching_config(config: ConsumerConfig, fetch_bytes: int) -> ConsumerConfig:
    """Return the configuration for fetching ranges.

    The records of a range exist already, so brokers need not wait for more (`fetch.min.bytes`) before they respond.
    Metadata requests must not create deleted topics again.
    """
    max_bytes = max(1, min(fetch_bytes, config.fetch_max_bytes, config.max_response_size // SHARE))
    return replace(
        config,
        fetch_min_bytes=1,
        fetch_max_bytes=max_bytes,
        buffer_bytes=max_bytes * BUFFER_SHARE,
        allow_auto_topic_creation=False,
    )


def plan_fetches(
    progresses: Iterable[RangeProgress],
    view: ClusterView,
    busy: Mapping[int, object],
    most: int,
    now: float,
) -> list[RangeFetch]:
    """Return a Fetch request for each node not in `busy`, for up to about `most` bytes, beginning with earlier ranges.

    Small ranges share a request, so that thousands of them do not need thousands of requests.
    """
    plans: dict[int, RangeFetch] = {}
    bytes_left: dict[int, int] = {}
    seen: set[TopicPartition] = set()
    for progress in progresses:
        tp = progress.tp
        if tp in seen:
            continue  # the ranges of a partition are read in order, and a request can contain a partition only once
        seen.add(tp)
        if not progress.wants_more or progress.not_before > now:
            continue
        info = view.partition(*tp)
        if info is None or progress.is_other(view.topics[tp.topic].topic_id):
            continue
        leader = view.leader(tp)
        node_id = progress.fetch_position.select_read_replica(leader, now, info)
        if leader < 0 or node_id in busy or bytes_left.get(node_id, most) <= 0:
            continue
        plan = plans.setdefault(node_id, RangeFetch(node_id, {}))
        size = progress.ask_bytes(most)
        topic_id = view.topics[tp.topic].topic_id
        buffer = progress.buffer
        wanted = PartitionData(buffer.fetch_offset, info.leader_epoch, size, buffer.fetched_epoch, topic_id)
        plan.asked[tp] = Asked(progress, wanted)
        bytes_left[node_id] = bytes_left.get(node_id, most) - size
    return list(plans.values())

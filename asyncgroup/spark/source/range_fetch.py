"""Plan Fetch requests for ranges of offsets, and match responses to ranges. Pure.

The requests do not use fetch sessions (KIP-227), as a range is requested only a few times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_plan import build_fetch_request
from asyncgroup.consumer.fetch_session import TOPIC_ID_VERSION, PartitionData, sessionless_request
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.range_progress import RangeProgress
from asyncgroup.wire import messages as m

__all__ = ["Asked", "RangeFetch", "fetching_config", "plan_fetches"]

SHARE: Final = 2
"""At most 1/SHARE of `max_response_size` is requested, as a larger response would close the connection."""

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
        """The highest usable version: newer versions name topics by id, so all ids must be known."""
        known = all(one.wanted.topic_id != m.NO_UUID for one in self.asked.values())
        return None if known else TOPIC_ID_VERSION - 1

    def request(self, config: ConsumerConfig, version: int) -> m.FetchRequest:
        """Return the request in a version."""
        wanted = {tp: one.wanted for tp, one in self.asked.items()}
        return build_fetch_request(sessionless_request(wanted), config, config.fetch_max_wait, version)

    def parts(self, response: m.FetchResponse) -> Iterator[tuple[Asked, Any]]:
        """Yield each requested range with its part of the response; parts that were not requested are ignored."""
        names = {one.wanted.topic_id: tp.topic for tp, one in self.asked.items()}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                asked = self.asked.get(TopicPartition(name, data.partition_index))
                if asked is not None:
                    yield asked, data


def fetching_config(config: ConsumerConfig, fetch_bytes: int) -> ConsumerConfig:
    """Return the configuration for fetching ranges.

    The records of a range exist already, so brokers need not wait for more before they respond. Requests must not recreate
    deleted topics.
    """
    most = max(1, min(fetch_bytes, config.fetch_max_bytes, config.max_response_size // SHARE))
    return replace(
        config,
        fetch_min_bytes=1,
        fetch_max_bytes=most,
        buffer_bytes=most * BUFFER_SHARE,
        allow_auto_topic_creation=False,
    )


def plan_fetches(
    progresses: Iterable[RangeProgress],
    view: ClusterView,
    busy: Mapping[int, object],
    most: int,
    now: float,
) -> list[RangeFetch]:
    """Return a Fetch request for each node that is not busy, of about `most` bytes at most; earlier ranges go first.

    Small ranges share a request, so that thousands of them do not need thousands of requests.
    """
    plans: dict[int, RangeFetch] = {}
    room: dict[int, int] = {}
    seen: set[TopicPartition] = set()
    for progress in progresses:
        tp = progress.tp
        if tp in seen:
            continue  # the ranges of a partition are read in order, and a request can name a partition only once
        seen.add(tp)
        if not progress.wants_more or progress.not_before > now:
            continue
        info = view.partition(*tp)
        if info is None or progress.is_other(view.topics[tp.topic].topic_id):
            continue
        leader = view.leader(tp)
        node_id = progress.fetch_position.select_read_replica(leader, now, info)
        if leader < 0 or node_id in busy or room.get(node_id, most) <= 0:
            continue
        plan = plans.setdefault(node_id, RangeFetch(node_id, {}))
        size = progress.ask_bytes(most)
        topic_id = view.topics[tp.topic].topic_id
        buffer = progress.buffer
        wanted = PartitionData(buffer.fetch_offset, info.leader_epoch, size, buffer.fetched_epoch, topic_id)
        plan.asked[tp] = Asked(progress, wanted)
        room[node_id] = room.get(node_id, most) - size
    return list(plans.values())

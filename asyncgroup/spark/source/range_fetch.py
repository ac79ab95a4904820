"""The Fetch requests for ranges of offsets: which ranges go into one, and what the answer's parts belong to. Pure.

They stand outside of fetch sessions (KIP-227): a range is asked for a few times only, and then never again.
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
"""A response of more than `max_response_size` would end its connection; at most this part of it is asked for."""

BUFFER_SHARE: Final = 8
"""What `build_fetch_request` allows an answer to take of `buffer_bytes`."""


class Asked(NamedTuple):
    """A range as one Fetch asks for it."""

    progress: RangeProgress
    wanted: PartitionData


class RangeFetch(NamedTuple):
    """One Fetch: the node, and what is asked of it, by partition."""

    node_id: int
    asked: dict[TopicPartition, Asked]

    @property
    def highest(self) -> int | None:
        """The highest version that can say it: topics go by id from some version on, where every id is known."""
        known = all(one.wanted.topic_id != m.NO_UUID for one in self.asked.values())
        return None if known else TOPIC_ID_VERSION - 1

    def request(self, config: ConsumerConfig, version: int) -> m.FetchRequest:
        """The request in a version."""
        wanted = {tp: one.wanted for tp, one in self.asked.items()}
        return build_fetch_request(sessionless_request(wanted), config, config.fetch_max_wait, version)

    def parts(self, response: m.FetchResponse) -> Iterator[tuple[Asked, Any]]:
        """What each partition was asked, with its part of the answer; a part that nobody asked for is left out."""
        names = {one.wanted.topic_id: tp.topic for tp, one in self.asked.items()}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                asked = self.asked.get(TopicPartition(name, data.partition_index))
                if asked is not None:
                    yield asked, data


def fetching_config(config: ConsumerConfig, fetch_bytes: int) -> ConsumerConfig:
    """The configuration to fetch ranges by.

    What a range holds is there already, so no broker needs to gather more before it answers, and a topic that is gone
    must not be made anew by asking for it.
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
    """A Fetch for each node that is not busy, of up to about `most` bytes; ranges earlier in order go first.

    Small ranges share one, so that thousands of them need not wait for thousands of answers.
    """
    plans: dict[int, RangeFetch] = {}
    room: dict[int, int] = {}
    seen: set[TopicPartition] = set()
    for progress in progresses:
        tp = progress.tp
        if tp in seen:
            continue  # a partition is read in order, range after range, and a request can name it once
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

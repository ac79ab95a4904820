"""How large records are, for `maxBytesPerTrigger`: the driver looks at a few batches of each log, and at their headers only."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_plan import build_request
from asyncgroup.consumer.fetch_session import TOPIC_IDS, Wanted, outside_sessions
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.limits import BytesPerOffset
from asyncgroup.wire import messages as m

__all__ = ["LogSampler", "batch_sizes"]

Offsets: TypeAlias = Mapping[TopicPartition, int]

_log = logging.getLogger("asyncgroup.spark")

SAMPLE_BYTES: Final = 64 * 1024
"""How much of a log is fetched for a look, about; of a larger batch its beginning, where the header is."""

SAMPLE_INTERVAL: Final = 10.0
"""How often a partition is looked at."""

_HEADER: Final = struct.Struct(">qiibIhi")
"""How a record batch begins (`DefaultRecordBatch`): offset, length, epoch, magic, checksum, attributes, last offset.

The last offset counts from the first. Older messages, of magic 0 and 1, have one offset each, and no such field."""

_UNCOUNTED: Final = 12
"""Bytes before the end of the length field, which the length does not count."""


class LogSampler:
    """Looks at the partitions of a query now and then."""

    def __init__(self) -> None:
        self._sampled_at: dict[TopicPartition, float] = {}

    async def sample(self, cluster: Cluster, start: Offsets, latest: Offsets, sizes: BytesPerOffset) -> None:
        """Tell `sizes` of partitions that have news and were not looked at for a while. What fails is left for later."""
        now = asyncio.get_running_loop().time()
        due = {
            tp: offset
            for tp, offset in start.items()
            if offset < latest.get(tp, offset)
            and now - self._sampled_at.get(tp, float("-inf")) >= SAMPLE_INTERVAL
        }
        self._sampled_at = {tp: at for tp, at in self._sampled_at.items() if tp in latest} | dict.fromkeys(
            due, now
        )
        sizes.retain(latest)
        by_leader: dict[int, dict[TopicPartition, Wanted]] = {}
        for tp, offset in due.items():
            topic, info = cluster.view.topics.get(tp.topic), cluster.view.partition(*tp)
            if topic is not None and info is not None and (leader := cluster.view.leader(tp)) >= 0:
                wanted = Wanted(offset, info.leader_epoch, SAMPLE_BYTES, topic_id=topic.topic_id)
                by_leader.setdefault(leader, {})[tp] = wanted
        await asyncio.gather(*(_fetch(cluster, node_id, part, sizes) for node_id, part in by_leader.items()))


async def _fetch(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, Wanted], sizes: BytesPerOffset
) -> None:
    known = all(one.topic_id != m.NO_UUID for one in wanted.values())
    config = ConsumerConfig(fetch_min_bytes=1)  # an answer is bounded, however many partitions there are
    try:
        response = await cluster.request_built(
            node_id,
            m.FetchRequest,
            lambda version: build_request(outside_sessions(wanted), config, 0.0, version),
            highest=None if known else TOPIC_IDS - 1,
        )
    except AsyncGroupError as error:
        _log.debug("sizes of records are not known: %s", error)
        return
    names = {one.topic_id: tp.topic for tp, one in wanted.items()}
    for topic in response.responses:
        for data in topic.partitions:
            tp = TopicPartition(topic.topic or names.get(topic.topic_id, ""), data.partition_index)
            if not data.error_code and data.records and tp in wanted:
                for size, offsets in batch_sizes(data.records):
                    sizes.observe(tp, size, offsets)


def batch_sizes(records: Any) -> Iterator[tuple[int, int]]:
    """Bytes and offsets of each record batch whose header is in `records`, which may end in the middle of one."""
    view = memoryview(records)
    at = 0
    while at + _HEADER.size <= len(view):
        _, length, _, magic, _, _, last = _HEADER.unpack_from(view, at)
        if length <= 0:
            return
        yield _UNCOUNTED + length, last + 1 if magic >= 2 else 1
        at += _UNCOUNTED + length

"""Limits of a batch's size: those of Spark's source (`KafkaMicroBatchStream`), and one in bytes.

The size of records is estimated by fetching a few record batches and reading their headers (`LogSampler`); the rest is pure.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_session import (
    TOPIC_ID_VERSION,
    PartitionData,
    build_fetch_request,
    sessionless_request,
)
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.options.settings import ReadSettings
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import batch_sizes

__all__ = ["BytesPerOffset", "LogSampler", "TriggerDelay", "TriggerLimits", "byte_limit", "rate_limit"]

_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

Offsets: TypeAlias = Mapping[TopicPartition, int]

_log = logging.getLogger("asyncgroup.spark")

SAMPLE_BYTES: Final = 64 * 1024
"""Approximate bytes of a log that are fetched at a time; the beginning of a larger batch is enough, as it has the header."""

SAMPLE_INTERVAL: Final = 10.0
"""Seconds between two samples of a partition."""

SAMPLE_TIMEOUT: Final = 2.0
"""Maximum seconds that a batch waits for samples; a partition whose leader is silent gets the mean size of the others."""


def rate_limit(
    limit: int, start: Offsets, end: Offsets, earliest_of_new: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Return the end offsets of a batch of about `limit` offsets, shared in proportion to what each partition has to read.

    `earliest_of_new` has the first offsets of partitions that are not in `start`. A partition with records gets at least
    one offset, and at most all up to `end`. A partition in neither of them, or whose offset has gone back, keeps its
    `end`; the planner reports it. The arithmetic is that of Spark's `rateLimit`, with doubles.
    """
    sizes = _sizes(start, end, earliest_of_new or {})
    total = float(sum(sizes.values()))
    # nothing to read: a share would divide by 0
    if total < 1:
        return dict(end)
    ends = dict(end)
    for tp, size in sizes.items():
        ends[tp] = _cut(end[tp], size, limit * (float(size) / total))
    return ends


def _sizes(start: Offsets, end: Offsets, earliest_of_new: Offsets) -> dict[TopicPartition, int]:
    """Return the number of offsets to read by partition; without partitions with none, or without a known start."""
    # `start` counts where both have the partition: it was read before
    begins = {**earliest_of_new, **start}
    sizes = {tp: offset - begins[tp] for tp, offset in end.items() if tp in begins}
    return {tp: size for tp, size in sizes.items() if size > 0}


def _cut(end: int, size: int, share: float) -> int:
    """Return the end of a partition's share: rounded down, but at least one offset if `share` > 0, and at most `size`."""
    # as Spark: a share of less than 1 becomes 1, or a small partition would never be read
    whole = math.ceil(share) if share < 1 else math.floor(min(share, float(_INT64_MAX)))
    return min(end, end - size + whole)


class TriggerDelay:
    """`minOffsetsPerTrigger` and `maxTriggerDelay`: delay a batch until it has enough offsets, for at most `max_delay` s.

    The first batch is never delayed.
    """

    def __init__(self, min_offsets: int, max_delay: float) -> None:
        self._min_offsets = min_offsets
        self._max_delay = max_delay
        self._last: float | None = None
        """When the last batch started, by the caller's clock."""

    def delays(self, latest: Offsets, start: Offsets, now: float) -> bool:
        """Return whether the batch is delayed; after False, `now` (seconds) is remembered as the start of a batch.

        As in Spark's `delayBatch`, the offsets of a partition that is not in `start` count from 0.
        """
        # the first batch begins at once, and an overdue one with what there is
        if self._last is not None and now - self._last < self._max_delay:
            available = float(sum(offset - start.get(tp, 0) for tp, offset in latest.items()))
            if available < self._min_offsets:
                return True
        self._last = now
        return False


class BytesPerOffset:
    """Estimates the log bytes per offset of each partition, as moving averages of observed record batches.

    Sizes are those of compressed record batches in the log and on the wire, which are known from the batch headers. The
    driver does not read records; so `LogSampler` fetches a few batches from time to time and calls `observe`.
    """

    WEIGHT: Final = 0.3
    """The weight of the newest observation in the average."""

    def __init__(self) -> None:
        self._means: dict[TopicPartition, float] = {}

    def observe(self, tp: TopicPartition, size: int, offsets: int) -> None:
        """Record that `offsets` offsets of a partition take `size` bytes."""
        if offsets <= 0 or size < 0:
            return
        seen = size / offsets
        # the first observation is the mean: no average with a guess
        mean = self._means.get(tp, seen)
        self._means[tp] = mean + self.WEIGHT * (seen - mean)

    def mean(self, tp: TopicPartition) -> float | None:
        """Return the mean bytes per offset; for an unknown partition the mean of the others, None if there are none."""
        if (mean := self._means.get(tp)) is not None:
            return mean
        return sum(self._means.values()) / len(self._means) if self._means else None

    def retain(self, partitions: Offsets) -> None:
        """Remove all other partitions."""
        self._means = {tp: mean for tp, mean in self._means.items() if tp in partitions}


def byte_limit(
    limit: int, start: Offsets, end: Offsets, earliest_of_new: Offsets | None, sizes: BytesPerOffset
) -> dict[TopicPartition, int]:
    """Return the end offsets of a batch of about `limit` log bytes, estimated with `sizes`; the same part of each partition.

    As in `rate_limit`, a partition with records gets at least one offset, and at most all up to `end`. If no sizes are
    known, each partition gets one offset.
    """
    offsets = _sizes(start, end, earliest_of_new or {})
    means = {tp: sizes.mean(tp) for tp in offsets}
    # an unknown size makes the total infinite, so that each partition gets one offset
    total = sum(size * (math.inf if (mean := means[tp]) is None else mean) for tp, size in offsets.items())
    if total <= limit:
        return dict(end)
    ends = dict(end)
    for tp, size in offsets.items():
        ends[tp] = _cut(end[tp], size, max(size * (limit / total), 1.0))
    return ends


class TriggerLimits:
    """All limits of a streaming query: Spark's minimum and maximum of offsets, and the maximum of bytes."""

    def __init__(self, settings: ReadSettings) -> None:
        self.sizes = BytesPerOffset()
        """Must be updated from the log if there is a limit in bytes."""
        self._max_offsets = settings.max_offsets_per_trigger
        self._max_bytes = settings.max_bytes_per_trigger
        min_offsets = settings.min_offsets_per_trigger
        self._delay = None if min_offsets is None else TriggerDelay(min_offsets, settings.max_trigger_delay)

    def end_offsets(
        self, start: Offsets, latest: Offsets, earliest_of_new: Offsets | None, now: float
    ) -> dict[TopicPartition, int]:
        """Return the end offsets of the batch that starts at `start`; `start` itself while the batch is delayed.

        `now` is the time in seconds, by the caller's clock.
        """
        if self._delay is not None and self._delay.delays(latest, start, now):
            return dict(start)
        ends = dict(latest)
        if self._max_offsets is not None:
            ends = rate_limit(self._max_offsets, start, latest, earliest_of_new)
        if self._max_bytes is not None:
            by_bytes = byte_limit(self._max_bytes, start, latest, earliest_of_new, self.sizes)
            # the stricter limit counts in each partition
            ends = {tp: min(offset, by_bytes[tp]) for tp, offset in ends.items()}
        return ends


# --- sampling ---------------------------------------------------------------------------------------------------------


class LogSampler:
    """Samples the partitions of a query periodically."""

    def __init__(self) -> None:
        self._sampled_at: dict[TopicPartition, float] = {}
        """The loop's time of each partition's last sample."""

    async def sample(
        self, cluster: ClusterClient, start: Offsets, latest: Offsets, sizes: BytesPerOffset
    ) -> None:
        """Update `sizes` for partitions that have new records and are due for a sample. Failures are only logged."""
        now = asyncio.get_running_loop().time()
        due = {
            tp: offset
            for tp, offset in start.items()
            if offset < latest.get(tp, offset)
            and now - self._sampled_at.get(tp, float("-inf")) >= SAMPLE_INTERVAL
        }
        # before the requests: a leader that does not answer is asked once in an interval
        self._sampled_at = {tp: at for tp, at in self._sampled_at.items() if tp in latest} | dict.fromkeys(
            due, now
        )
        sizes.retain(latest)
        by_leader: dict[int, dict[TopicPartition, PartitionData]] = {}
        for tp, offset in due.items():
            topic, info = cluster.view.topics.get(tp.topic), cluster.view.partition(*tp)
            if topic is not None and info is not None and (leader := cluster.view.leader(tp)) >= 0:
                wanted = PartitionData(offset, info.leader_epoch, SAMPLE_BYTES, topic_id=topic.topic_id)
                by_leader.setdefault(leader, {})[tp] = wanted
        samples = [
            start_task(_fetch(cluster, node_id, part, sizes), name=f"record sizes from node {node_id}")
            for node_id, part in by_leader.items()
        ]
        if not samples:
            return
        try:
            ended, _ = await asyncio.wait(samples, timeout=SAMPLE_TIMEOUT)
            # raises bugs only: `_fetch` logs what the cluster has refused
            for task in ended:
                task.result()
        finally:
            await cancel_and_wait(*samples)


async def _fetch(
    cluster: ClusterClient,
    node_id: int,
    wanted: Mapping[TopicPartition, PartitionData],
    sizes: BytesPerOffset,
) -> None:
    known = all(one.topic_id != m.NO_UUID for one in wanted.values())
    config = ConsumerConfig(
        fetch_min_bytes=1
    )  # its fetch_max_bytes limits the response for any number of partitions
    try:
        response = await cluster.network.request_versioned(
            node_id,
            m.FetchRequest,
            lambda version: build_fetch_request(sessionless_request(wanted), config, 0.0, version),
            highest=None if known else TOPIC_ID_VERSION - 1,
        )
    except AsyncGroupError as error:
        _log.debug("record sizes could not be sampled: %s", error)
        return
    # versions with topic ids have no names in the response
    names = {one.topic_id: tp.topic for tp, one in wanted.items()}
    for topic in response.responses:
        for data in topic.partitions:
            tp = TopicPartition(topic.topic or names.get(topic.topic_id, ""), data.partition_index)
            if not data.error_code and data.records and tp in wanted:
                for size, offsets in batch_sizes(data.records):
                    sizes.observe(tp, size, offsets)

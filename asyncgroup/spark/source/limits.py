"""How much a batch takes: the limits of Spark's source (`KafkaMicroBatchStream`), and one in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.settings import ReadSettings

__all__ = ["BytesPerOffset", "TriggerDelay", "TriggerLimits", "byte_limit", "rate_limit"]

_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

Offsets = Mapping[TopicPartition, int]


def rate_limit(
    limit: int, start: Offsets, end: Offsets, earliest_of_new: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Where a batch of about `limit` offsets ends: each partition's share is in proportion to what it has.

    `earliest_of_new`: the first offsets of partitions that `start` lacks. A partition with anything to read gets one
    offset at least, and none ends behind `end`. One that is in neither, or that has gone backwards, is passed on with
    its `end`: to notice that is the planner's business. The arithmetic is that of Spark's `rateLimit`, in doubles.
    """
    sizes = _sizes(start, end, earliest_of_new or {})
    total = float(sum(sizes.values()))
    if total < 1:
        return dict(end)
    ends = dict(end)
    for tp, size in sizes.items():
        ends[tp] = _cut(end[tp], size, limit * (float(size) / total))
    return ends


def _sizes(start: Offsets, end: Offsets, earliest_of_new: Offsets) -> dict[TopicPartition, int]:
    """How many offsets each partition has to read; those with none, and those without a known start, are left out."""
    begins = {**earliest_of_new, **start}
    sizes = {tp: offset - begins[tp] for tp, offset in end.items() if tp in begins}
    return {tp: size for tp, size in sizes.items() if size > 0}


def _cut(end: int, size: int, share: float) -> int:
    """The offset behind `share` offsets, at least one if it is any at all, and at most `size`."""
    whole = math.ceil(share) if share < 1 else math.floor(min(share, float(_INT64_MAX)))
    return min(end, end - size + whole)


class TriggerDelay:
    """`minOffsetsPerTrigger` with `maxTriggerDelay`: a batch waits until it is worthwhile, but not for ever.

    `max_delay` is in seconds, `now` the time by the caller's clock. The first batch never waits.
    """

    def __init__(self, min_offsets: int, max_delay: float) -> None:
        self._min_offsets, self._max_delay = min_offsets, max_delay
        self._last: float | None = None

    def delays(self, latest: Offsets, start: Offsets, now: float) -> bool:
        """Whether there is no batch yet; a False is taken as a batch that begins `now`.

        As in Spark's `delayBatch`, a partition that `start` lacks counts from offset 0.
        """
        if self._last is not None and now - self._last < self._max_delay:
            available = float(sum(offset - start.get(tp, 0) for tp, offset in latest.items()))
            if available < self._min_offsets:
                return True
        self._last = now
        return False


class BytesPerOffset:
    """How many bytes of the log an offset takes, by partition: running means of what was seen of it.

    Sizes are those of record batches as they lie in the log and go over the wire, compressed: they can be told from the
    batches' headers alone. The driver sees no data, so it looks: a Fetch of a few batches from where the next batch
    starts, now and then. `observe` tells what came.
    """

    WEIGHT: Final = 0.3
    """Of the newest observation; the older ones share the rest."""

    def __init__(self) -> None:
        self._means: dict[TopicPartition, float] = {}

    def observe(self, tp: TopicPartition, size: int, offsets: int) -> None:
        """`offsets` offsets of a partition took `size` bytes."""
        if offsets <= 0 or size < 0:
            return
        seen = size / offsets
        mean = self._means.get(tp, seen)
        self._means[tp] = mean + self.WEIGHT * (seen - mean)

    def mean(self, tp: TopicPartition) -> float | None:
        """Bytes per offset; for a partition not seen yet the mean of the others, None if nothing was seen at all."""
        if (mean := self._means.get(tp)) is not None:
            return mean
        return sum(self._means.values()) / len(self._means) if self._means else None

    def retain(self, partitions: Offsets) -> None:
        """Forgets all other partitions."""
        self._means = {tp: mean for tp, mean in self._means.items() if tp in partitions}


def byte_limit(
    limit: int, start: Offsets, end: Offsets, earliest_of_new: Offsets | None, sizes: BytesPerOffset
) -> dict[TopicPartition, int]:
    """Where a batch of about `limit` bytes of the log ends, by `sizes`; each partition gives the same part of its bytes.

    As with `rate_limit` a partition with anything to read gets one offset at least, and none ends behind `end`. Where
    nothing is known of the sizes, each gives one offset.
    """
    offsets = _sizes(start, end, earliest_of_new or {})
    means = {tp: sizes.mean(tp) for tp in offsets}
    total = sum(size * (math.inf if (mean := means[tp]) is None else mean) for tp, size in offsets.items())
    if total <= limit:
        return dict(end)
    ends = dict(end)
    for tp, size in offsets.items():
        ends[tp] = _cut(end[tp], size, max(size * (limit / total), 1.0))
    return ends


class TriggerLimits:
    """All limits of a streaming query together: Spark's composite of a lower and an upper one, and that of bytes."""

    def __init__(self, settings: ReadSettings) -> None:
        self.sizes = BytesPerOffset()
        """To be told of what is seen in the log, if there is a limit in bytes."""
        self._most, self._bytes = settings.max_offsets_per_trigger, settings.max_bytes_per_trigger
        least = settings.min_offsets_per_trigger
        self._delay = None if least is None else TriggerDelay(least, settings.max_trigger_delay)

    def end_offsets(
        self, start: Offsets, latest: Offsets, earliest_of_new: Offsets | None, now: float
    ) -> dict[TopicPartition, int]:
        """Where the batch that starts at `start` ends; at `start` itself while there is not enough for one.

        `now` is the time in seconds, by the caller's clock.
        """
        if self._delay is not None and self._delay.delays(latest, start, now):
            return dict(start)
        ends = dict(latest)
        if self._most is not None:
            ends = rate_limit(self._most, start, latest, earliest_of_new)
        if self._bytes is not None:
            by_bytes = byte_limit(self._bytes, start, latest, earliest_of_new, self.sizes)
            ends = {tp: min(offset, by_bytes[tp]) for tp, offset in ends.items()}
        return ends

"""Cleaning of the segments of one log: what can be cleaned, and the rewriting (Kafka's `LogCleanerManager`, `Cleaner`).

`compaction` decides which records stay; `storage.log_cleaner` decides when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from asyncgroup.broker.log.batch_index import StoredBatch
from asyncgroup.broker.log.compaction import Cleaner, OffsetMap
from asyncgroup.broker.log.producer_state import AbortedTransaction, LastRecord
from asyncgroup.broker.log.segments import LogSegments, Segment

__all__ = ["LogToClean", "SegmentCleaner"]


class LogToClean(NamedTuple):
    """The cleanable part of a log (Kafka's `LogToClean`)."""

    end_offset: int
    """Where cleaning ends."""
    clean_bytes: int
    """Bytes before `end_offset` that were cleaned before."""
    dirty_bytes: int
    """Bytes before `end_offset` that were never cleaned."""
    earliest_dirty: float
    """Smallest first timestamp (ms) of the dirty segments, without the active one; infinity if there are none."""

    @property
    def ratio(self) -> float:
        """The share of dirty bytes, from 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


class SegmentCleaner:
    """Cleans the segments of one log, and knows up to where it has."""

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments
        self._clean_offset = 0  # up to here the log has been cleaned

    def __repr__(self) -> str:
        return f"<SegmentCleaner up to {self._clean_offset}>"

    def truncated(self, end_offset: int) -> None:
        """Note that the log now ends at `end_offset`."""
        self._clean_offset = min(self._clean_offset, end_offset)

    def clean(
        self,
        end_offset: int,
        aborted: list[AbortedTransaction],
        last_records: Mapping[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """Keep only the last record of each key before `end_offset`, the base offset of a segment.

        `aborted` are the log's aborted transactions, from which those without records are removed; `last_records` is the
        last record of each active producer. Raise KafkaStorageError.
        """
        segments, index = self._segments, self._segments.batch_index
        count = sum(segment.base_offset < end_offset for segment in segments)
        if not count:
            return
        cleaner = Cleaner(
            OffsetMap(index.batches[: index.count_before(end_offset)], aborted),
            list(aborted),
            last_records,
            upper_bound=end_offset,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
        )
        stop, cleaned = 0, list[tuple[StoredBatch, int]]()
        try:
            with segments.storage_errors():
                for group in segments.groups(count):
                    stop = self._clean(group, cleaner, cleaned, aborted)
        finally:  # after an error too, for the groups already rewritten; once, because it copies the index
            index.replace(0, stop, cleaned)
        self._clean_offset = end_offset

    def _clean(
        self,
        group: list[Segment],
        cleaner: Cleaner,
        cleaned: list[tuple[StoredBatch, int]],
        aborted: list[AbortedTransaction],
    ) -> int:
        """Rewrite a group as one segment and add its remaining batches to `cleaned`.

        Return the number of the first batch after the group, in the index before the cleaning.
        """
        segments, index = self._segments, self._segments.batch_index
        end = segments.following(group).base_offset
        first, stop = index.count_before(group[0].base_offset), index.count_before(end)
        # lazily, so that one batch at a time is in memory; the index is updated by the caller
        left = (kept for batch in index.batches[first:stop] if (kept := cleaner.clean(batch)) is not None)
        segment, written = segments.rewrite(group, left)
        cleaned += written
        aborted[:] = cleaner.aborted + [one for one in aborted if one.last_offset >= end]
        if not written:
            segments.store.remove([segment])
        return stop

    def to_clean(self, start_offset: int, stable_offset: int, now_ms: int, min_lag_ms: int) -> LogToClean:
        """Return the cleanable part of the log, without segments that have records younger than `min_lag_ms`."""
        end = self.end_of_cleanable(stable_offset, now_ms, min_lag_ms)
        index, dirty_offset = self._segments.batch_index, max(self._clean_offset, start_offset)
        first, stop = index.find(dirty_offset), index.count_before(end)
        dirty_timestamps = [
            one.first_timestamp
            for one, following in pairwise(self._segments)
            if following.base_offset > dirty_offset
        ]
        earliest = min((timestamp for timestamp in dirty_timestamps if timestamp > 0), default=math.inf)
        return LogToClean(
            end, index.size_between(0, min(first, stop)), index.size_between(first, stop), earliest
        )

    def end_of_cleanable(self, stable_offset: int, now_ms: int, min_lag_ms: int) -> int:
        """Return the base offset of the first segment that cannot be cleaned (`LogCleanerManager.cleanableOffsets`)."""
        segments: Sequence[Segment] = self._segments
        end = segments[0].base_offset if segments else 0
        for segment, following in pairwise(segments):
            dirty = segment.base_offset >= self._clean_offset
            too_young = dirty and min_lag_ms > 0 and segment.max_timestamp > now_ms - min_lag_ms
            if following.base_offset > stable_offset or too_young:
                break
            end = following.base_offset
        return end

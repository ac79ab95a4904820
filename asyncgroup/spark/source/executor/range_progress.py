"""`RangeProgress`: the state of reading one range of offsets, from requests to decoded records. Pure state, no I/O."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.columns import RecordColumns
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import LogTruncatedError
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.executor.range_times import Patience
from asyncgroup.wire.batch_view import batch_at
from asyncgroup.wire.messages import NO_UUID

__all__ = ["RangeProgress", "Sizes"]

UNKNOWN_ROW: Final = 2048
"""Assumed wire bytes per offset before any record of the partition was fetched."""

LEAST_FETCH: Final = 64 * 1024
"""Minimum bytes of a fetch; smaller ones save nothing."""

SPARE: Final = 1.05
"""Factor by which a fetch exceeds the estimated size of a range: a second request for the last rows costs more."""


class Sizes(NamedTuple):
    """Estimated sizes of a partition's records."""

    row: float
    """Mean wire bytes per offset."""
    batch: int
    """Wire bytes of the last batch."""


class RangeProgress:
    """One range: its partition's state with an end, and what is known about the rest of it.

    `topic_id` is the topic id of the plan (nil: that of the first response). `partition` is the state of a former range
    that ended where this one starts; what it has fetched beyond its end is used.

    A range is also its partition's budget: it asks for what it lacks. What has come is decoded before the next wait.
    """

    __slots__ = (
        "_max_size",
        "end",
        "has_topic_id",
        "hidden_until",
        "leaders_end",
        "log_end",
        "partition",
        "patience",
        "problem",
        "retried_at",
        "sizes",
        "start",
        "tp",
    )

    def __init__(
        self,
        wanted: OffsetRange,
        config: ConsumerConfig,
        sizes: Sizes | None = None,
        topic_id: UUID = NO_UUID,
        partition: TopicPartitionState | None = None,
    ) -> None:
        self.tp = TopicPartition(wanted.topic, wanted.partition)
        self.start = wanted.start
        self.end = wanted.end
        self.sizes = sizes
        self._max_size = config.fetch_max_bytes
        self.partition = partition or TopicPartitionState(self.tp, self.start, config, self, Hooks())
        self.partition.budget = self
        self.partition.end_offset = self.end
        self.partition.on_restart = self._log_restarted
        self.partition.fetch_failures.clear()
        self.partition.fetch_position.seek()
        self.partition.fetch_position.clear_preferred_replica()
        self.partition.fetch_position.topic_id = topic_id
        self.has_topic_id = topic_id != NO_UUID
        """Whether the topic id is certain: that of the plan, or confirmed by a response."""
        self.patience = Patience()
        self.problem: Exception | None = None
        """The last failure since the last progress."""
        self.log_end: int | None = None
        """The end of the log for readers, when it had no more records."""
        self.hidden_until: int | None = None
        """The high watermark, if records before it were not returned."""
        self.leaders_end: int | None = None
        """The end of the leader's log, as far as it was asked for."""
        self.retried_at = -1  # the offset at which corrupt records were fetched again

    def __repr__(self) -> str:
        return f"<RangeProgress {self.tp}[{self.position}, {self.end})>"

    @property
    def position(self) -> int:
        """The offset of the next record to decode."""
        return min(self.partition.position, self.end)

    @property
    def fetch_offset(self) -> int:
        """The next offset to request."""
        return self.partition.fetch_offset

    @property
    def is_done(self) -> bool:
        """Whether all records of the range were decoded."""
        return self.partition.position >= self.end

    @property
    def has_data(self) -> bool:
        """Whether records, or an error, can be read from the buffer."""
        return bool(self.partition.buffer) and not self.is_done

    @property
    def held_back(self) -> str:
        """Why existing records are not returned, as far as known from responses; "" if unknown."""
        if self.leaders_end is not None:
            return (
                f"the leader's log has records up to offset {self.leaders_end}, but they are not replicated"
            )
        if self.hidden_until is not None:
            return (
                f"the log continues up to offset {self.hidden_until}, but no records are returned"
                " (with read_committed, because of an open transaction)"
            )
        return ""

    # --- budget -------------------------------------------------------------------------------------------------

    @property
    def fetch_size(self) -> int:
        """The estimated bytes of the rest and one more batch, within limits.

        Brokers truncate the last batch at the requested size, and a truncated batch must be requested again.
        """
        sizes = self.sizes or Sizes(UNKNOWN_ROW, 0)
        rest = max(0, self.end - self.fetch_offset) * sizes.row
        return int(min(self._max_size, max(LEAST_FETCH, rest * SPARE + sizes.batch)))

    def _learn(self, size: int, offsets: int) -> None:
        row = size / offsets
        if self.sizes is not None:  # an average that gives newer responses more weight
            row = (self.sizes.row + row) / 2
        self.sizes = Sizes(row, self.partition.buffer.batch_bytes)

    def allows(self, _held: int, /) -> bool:
        """It is fetched until its end."""
        return True

    def may_resume(self, _held: int, /) -> bool:
        """It is never stalled."""
        return True

    # --- topic ids ----------------------------------------------------------------------------------------------

    def is_other(self, topic_id: UUID) -> bool:
        """Return whether this topic id is not that of the range's topic, which was recreated then (KIP-516)."""
        ours = self.partition.fetch_position.topic_id
        return self.has_topic_id and ours != topic_id and NO_UUID not in (ours, topic_id)

    def confirm_topic_id(self) -> None:
        """Record that a broker has answered a request with this topic id."""
        self.has_topic_id = self.partition.fetch_position.topic_id != NO_UUID

    def forget_topic_id(self) -> None:
        """Drop an id that no broker has confirmed: the metadata that it comes from may be older than the range."""
        if not self.has_topic_id:
            self.partition.fetch_position.topic_id = NO_UUID

    # --- responses and failures ---------------------------------------------------------------------------------

    def answered(self, records: FetchedRecords, before: int, now: float) -> tuple[int, int] | None:
        """Process the records of a response, after the partition's state; `before` was the fetch offset.

        Return the offsets that are missing in the log, if the response shows that some are.
        """
        buffer = self.partition.buffer
        brought = buffer.fetch_offset - before
        if not brought and buffer.framing_error is None:
            # records before the high watermark exist, even if they were not returned
            there = records.high_watermark > before
            self.log_end, self.hidden_until = (None, records.high_watermark) if there else (before, None)
            return None
        assert records.data is not None
        if brought:
            self._learn(len(records.data), brought)
            self.confirm_topic_id()
        self.succeeded(now)
        if records.log_start_offset > before and (first := batch_at(records.data)) is not None:
            # the gap is not due to compaction: the records were deleted since
            offset = first.base_offset if first.base_offset >= 0 else first.last_offset
            missing = (before, min(offset, records.log_start_offset, self.end))
            return missing if offset > before else None
        return None

    def succeeded(self, now: float) -> None:
        """Record progress; clear failures."""
        self.patience.restart(now)
        self.patience.gone_since = None
        self.problem = self.log_end = self.hidden_until = self.leaders_end = None

    def failed(self, error: Exception) -> None:
        """Record a failed attempt."""
        self.problem = error
        self.log_end = self.hidden_until = self.leaders_end = None
        self.forget_topic_id()

    def _log_restarted(self, offset: int, _topic_id: UUID) -> None:
        """The log was truncated, though not before the next record: what comes there is not of this range any more."""
        self.partition.fail(LogTruncatedError(self.tp, self.position, offset))

    # --- reading ------------------------------------------------------------------------------------------------

    def read_into(self, columns: RecordColumns) -> bool:
        """Append the next batch's records to columns; False if there is none. Raises what `RecordBuffer.advance` raises."""
        return self.partition.buffer.read_columns(columns, self.end)

    def fetch_anew(self) -> bool:
        """Drop corrupt records in order to fetch them again, as they may have been corrupted in transit.

        Returns False if that was done at this offset before.
        """
        position = self.partition.position
        if self.retried_at == position:
            return False
        self.retried_at = position
        self.partition.rewind(-1)
        return True

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset, as the ones before are missing; buffered records are kept."""
        offset = min(max(offset, self.fetch_offset), self.end)
        if offset > self.fetch_offset:
            topic_id = self.partition.fetch_position.topic_id
            self.partition.reset(offset, offset)
            self.partition.fetch_position.topic_id = topic_id  # the reset may have been of another topic

"""`RangeProgress`: the state of reading one range of offsets, from requests to decoded records. Pure state, no I/O."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.consumer.fetch_position import FetchPosition
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.wire.batch_view import batch_at
from asyncgroup.wire.messages import NO_UUID

__all__ = ["Outcome", "RangeProgress", "Sizes"]

UNKNOWN_ROW: Final = 2048
"""Assumed wire bytes per offset before any record of the partition was fetched."""

LEAST_ASK: Final = 64 * 1024
"""Minimum bytes of a request; smaller requests save nothing."""

SPARE: Final = 1.05
"""Factor by which a request exceeds the estimated size of a range: a second request for the last rows costs more."""


class Sizes(NamedTuple):
    """Estimated sizes of a partition's records."""

    row: float
    """Mean wire bytes per offset."""
    batch: int
    """Wire bytes of the last batch."""


class Outcome(Enum):
    """What the records of a response mean for a range."""

    NEWS = "records of the range were received"
    NOTHING = "no records: the end of the log, a response filled by other partitions, or an open transaction"
    LOST = "the log start offset is greater than the fetch offset"


class RangeProgress:
    """The state of one range. Times are the loop's.

    `topic_id` is the topic id of the plan (nil: that of the first response).
    """

    __slots__ = (
        "buffer",
        "end",
        "end_asked_at",
        "failures",
        "fetch_position",
        "hidden_until",
        "is_asked",
        "leaders_end",
        "log_end",
        "missing",
        "not_before",
        "problem",
        "queued_at",
        "retried_at",
        "since",
        "sizes",
        "start",
        "tp",
        "unknown_since",
    )

    def __init__(
        self,
        wanted: OffsetRange,
        buffer: RecordBuffer,
        sizes: Sizes | None = None,
        topic_id: UUID = NO_UUID,
    ) -> None:
        self.tp = TopicPartition(wanted.topic, wanted.partition)
        self.start = wanted.start
        self.end = wanted.end
        self.buffer = buffer
        self.sizes = sizes
        self.fetch_position = FetchPosition()
        self.fetch_position.topic_id = topic_id
        self.is_asked = False  # while a Fetch for it is in flight
        self.since: float | None = None  # time of the last progress; None before the first request
        self.queued_at: float | None = None  # since when it waits for other ranges; None if it does not
        self.end_asked_at = float("-inf")  # when the leader was last asked for its end
        self.not_before = float("-inf")  # time of the next attempt after a failure
        self.problem: Exception | None = None  # the last failure
        self.failures = 0  # consecutive ones
        self.log_end: int | None = None  # the end of the log for readers, when it had no more records
        self.hidden_until: int | None = None  # the high watermark, if records before it were not returned
        self.leaders_end: int | None = None  # the end of the leader's log, see `leaders_end`
        self.missing = (self.start, self.start)  # offsets that the last response has skipped
        self.unknown_since: float | None = None  # since when the partition is missing in the metadata
        self.retried_at = -1  # the offset at which corrupt records were fetched again

    def __repr__(self) -> str:
        return f"<RangeProgress {self.tp}[{self.position}, {self.end})>"

    @property
    def position(self) -> int:
        """The offset of the next record to decode."""
        return min(self.buffer.position, self.end)

    @property
    def is_done(self) -> bool:
        """Whether all records of the range were decoded."""
        return self.buffer.position >= self.end

    @property
    def has_data(self) -> bool:
        """Whether records, or an error, can be read from the buffer."""
        return bool(self.buffer) and not self.is_done

    @property
    def wants_more(self) -> bool:
        """Whether a Fetch must be sent; if the buffer is corrupt, it is read first, which raises the error."""
        return not self.is_asked and self.buffer.fetch_offset < self.end and self.buffer.framing_error is None

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

    @property
    def fetch_offset(self) -> int:
        """The next offset to request."""
        return self.buffer.fetch_offset

    @property
    def lacks(self) -> int:
        """The number of offsets that are not fetched yet."""
        return max(0, self.end - self.fetch_offset)

    def is_other(self, topic_id: UUID) -> bool:
        """Return whether this topic id is not that of the range's topic, which was recreated then (KIP-516)."""
        ours = self.fetch_position.topic_id
        return ours != topic_id and NO_UUID not in (ours, topic_id)

    def ask_bytes(self, most: int) -> int:
        """Return the bytes to request: the estimated size of the rest and one more batch, at most `most`.

        Brokers truncate the last batch at the requested size, and a truncated batch must be requested again.
        """
        sizes = self.sizes or Sizes(UNKNOWN_ROW, 0)
        return int(min(most, max(LEAST_ASK, self.lacks * sizes.row * SPARE + sizes.batch)))

    def answered(self, records: FetchedRecords, now: float) -> Outcome:
        """Process the records of a response."""
        before, buffer = self.buffer.fetch_offset, self.buffer
        buffer.high_water_mark = records.high_watermark
        if records.data:
            buffer.add(records.data, zero_copy=records.zero_copy, aborted=records.aborted or ())
        brought = buffer.fetch_offset - before
        if not brought and buffer.framing_error is None:
            # records before the high watermark exist, even if they were not returned
            there = records.high_watermark > before
            self.log_end, self.hidden_until = (None, records.high_watermark) if there else (before, None)
            return Outcome.NOTHING
        assert records.data is not None
        if brought:
            self._learn(len(records.data), brought)
        self.succeeded(now)
        if records.log_start_offset > before and (first := batch_at(records.data)) is not None:
            # the gap is not due to compaction: the records were deleted since
            self.missing = (before, min(first.base_offset, records.log_start_offset, self.end))
            return Outcome.LOST if first.base_offset > before else Outcome.NEWS
        return Outcome.NEWS

    def begin(self, now: float) -> None:
        """Start the timeout, unless it is running already."""
        if self.since is None:
            self.since = now

    def paused(self, seconds: float) -> None:
        """Exclude a time outside a wait from all timeouts."""
        if self.since is not None:
            self.since += seconds
        if self.unknown_since is not None:
            self.unknown_since += seconds
        if self.queued_at is not None:
            self.queued_at += seconds

    def queue(self, now: float) -> None:
        """Pause the timeout until `take_turn`, as other ranges are requested first."""
        if self.queued_at is None:
            self.queued_at = now

    def take_turn(self, now: float) -> None:
        """Continue the timeout after `queue`."""
        queued_at, self.queued_at = self.queued_at, None
        if queued_at is not None and self.since is not None:
            self.since += now - queued_at

    def crowded_out(self, now: float) -> None:
        """Restart the timeout, as other partitions have filled the response; not if the log had no more records."""
        if self.log_end is None:
            self.since = now

    def patience_ends(self, seconds: float) -> float | None:
        """Return the time at which it will have been without progress for `seconds`; None while the timeout is paused."""
        return None if self.since is None or self.queued_at is not None else self.since + seconds

    def failed(self, error: Exception, not_before: float) -> None:
        """Record a failed attempt; the next one is not before `not_before`."""
        self.failures += 1
        self.problem, self.not_before = error, not_before
        self.log_end = self.hidden_until = self.leaders_end = None

    def succeeded(self, now: float) -> None:
        """Record progress; clear failures."""
        self.since, self.failures = now, 0
        self.problem = self.unknown_since = self.log_end = self.hidden_until = self.leaders_end = None
        self.not_before = float("-inf")

    def _learn(self, size: int, offsets: int) -> None:
        row = size / offsets
        if self.sizes is not None:  # an average that gives newer responses more weight
            row = (self.sizes.row + row) / 2
        self.sizes = Sizes(row, self.buffer.batch_bytes)

    def read_into(self, columns: RecordColumns) -> bool:
        """Append the next batch's records to columns; False if there is none. Raises what `RecordBuffer.advance` raises."""
        return self.buffer.read_columns(columns, self.end)

    def fetch_anew(self) -> bool:
        """Drop corrupt records in order to fetch them again, as they may have been corrupted in transit.

        Returns False if that was done at this offset before.
        """
        position = self.buffer.position
        if self.retried_at == position:
            return False
        self.retried_at = position
        self.buffer.seek(position)
        return True

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset, as the ones before are missing; buffered records are kept."""
        offset = min(max(offset, self.fetch_offset), self.end)
        if self.buffer:
            self.buffer.skip_to(offset)
        else:
            self.buffer.seek(offset)

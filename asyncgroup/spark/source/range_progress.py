"""How far a task is with one range of offsets: what it holds, what to ask for next, what an answer means. Pure state."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.fetch_position import FetchPosition
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.wire.messages import NO_UUID
from asyncgroup.wire.records import read_batch_header

__all__ = ["Outcome", "RangeProgress", "Sizes"]

UNKNOWN_ROW: Final = 2048
"""Wire bytes that an offset is taken for before anything of its partition was fetched."""

LEAST_ASK: Final = 64 * 1024
"""Bytes; to ask for less saves nothing."""

SPARE: Final = 1.05
"""How much more is asked for than the rest of a range should take: to ask twice for the last rows costs more."""


class Sizes(NamedTuple):
    """What is known of a partition's records: the mean wire bytes of an offset, and of its last batch."""

    row: float
    batch: int


class Outcome(Enum):
    """What an answer without an error did for a range."""

    NEWS = "it brought offsets that were wanted"
    NOTHING = "it brought nothing, since the log ends there, or others filled it, or a transaction is open"
    TRUNCATED = "the log is not the one that was read before"
    ELSEWHERE = "another replica is the one to ask"
    LOST = "the log begins behind the offset asked for"


class RangeProgress:
    """One range on its way. `is_asked` while a Fetch for it is under way.

    `topic_id` is that of the topic which the range was planned for (nil: whatever topic there is at first).
    `since` is the loop's time of the last progress (None: not asked yet), `queued_at` since when others are asked before
    it (None: they are not), `not_before` when a failure allows the next try after `failures` in a row, `problem` what the
    last one was. `unknown_since` tells since when metadata know no such partition, `log_end` where the log ended for its
    readers when it had nothing more, `hidden_until` where it ended if it had more and did not give it, `leaders_end` what
    its leader said of its true end, when asked at `end_asked_at`, `missing` which offsets an answer has passed over.
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
        self.start, self.end = wanted.start, wanted.end
        self.buffer, self.sizes = buffer, sizes
        self.fetch_position = FetchPosition()
        self.fetch_position.topic_id = topic_id
        self.is_asked = False
        self.since: float | None = None
        self.queued_at: float | None = None
        self.end_asked_at = float("-inf")
        self.not_before = float("-inf")
        self.problem: Exception | None = None
        self.failures = 0
        self.log_end: int | None = None
        self.hidden_until: int | None = None
        self.leaders_end: int | None = None
        self.missing = (self.start, self.start)
        self.unknown_since: float | None = None
        self.retried_at = -1

    def __repr__(self) -> str:
        return f"<RangeProgress {self.tp}[{self.position}, {self.end})>"

    @property
    def position(self) -> int:
        """The next offset to hand out."""
        return min(self.buffer.position, self.end)

    @property
    def is_done(self) -> bool:
        """Whether all of the range was handed out."""
        return self.buffer.position >= self.end

    @property
    def has_data(self) -> bool:
        """Whether something waits to be handed out, be it an error."""
        return bool(self.buffer) and not self.is_done

    @property
    def wants_more(self) -> bool:
        """Whether a Fetch must be sent for it; what waits undecoded is read first if it is broken."""
        return not self.is_asked and self.buffer.fetch_offset < self.end and self.buffer.framing_error is None

    @property
    def held_back(self) -> str:
        """Why records that are there do not come, as far as answers tell it; "" if they do not."""
        if self.leaders_end is not None:
            return f"its leader's log goes on up to {self.leaders_end}, but its other replicas lack that"
        if self.hidden_until is not None:
            return (
                f"the log goes on up to {self.hidden_until}, but none of it is given"
                " (with read_committed an open transaction holds it back)"
            )
        return ""

    @property
    def fetch_offset(self) -> int:
        """The next offset to ask for."""
        return self.buffer.fetch_offset

    @property
    def lacks(self) -> int:
        """Offsets that have not been fetched yet."""
        return max(0, self.end - self.fetch_offset)

    def is_other(self, topic_id: UUID) -> bool:
        """Whether a topic of this id, with the same name, is not the one that the range is of (KIP-516)."""
        ours = self.fetch_position.topic_id
        return ours != topic_id and NO_UUID not in (ours, topic_id)

    def ask_bytes(self, most: int) -> int:
        """How many bytes to ask for: what the rest should take and one batch more, at most `most`.

        A broker cuts the last batch off where the ask ends, and what is cut must be asked for again.
        """
        sizes = self.sizes or Sizes(UNKNOWN_ROW, 0)
        return int(min(most, max(LEAST_ASK, self.lacks * sizes.row * SPARE + sizes.batch)))

    def answered(self, data: Any, node_id: int, now: float) -> Outcome:
        """Take in what a broker answered without an error code (a partition of `m.FetchResponse`)."""
        before, buffer = self.buffer.fetch_offset, self.buffer
        if data.diverging_epoch.epoch >= 0:
            return Outcome.TRUNCATED
        if data.preferred_read_replica not in (-1, node_id):
            return Outcome.ELSEWHERE
        buffer.high_water_mark = data.high_watermark
        if data.records:
            buffer.add(data.records, zero_copy=True, aborted=data.aborted_transactions or ())
        brought = buffer.fetch_offset - before
        if not brought and buffer.framing_error is None:
            # what lies before the high watermark is there, even if it did not come
            there = data.high_watermark > before
            self.log_end, self.hidden_until = (None, data.high_watermark) if there else (before, None)
            return Outcome.NOTHING
        if brought:
            self._learn(len(data.records), brought)
        self.succeeded(now)
        if data.log_start_offset > before and (first := read_batch_header(data.records)) is not None:
            # a gap that compaction did not make: what lay there was deleted on the way
            self.missing = (before, min(first.base_offset, data.log_start_offset, self.end))
            return Outcome.LOST if first.base_offset > before else Outcome.NEWS
        return Outcome.NEWS

    def begin(self, now: float) -> None:
        """Somebody waits for it from now on, if nobody has before."""
        if self.since is None:
            self.since = now

    def paused(self, seconds: float) -> None:
        """For so long nobody has waited: it counts for nothing."""
        if self.since is not None:
            self.since += seconds
        if self.unknown_since is not None:
            self.unknown_since += seconds
        if self.queued_at is not None:
            self.queued_at += seconds

    def queue(self, now: float) -> None:
        """Others are asked before it: until `take_turn` no patience is lost."""
        if self.queued_at is None:
            self.queued_at = now

    def take_turn(self, now: float) -> None:
        """Whatever it waits for from now on, it is not its turn."""
        queued_at, self.queued_at = self.queued_at, None
        if queued_at is not None and self.since is not None:
            self.since += now - queued_at

    def crowded_out(self, now: float) -> None:
        """Others have filled the answer, so it was not its turn; but for one whose log had nothing more."""
        if self.log_end is None:
            self.since = now

    def patience_ends(self, seconds: float) -> float | None:
        """The loop's time at which it has gone without progress for so long; None while it has no turn."""
        return None if self.since is None or self.queued_at is not None else self.since + seconds

    def failed(self, error: Exception, not_before: float) -> None:
        """A try failed; the next one is at `not_before`."""
        self.failures += 1
        self.problem, self.not_before = error, not_before
        self.log_end = self.hidden_until = self.leaders_end = None

    def succeeded(self, now: float) -> None:
        """Something came: troubles are over."""
        self.since, self.failures = now, 0
        self.problem = self.unknown_since = self.log_end = self.hidden_until = self.leaders_end = None
        self.not_before = float("-inf")

    def _learn(self, size: int, offsets: int) -> None:
        row = size / offsets
        if self.sizes is not None:  # newer answers count for more, a single odd one not for all
            row = (self.sizes.row + row) / 2
        self.sizes = Sizes(row, self.buffer.batch_bytes)

    def read_into(self, columns: RecordColumns) -> bool:
        """Append the next batch's records to columns; False if nothing waits. Raises as `RecordBuffer.advance`."""
        return self.buffer.read_columns(columns, self.end)

    def fetch_anew(self) -> bool:
        """Drop what waits, as it cannot be read, and fetch it once more: the fault may have been on the way.

        False if that was done at this offset before.
        """
        position = self.buffer.position
        if self.retried_at == position:
            return False
        self.retried_at = position
        self.buffer.seek(position)
        return True

    def skip_to(self, offset: int) -> None:
        """Ask for a later offset next, as those before it are not there; what waits to be handed out is kept."""
        offset = min(max(offset, self.fetch_offset), self.end)
        if self.buffer:
            self.buffer.skip_to(offset)
        else:
            self.buffer.seek(offset)

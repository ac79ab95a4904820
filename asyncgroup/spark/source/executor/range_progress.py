"""`RangeProgress`: reading one range of offsets, from requests to decoded records and missing ones. Pure state, no I/O."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.columns import RecordColumns
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.consumer.fetch_state import FetchState
from asyncgroup.consumer.offset_resets import LogRange
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.errors import LogTruncatedError, OffsetOutOfRangeError, TopicRecreatedError
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.errors import DataLossError, report_data_loss
from asyncgroup.spark.source.executor.poll_timer import NEVER, Due, PollTimer
from asyncgroup.spark.source.executor.range_columns import read_before
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


class _RestartListener(PositionListener):
    """Fails a range's partition when records that it has not returned yet are lost from the log."""

    def __init__(self, progress: RangeProgress) -> None:
        self._progress = progress

    def on_restart(self, offset: int, topic_id: UUID) -> None:  # noqa: ARG002
        """The log was truncated, though not before the next record: what comes there is not of this range any more."""
        progress = self._progress
        progress.partition.fail(LogTruncatedError(progress.tp, progress.position, offset))


class RangeBudget:
    """How much of a range is fetched at once. It is never stalled: what has come is decoded before the next wait."""

    __slots__ = ("_max_size", "_progress", "sizes")

    def __init__(self, progress: RangeProgress, max_size: int, sizes: Sizes | None) -> None:
        self._progress = progress
        self._max_size = max_size
        self.sizes = sizes

    @property
    def fetch_size(self) -> int:
        """The estimated bytes of the rest and one more batch, within limits.

        Brokers truncate the last batch at the requested size, and a truncated batch must be requested again.
        """
        sizes = self.sizes or Sizes(UNKNOWN_ROW, 0)
        rest = max(0, self._progress.end - self._progress.fetch_offset) * sizes.row
        return int(min(self._max_size, max(LEAST_FETCH, rest * SPARE + sizes.batch)))

    def learn(self, size: int, offsets: int, batch: int) -> None:
        """Learn from a response of `size` bytes, the last batch of which has `batch`."""
        row = size / offsets
        if self.sizes is not None:  # an average that gives newer responses more weight
            row = (self.sizes.row + row) / 2
        self.sizes = Sizes(row, batch)

    def size_for(self, _batch: int, /) -> int:
        """The size of a batch is part of the estimate."""
        return self.fetch_size

    def allows(self, _held: int, _size: int, /) -> bool:
        """It is fetched until its end."""
        return True

    def may_resume(self, _held: int, /) -> bool:
        """It is never stalled."""
        return True


class RangeProgress:
    """One range: its partition's state with an end, and what is known about the rest of it.

    `topic_id` is the topic id of the plan (nil: that of the first response). `partition` is the state of a former range
    that ended where this one starts; what it has fetched beyond its end is used. It may be without progress for
    `poll_timeout` seconds. Lost records raise DataLossError with `fail_on_data_loss`, else they are logged and skipped.
    """

    __slots__ = (
        "_fail_on_data_loss",
        "_has_topic_id",
        "_retried_at",
        "budget",
        "end",
        "partition",
        "poll_timer",
        "tp",
    )

    def __init__(
        self,
        wanted: OffsetRange,
        config: ConsumerConfig,
        sizes: Sizes | None = None,
        topic_id: UUID = NO_UUID,
        partition: TopicPartitionState | None = None,
        *,
        poll_timeout: float = NEVER,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.tp = TopicPartition(wanted.topic, wanted.partition)
        self.end = wanted.end
        self.budget = RangeBudget(self, config.fetch_max_bytes, sizes)
        self._fail_on_data_loss = fail_on_data_loss
        self.partition = partition or TopicPartitionState(self.tp, wanted.start, config, self.budget, Hooks())
        self.partition.budget = self.budget
        self.partition.end_offset = self.end
        self.partition.listener = _RestartListener(self)
        self.partition.fetch_failures.clear()
        self.partition.fetch_source.forget()
        self.partition.fetch_source.clear_preferred_replica()
        self.partition.fetch_source.topic_id = topic_id
        self._has_topic_id = topic_id != NO_UUID
        """Whether it is certain: that of the plan, or confirmed by a response."""
        self.poll_timer = PollTimer(poll_timeout)
        self._retried_at = -1  # the offset at which corrupt records were fetched again

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

    # --- the topic ----------------------------------------------------------------------------------------------

    def check(self, view: ClusterView, now: float, since: float) -> Due:
        """Return what is due; metadata from before `since` cannot show that the topic is gone."""
        partition = self.partition
        is_queued = (
            partition.fetch_state is FetchState.FETCHING and not partition.reserved and partition.is_fetchable
        )
        is_certain = view.updated_at >= since
        return self.poll_timer.check(
            now, is_gone=self.is_gone(view), is_certain=is_certain, is_queued=is_queued
        )

    def is_gone(self, view: ClusterView) -> bool:
        """Return whether the partition is missing in the metadata; that of a recreated topic is another one."""
        topic = view.topics.get(self.tp.topic)
        return topic is None or self.tp.partition not in topic.partitions or self.is_other(topic.topic_id)

    def is_other(self, topic_id: UUID) -> bool:
        """Return whether this topic id is not that of the range's topic, which was recreated then (KIP-516)."""
        ours = self.partition.fetch_source.topic_id
        return self._has_topic_id and ours != topic_id and NO_UUID not in (ours, topic_id)

    def confirm_topic_id(self) -> None:
        """Record that a broker has answered a request with this topic id."""
        self._has_topic_id = self.partition.fetch_source.topic_id != NO_UUID

    def _forget_topic_id(self) -> None:
        """Drop an id that no broker has confirmed: the metadata that it comes from may be older than the range."""
        if not self._has_topic_id:
            self.partition.fetch_source.topic_id = NO_UUID

    # --- responses and failures ---------------------------------------------------------------------------------

    def answered(self, records: FetchedRecords, before: int, now: float) -> None:
        """Process the records of a response, after the partition's state; `before` was the fetch offset."""
        buffer = self.partition.buffer
        brought = buffer.fetch_offset - before
        if not brought and buffer.framing_error is None:
            self.poll_timer.nothing_came(before, records.high_watermark)
            return
        assert records.data is not None
        if brought:
            self.budget.learn(len(records.data), brought, buffer.batch_bytes)
            self.confirm_topic_id()
        self.poll_timer.progressed(now)
        first = batch_at(records.data) if records.log_start_offset > before else None
        if first is None:
            return
        offset = first.base_offset if first.base_offset >= 0 else first.last_offset
        if offset > before:
            # the gap is not due to compaction: the records were deleted since
            end = min(offset, records.log_start_offset, self.end)
            self._report_loss(before, end, f"the log now starts at offset {records.log_start_offset}")

    def failed(self, error: Exception) -> None:
        """Record a failed attempt."""
        self.poll_timer.failed(error)
        self._forget_topic_id()

    # --- losses (Spark's `KafkaDataConsumer.scala`) -------------------------------------------------------------

    def recover(self, log: LogRange | None) -> None:
        """Handle the error for which the partition is not fetched; raise it if it is about anything but its position.

        `log` are the offsets of the log, as looked up for an offset that is not in it.
        """
        error = self.partition.error
        assert error is not None
        if isinstance(error, LogTruncatedError):
            at = "" if error.divergent_offset is None else f" at offset {error.divergent_offset}"
            self._report_loss(self.position, self.end, f"the log was truncated{at}")
            self.partition.rewind(-1)  # the last fetched epoch is the old log's
        elif isinstance(error, TopicRecreatedError):
            # perhaps the metadata is older than the range: tried again until it is certain that the topic is gone
            self._forget_topic_id()
        elif isinstance(error, OffsetOutOfRangeError) and log is not None:
            self._resume_within(log)
        else:
            raise error
        self.partition.take_error()

    def _resume_within(self, log: LogRange) -> None:
        """Continue after OFFSET_OUT_OF_RANGE.

        The fetch offset is never decreased. If the log has it by now (a recreated topic that is being filled), it is
        requested again.
        """
        offset, found = self.fetch_offset, f"the log has the offsets [{log.start}, {log.end})"
        if offset >= log.end or log.start >= self.end:
            self._lose_until(self.end, found)
        elif offset < log.start:
            self._lose_until(log.start, found)

    def lose_topic(self, view: ClusterView) -> None:
        """End the range of a deleted topic. A recreated one is not read in its place: the driver plans it from its start."""
        recreated = view.partition(*self.tp) is not None
        reason = (
            "the topic was deleted and recreated" if recreated else "the partition does not exist any more"
        )
        self._lose_until(self.end, reason)

    def lose_end(self, end: int) -> None:
        """End the range, as the log ends at offset `end`."""
        self._lose_until(self.end, f"the log ends at offset {end}")

    def _lose_until(self, end: int, reason: str) -> None:
        """Report that the offsets from the fetch offset up to `end` are missing, and continue there."""
        self._report_loss(self.fetch_offset, end, reason)
        end = min(max(end, self.fetch_offset), self.end)
        if end > self.fetch_offset:
            topic_id = self.partition.fetch_source.topic_id
            self.partition.reset(end, end)  # buffered records are kept
            self.partition.fetch_source.topic_id = topic_id  # the reset may have been of another topic

    def _report_loss(self, start: int, end: int, reason: str) -> None:
        code = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
        loss = DataLossError(code, topicPartition=self.tp, startOffset=start, endOffset=end, reason=reason)
        report_data_loss(loss, fail=self._fail_on_data_loss)

    # --- reading ------------------------------------------------------------------------------------------------

    def read_into(self, columns: RecordColumns) -> bool:
        """Append the next batch's records to columns; False if there is none. Raises what `RecordBuffer.advance` raises."""
        return read_before(self.partition.buffer, columns, self.end)

    def fetch_again(self) -> bool:
        """Drop corrupt records in order to fetch them again, as they may have been corrupted in transit.

        Returns False if that was done at this offset before.
        """
        position = self.partition.position
        if self._retried_at == position:
            return False
        self._retried_at = position
        self.partition.rewind(-1)
        return True

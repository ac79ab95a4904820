"""Report records that are missing in the log, and continue after them (Spark's `KafkaDataConsumer.scala`)."""

from __future__ import annotations

from asyncgroup.consumer.offset_resets import LogRange
from asyncgroup.errors import LogTruncatedError, OffsetOutOfRangeError, TopicRecreatedError
from asyncgroup.spark.source.errors import DataLossError, report_data_loss
from asyncgroup.spark.source.executor.range_progress import RangeProgress

__all__ = ["LossReports"]


class LossReports:
    """Reports lost offsets: raises DataLossError with `fail` (`failOnDataLoss`), else warns and skips them."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def __repr__(self) -> str:
        return f"<LossReports: {'raised' if self._fail else 'logged'}>"

    def report(self, progress: RangeProgress, start: int, end: int, reason: str) -> None:
        """Report that the offsets from `start` up to `end` are missing."""
        code = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
        loss = DataLossError(
            code, topicPartition=progress.tp, startOffset=start, endOffset=end, reason=reason
        )
        report_data_loss(loss, fail=self._fail)

    def lose(self, progress: RangeProgress, end: int, reason: str) -> None:
        """Report that the offsets from the fetch offset up to `end` are missing, and continue there."""
        self.report(progress, progress.fetch_offset, end, reason)
        progress.skip_to(end)

    def lose_rest(self, progress: RangeProgress, reason: str) -> None:
        """Report that the rest of the range is missing, and end the range."""
        self.lose(progress, progress.end, reason)

    def settle(self, progress: RangeProgress, error: Exception, log: LogRange | None) -> None:
        """Handle the error for which a partition is not fetched; raise it if it is about anything but its position.

        `log` are the offsets of the log, as looked up for an offset that is not in it.
        """
        if isinstance(error, LogTruncatedError):
            self._truncated(progress, error)
        elif isinstance(error, TopicRecreatedError):
            # perhaps the metadata is older than the range: tried again until it is certain that the topic is gone
            progress.forget_topic_id()
        elif isinstance(error, OffsetOutOfRangeError) and log is not None:
            self._resume_within(progress, log)
        else:
            raise error
        progress.partition.take_error()

    def _truncated(self, progress: RangeProgress, error: LogTruncatedError) -> None:
        at = "" if error.divergent_offset is None else f" at offset {error.divergent_offset}"
        self.report(progress, progress.position, progress.end, f"the log was truncated{at}")
        progress.partition.rewind(-1)  # the last fetched epoch is the old log's

    def _resume_within(self, progress: RangeProgress, log: LogRange) -> None:
        """Continue after OFFSET_OUT_OF_RANGE.

        The fetch offset is never decreased. If the log has it by now (a recreated topic that is being filled), it is
        requested again.
        """
        offset, found = progress.fetch_offset, f"the log has the offsets [{log.start}, {log.end})"
        if offset >= log.end or log.start >= progress.end:
            self.lose_rest(progress, found)
        elif offset < log.start:
            self.lose(progress, log.start, found)

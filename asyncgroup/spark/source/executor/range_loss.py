"""Report records that are missing in the log, and continue after them (Spark's `KafkaDataConsumer.scala`)."""

from __future__ import annotations

from asyncgroup.spark.source.errors import could_not_read_offset_range, report_data_loss
from asyncgroup.spark.source.executor.range_progress import RangeProgress

__all__ = ["lose", "lose_rest", "resume_within"]


def lose(progress: RangeProgress, end: int, reason: str, *, fail: bool) -> None:
    """Report that the offsets from the fetch offset up to `end` are missing: raise DataLossError, or warn and skip them."""
    report_data_loss(could_not_read_offset_range(progress.tp, progress.fetch_offset, end, reason), fail=fail)
    progress.skip_to(end)


def lose_rest(progress: RangeProgress, reason: str, *, fail: bool) -> None:
    """Report that the rest of the range is missing: raise DataLossError, or warn and end the range."""
    lose(progress, progress.end, reason, fail=fail)


def resume_within(progress: RangeProgress, earliest: int, latest: int, *, fail: bool) -> None:
    """Continue after OFFSET_OUT_OF_RANGE, if the log has the offsets from `earliest` (inclusive) to `latest` (exclusive).

    The fetch offset is never decreased. If the log has it by now (a recreated topic that is being filled), it is requested
    again. Raises DataLossError with `fail`.
    """
    offset, found = progress.fetch_offset, f"the log has the offsets [{earliest}, {latest})"
    if offset >= latest or earliest >= progress.end:
        lose_rest(progress, found, fail=fail)
    elif offset < earliest:
        lose(progress, earliest, found, fail=fail)

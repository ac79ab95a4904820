"""What becomes of a range whose log does not hold all of it (Spark's `KafkaDataConsumer.scala`)."""

from __future__ import annotations

from asyncgroup.spark.source.errors import could_not_read_offset_range, report_data_loss
from asyncgroup.spark.source.range_progress import RangeProgress

__all__ = ["lose", "lose_rest", "resume_within"]


def lose(progress: RangeProgress, end: int, reason: str, *, fail: bool) -> None:
    """The offsets from the next one to be fetched up to `end` are not there: raises DataLossError, or warns and goes on there."""
    report_data_loss(could_not_read_offset_range(progress.tp, progress.fetch_offset, end, reason), fail=fail)
    progress.skip_to(end)


def lose_rest(progress: RangeProgress, reason: str, *, fail: bool) -> None:
    """Nothing more of the range is there: raises DataLossError, or warns and ends it."""
    lose(progress, progress.end, reason, fail=fail)


def resume_within(progress: RangeProgress, earliest: int, latest: int, *, fail: bool) -> None:
    """Go on after OFFSET_OUT_OF_RANGE, where the log now holds the offsets from `earliest` to before `latest`.

    Never before the offset asked for. If the log holds that by now (a topic that was made anew and fills up), it is
    asked for again. Raises DataLossError with `fail`.
    """
    offset, found = progress.fetch_offset, f"the log holds [{earliest}, {latest})"
    if offset >= latest or earliest >= progress.end:
        lose_rest(progress, found, fail=fail)
    elif offset < earliest:
        lose(progress, earliest, found, fail=fail)

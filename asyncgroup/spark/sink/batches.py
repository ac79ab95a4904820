"""Helpers of the `ForeachBatch` sinks: a batch's offset ranges, and checks of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from asyncgroup.errors import ConfigError
from asyncgroup.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "RangedBatch", "require_columns", "require_ranges"]

KEYS = ("topic", "partition", "offset")
"""The columns that identify a record; no two records have the same values."""


class RangedBatch(Protocol):
    """A `batch_id` of `ForeachBatch`, with the batch's offset ranges, one for each partition."""

    @property
    def ranges(self) -> Sequence[OffsetRange]:
        """The ranges."""


def require_ranges(batch_id: RangedBatch) -> tuple[OffsetRange, ...]:
    """Return the ranges; raise ConfigError for the plain number that Spark's own foreachBatch passes."""
    ranges = getattr(batch_id, "ranges", None)
    if ranges is None:
        raise ConfigError(
            "batch_id",
            batch_id,
            "a BatchId of ForeachBatch: Spark's own foreachBatch passes no offset ranges",
        )
    return tuple(ranges)


def require_columns(df: DataFrame, columns: Iterable[str]) -> None:
    """Raise ConfigError if columns that a sink needs are missing, for example dropped by a transformation."""
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise ConfigError(
            f"the sink needs the columns {', '.join(columns)}; missing: {', '.join(missing)}, present: {df.columns}"
        )

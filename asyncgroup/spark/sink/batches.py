"""What the ready sinks need to know of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from asyncgroup.errors import ConfigError
from asyncgroup.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "RangedBatch", "require_columns", "require_ranges"]

KEYS = ("topic", "partition", "offset")
"""The columns by which a row is known: no two rows of a topic's records share them."""


class RangedBatch(Protocol):
    """A `batch_id` of the bridge: it names the offset ranges that the batch consists of, one for each partition."""

    @property
    def ranges(self) -> Sequence[OffsetRange]:
        """The ranges."""


def require_ranges(batch_id: RangedBatch) -> tuple[OffsetRange, ...]:
    """The ranges; raises ConfigError for the number that Spark's own foreachBatch gives."""
    ranges = getattr(batch_id, "ranges", None)
    if ranges is None:
        raise ConfigError(
            "batch_id", batch_id, "one of ForeachBatch: Spark's own foreachBatch tells no offset ranges"
        )
    return tuple(ranges)


def require_columns(df: DataFrame, columns: Iterable[str]) -> None:
    """Raise ConfigError for columns that a sink needs and a transformation has dropped."""
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise ConfigError(
            f"the sink needs the columns {', '.join(columns)}; missing: {', '.join(missing)}, present: {df.columns}"
        )

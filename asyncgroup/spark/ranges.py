"""Offset ranges: `OffsetRange`, the `BatchId` that has those of a batch, and what a sink checks of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "MESSAGE_KEYS", "BatchId", "OffsetRange", "require_columns", "require_ranges"]

KEYS: Final = ("topic", "partition", "offset")
"""The columns that identify a record; no two records have the same values."""

MESSAGE_KEYS: Final = ("topic", "messageId")
"""The columns that identify a message of Pulsar."""


class OffsetRange(NamedTuple):
    """Records of a partition from offset `start` (inclusive) to `end` (exclusive).

    A range starts where the partition's previous batch ended, even if the log has a gap there. A batch that is delivered
    again therefore has the same (topic, partition, start); its end may differ.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"

    def rows(self, df: DataFrame) -> DataFrame:
        """Return the rows of `df` that belong to this range."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        return df.where((F.col("topic") == self.topic) & (F.col("partition") == self.partition))


class BatchId(int):
    """The number of a batch, like the batch id of Spark's foreachBatch, with the offset ranges of the batch.

    The number increases within a member and is not comparable between members. It survives restarts in the metadata of
    offset commits: a member continues after the largest number in the commits of its partitions. The number of a batch
    that was never committed is not stored, and may be used again for other rows. What stays the same when rows are
    delivered again is (topic, partition, start) of each range: sinks must overwrite by that key, not by the number.
    """

    ranges: tuple[OffsetRange, ...]
    """One range per partition, in order of topic and partition."""

    def __new__(cls, number: int, ranges: Iterable[OffsetRange] = ()) -> Self:
        made = super().__new__(cls, number)
        made.ranges = tuple(ranges)
        return made

    def __repr__(self) -> str:
        return f"<BatchId {int(self)}: {', '.join(map(str, self.ranges))}>"

    def __str__(self) -> str:
        return str(int(self))

    def __reduce__(self) -> tuple[type[Self], tuple[int, tuple[OffsetRange, ...]]]:
        return type(self), (int(self), self.ranges)


def require_ranges(batch_id: BatchId) -> tuple[OffsetRange, ...]:
    """Return the ranges; raise ConfigError for the plain number that Spark's own foreachBatch passes."""
    ranges = getattr(batch_id, "ranges", None)
    if ranges is None:
        raise ConfigError(
            "batch_id",
            batch_id,
            "a BatchId of ForeachBatch: Spark's own foreachBatch and QueueForeachBatch pass no offset ranges",
        )
    return tuple(ranges)


def require_columns(df: DataFrame, columns: Iterable[str]) -> None:
    """Raise ConfigError if columns that a sink needs are missing, for example dropped by a transformation."""
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise ConfigError(
            f"the sink needs the columns {', '.join(columns)}; missing: {', '.join(missing)}, present: {df.columns}"
        )

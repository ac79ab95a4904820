"""What a batch is made of: ranges of offsets, and the number that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchId", "OffsetRange"]


class OffsetRange(NamedTuple):
    """Records of a partition from `start` to before `end`.

    A range starts where the partition's previous batch was committed, also where the log has gaps. A batch that is
    delivered again therefore has the same (topic, partition, start); its end may be another one.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"

    def rows(self, df: DataFrame) -> DataFrame:
        """The rows of `df` that belong to this range."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        return df.where((F.col("topic") == self.topic) & (F.col("partition") == self.partition))


class BatchId(int):
    """The number of a batch, as Spark's foreachBatch gives it, with the offset ranges that the batch holds.

    The number counts from 0 in each `ForeachBatch` and says nothing to another member or after a restart. What stays
    the same when a batch is delivered again is (topic, partition, start) of each range: sinks overwrite by that key.
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

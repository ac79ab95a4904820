"""`OffsetRange`: consecutive offsets of one partition, as a batch, a task or a file holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["OffsetRange"]


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

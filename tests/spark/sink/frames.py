"""DataFrames like those that the bridge passes to sinks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from asyncgroup.spark.arrow import frame_schema
from asyncgroup.spark.ranges import BatchId, OffsetRange


def batch_frame(
    spark: SparkSession, ranges: Sequence[OffsetRange], *, number: int = 0, word: str = "v"
) -> tuple[DataFrame, BatchId]:
    """Return a batch with a row for each offset of each range: key None, value `<word><offset>`."""
    stamp = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (None, f"{word}{offset}".encode(), part.topic, part.partition, offset, stamp, 0)
        for part in ranges
        for offset in range(part.start, part.end)
    ]
    return spark.createDataFrame(rows, frame_schema()), BatchId(number, ranges)

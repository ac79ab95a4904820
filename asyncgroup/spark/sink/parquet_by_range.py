"""`ParquetByRange`: store batches as Parquet files, in a directory for each range of offsets.

    store = ParquetByRange(spark, "/data/orders")
    await group.run("orders", ForeachBatch(spark, store))
    …
    df = ParquetByRange.read(spark, "/data/orders")            # each row once

`range_layout` describes the directories, and why readers see each row exactly once after any crash.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from asyncgroup.checks import check_count
from asyncgroup.spark.ranges import KEYS, BatchId, OffsetRange, require_columns, require_ranges
from asyncgroup.spark.sink.range_files import HadoopFiles, RangeFiles, StorageError
from asyncgroup.spark.sink.range_layout import RangeSlice, visible_slices
from asyncgroup.spark.sink.range_store import RANGE, RangeStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ParquetByRange"]

_log = logging.getLogger("asyncgroup.spark")

_READ_OPTIONS: Final = {"mergeSchema": "true", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Read the columns of all files, and raise an error rather than return fewer rows; overrides the session's settings."""

MIB: Final = 1024 * 1024

Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"


class ParquetByRange:
    """A function for `ForeachBatch`: writes each range of a batch to a directory named by topic, partition and start.

    A batch that is delivered again replaces its first delivery, even if its ranges are cut differently. Batches are written
    to a staging directory and renamed into place; readers see nothing of them before. Use `read`, which returns each row
    exactly once at any moment; other readers of the files may temporarily see a range together with its replacement.

    - `transform(df)` converts the batch to the rows to be stored; it must keep the columns topic, partition and offset.
    - `options`: Spark's options for writing Parquet (`compression`, …).
    - `compact_after`: after this number of new ranges in a partition, its small committed ranges are joined, for at most
      one partition per batch; None: only when `compact` is called. `target_bytes`: the size of a joined range.

    A recreated topic starts at offset 0 again, and its rows would replace the old ones: use another directory for it.
    Members of a group may share a directory. Executors write the rows, the driver renames directories; see `range_files`
    for the requirements on the file system, and `files` to use another implementation. Needs a classic session, not Spark
    Connect.
    """

    _needs_ranges = True  # refused by QueueForeachBatch, whose batches have none

    def __init__(
        self,
        spark: SparkSession,
        path: str | os.PathLike[str],
        *,
        transform: Transform | None = None,
        options: Mapping[str, str] | None = None,
        compact_after: int | None = 100,
        target_bytes: int = 128 * MIB,
        files: RangeFiles | None = None,
    ) -> None:
        if compact_after is not None:
            check_count("compact_after", compact_after)
        check_count("target_bytes", target_bytes)
        self._spark = spark
        self._path = os.fspath(path)
        self._transform = transform
        self._options = dict(options or {})
        self._compact_after = compact_after
        self._files = HadoopFiles(spark, path) if files is None else files
        self._store = RangeStore(self._files, functools.partial(secrets.token_hex, 6), target=target_bytes)
        if not self._files.has_atomic_rename:
            _log.warning(
                "%s: this file system renames by copying, so readers may see incomplete ranges; ranges are not compacted",
                path,
            )

    def __repr__(self) -> str:
        return f"<ParquetByRange {self._path}>"

    def __call__(self, df: DataFrame, batch_id: BatchId) -> None:
        """Store a batch; return when all of it can be read.

        Raises ConfigError if a column is missing, StorageError, and what Spark raises.
        """
        ranges = require_ranges(batch_id)
        rows = df if self._transform is None else self._transform(df)
        require_columns(rows, KEYS)
        stored = self._store.deliver(ranges, functools.partial(self._write, rows, ranges))
        if self._compact_after is not None:
            self._store.compact_fullest(stored, self._join, self._compact_after)

    def _write(self, rows: DataFrame, ranges: Sequence[OffsetRange], staging: str) -> None:
        """Write all ranges in one job: Spark partitions the files by the number of each row's range."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        numbered = rows.withColumn(RANGE, F.expr(_range_number_sql(ranges)))
        numbered.write.options(**self._options).partitionBy(RANGE).parquet(self._files.locate(staging))

    def _join(self, slices: Sequence[RangeSlice], staging: str) -> None:
        rows = _rows(self._spark, self._files, slices).coalesce(1).sortWithinPartitions("offset")
        rows.write.options(**self._options).parquet(self._files.locate(staging))

    def compact(self) -> int:
        """Join the small committed ranges of all partitions; return how many ranges were joined.

        The old ranges remain until the next compaction of their partition or `vacuum`, for readers that have started.
        Raises UsageError if the file system renames by copying: an interrupted compaction could hide rows.
        """
        return self._store.compact(self._join)

    def vacuum(self, *, stale_after: float = 24 * 3600.0) -> int:
        """Remove directories that readers ignore: replaced ranges, and staging directories older than `stale_after` seconds.

        Returns how many were removed. Readers that have started may fail if they use files of replaced ranges.
        """
        return self._store.vacuum(stale_after)

    @staticmethod
    def read(
        spark: SparkSession, path: str | os.PathLike[str], *, files: RangeFiles | None = None
    ) -> DataFrame:
        """Return all stored rows, each once, as of now.

        This includes rows of batches whose offsets are not committed yet; if such a batch is delivered again, its rows are
        replaced. The frame has the union of the columns of all files. Raises StorageError if there are no rows.
        """
        files = HadoopFiles(spark, path) if files is None else files
        slices = [slice_ for slice_ in visible_slices(files.ranges()) if not slice_.stored.empty]
        if not slices:
            raise StorageError(f"{path}: the directory holds no rows stored by ParquetByRange")
        return _rows(spark, files, slices)


def _range_number_sql(ranges: Sequence[OffsetRange]) -> str:
    """Return SQL for the number of a row's range. Column objects cost several JVM calls each: longer than the write itself
    for 50 ranges."""
    cases = [
        f"WHEN `partition` = {part.partition} AND topic = {_literal(part.topic)} "
        f"AND `offset` BETWEEN {part.start} AND {part.end - 1} THEN {number}"
        for number, part in enumerate(ranges)
    ]
    stray = "raise_error('a row of the batch is in none of its offset ranges')"
    return f"CASE {' '.join(cases)} ELSE CAST({stray} AS INT) END"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _rows(spark: SparkSession, files: RangeFiles, slices: Sequence[RangeSlice]) -> DataFrame:
    """Return the rows of some slices: one frame for all whole ranges, one for each range that is read in part."""
    from pyspark.sql import functions as F  # noqa: N812

    def load(names: Sequence[str]) -> DataFrame:
        return spark.read.options(**_READ_OPTIONS).parquet(*map(files.locate, names))

    frames = []
    if whole := [slice_.stored.name for slice_ in slices if slice_.is_whole]:
        frames.append(load(whole))
    frames += [
        load([slice_.stored.name]).where(F.col("offset").between(slice_.start, slice_.end - 1))
        for slice_ in slices
        if not slice_.is_whole
    ]
    return functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

"""`ParquetByRange`: batches as Parquet files, each range of offsets at a place of its own.

    store = ParquetByRange(spark, "/data/orders")
    await group.run("orders", ForeachBatch(spark, store))
    …
    df = ParquetByRange.read(spark, "/data/orders")            # each row once

How a directory is laid out, and why no crash can show a row twice or hide one, stands in `range_layout`.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from asyncgroup.checks import check_count
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.sink.batches import KEYS, RangedBatch, require_columns, require_ranges
from asyncgroup.spark.sink.range_files import HadoopFiles, RangeFiles, StorageError
from asyncgroup.spark.sink.range_layout import RangeSlice, visible_slices
from asyncgroup.spark.sink.range_store import RANGE, RangeStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ParquetByRange"]

_log = logging.getLogger("asyncgroup.spark")

_READ_OPTIONS: Final = {"mergeSchema": "true", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Columns of all files, and an error rather than fewer rows, whatever the session prefers."""

MIB: Final = 1024 * 1024

Transform: TypeAlias = "Callable[[DataFrame], DataFrame]"


class ParquetByRange:
    """A function for `ForeachBatch`: writes each range of a batch to a directory named by topic, partition and start.

    A batch that is delivered again replaces its first delivery, also where it is cut differently now. A delivery is
    written aside and renamed into place; nothing of it is seen before. Read with `read`, which gives each row once at
    any moment; who reads the files in another way may see a range and its replacement together for a while.

    - `transform(df)` makes the rows to be stored of the batch; it must keep the columns topic, partition and offset.
    - `options`: Spark's for writing Parquet (`compression`, …).
    - `compact_after`: when a partition has got so many more ranges, the small committed ones are joined, at most one
      partition in each batch; None: only when `compact` is called. `target_bytes`: how large a range becomes by that.

    A topic that was deleted and made anew begins at offset 0 again, and its rows replace the old ones: give it another
    directory. Members of a group may share one. Executors write the rows, the driver renames: see `range_files` for what
    is assumed of the file system, of which `files` may be another one. Needs a classic session.
    """

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
        self._spark, self._path = spark, os.fspath(path)
        self._transform, self._options = transform, dict(options or {})
        self._compact_after = compact_after
        self._files = HadoopFiles(spark, path) if files is None else files
        self._store = RangeStore(self._files, functools.partial(secrets.token_hex, 6), target=target_bytes)
        if not self._files.has_atomic_rename:
            _log.warning("%s renames by copying: readers may see half a range, nothing is compacted", path)

    def __repr__(self) -> str:
        return f"<ParquetByRange {self._path}>"

    def __call__(self, df: DataFrame, batch_id: RangedBatch) -> None:
        """Store a batch; returns when all of it can be read.

        Raises ConfigError if a column is missing, StorageError, and what Spark raises.
        """
        ranges = require_ranges(batch_id)
        rows = df if self._transform is None else self._transform(df)
        require_columns(rows, KEYS)
        stored = self._store.deliver(ranges, functools.partial(self._write, rows, ranges))
        if self._compact_after is not None:
            self._store.compact_fullest(stored, self._join, self._compact_after)

    def _write(self, rows: DataFrame, ranges: Sequence[OffsetRange], staging: str) -> None:
        """One job for all ranges: Spark splits the files by the number of each row's range."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        numbered = rows.withColumn(RANGE, F.expr(_range_number_sql(ranges)))
        numbered.write.options(**self._options).partitionBy(RANGE).parquet(self._files.locate(staging))

    def _join(self, slices: Sequence[RangeSlice], staging: str) -> None:
        rows = _rows(self._spark, self._files, slices).coalesce(1).sortWithinPartitions("offset")
        rows.write.options(**self._options).parquet(self._files.locate(staging))

    def compact(self) -> int:
        """Join the small committed ranges of all partitions; returns how many ranges went into others.

        What was joined stays until the next compaction of its partition or `vacuum`, for readers that have begun.
        Raises UsageError where renaming is copying: a compaction that breaks off there could hide rows.
        """
        return self._store.compact(self._join)

    def vacuum(self, *, stale_after: float = 24 * 3600.0) -> int:
        """Remove what no reader sees: replaced ranges, and deliveries that broke off `stale_after` seconds ago or more.

        Returns how many directories went. Readers that have begun may miss files of replaced ranges and fail.
        """
        return self._store.vacuum(stale_after)

    @staticmethod
    def read(
        spark: SparkSession, path: str | os.PathLike[str], *, files: RangeFiles | None = None
    ) -> DataFrame:
        """Everything that was stored, each row once, as it is at this moment.

        A row may be of a batch that is not yet committed; should that batch be delivered again, its rows are replaced.
        The frame has the columns of all files together. Raises StorageError if there are no rows.
        """
        files = HadoopFiles(spark, path) if files is None else files
        slices = [slice_ for slice_ in visible_slices(files.ranges()) if not slice_.stored.empty]
        if not slices:
            raise StorageError(f"{path}: no rows are stored there (by ParquetByRange)")
        return _rows(spark, files, slices)


def _range_number_sql(ranges: Sequence[OffsetRange]) -> str:
    """SQL, since each Column costs several calls into the JVM: for 50 ranges they took longer than the write."""
    cases = [
        f"WHEN `partition` = {part.partition} AND topic = {_literal(part.topic)} "
        f"AND `offset` BETWEEN {part.start} AND {part.end - 1} THEN {number}"
        for number, part in enumerate(ranges)
    ]
    stray = "raise_error('a row of the batch lies in none of its offset ranges')"
    return f"CASE {' '.join(cases)} ELSE CAST({stray} AS INT) END"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _rows(spark: SparkSession, files: RangeFiles, slices: Sequence[RangeSlice]) -> DataFrame:
    """The rows of some pieces: one frame for the whole ranges, one for each that counts only in part."""
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

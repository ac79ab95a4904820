"""Create a DataFrame from Arrow record batches with the columns of Spark's Kafka source, or those of Pulsar's messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from asyncgroup.spark.arrow import frame_schema, message_schema
from asyncgroup.spark.requirements import is_connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["create_frame", "resize_batches"]

SLICE_ROWS: Final = 2_000
SLICE_BYTES: Final = 4 * 1024 * 1024
"""The least rows and, approximately, the most bytes of a Spark partition; within these limits there is one per core.

Spark's driver copies each partition several times as a whole; arrays larger than its CPU caches and the garbage
collector's regions took a quarter more driver time for 100 MB."""

_settings = threading.Lock()
"""Held while the session's settings are changed for createDataFrame: members of one process may share a session."""


def create_frame(spark: SparkSession, batches: Sequence[pa.RecordBatch]) -> DataFrame:
    """Create a DataFrame of Arrow batches, with about as many Spark partitions as there are cores, or more if it is large.

    Small batches are combined first, as Spark makes a partition, and a task, of each batch. With Spark Connect the server
    chooses the partitions. Blocks: do not call it on the event loop.
    """
    import pyarrow as pa

    remote = is_connect(spark)
    slices = resize_batches(batches, 1 if remote else spark.sparkContext.defaultParallelism)
    names = slices[0].schema.names
    schema = (message_schema if "messageId" in names else frame_schema)(include_headers="headers" in names)
    if remote:
        return spark.createDataFrame(pa.Table.from_batches(slices), schema)
    with _arrow_settings(spark, max(part.num_rows for part in slices)):
        return spark.createDataFrame(pa.Table.from_batches(slices), schema)


def resize_batches(batches: Sequence[pa.RecordBatch], cores: int) -> list[pa.RecordBatch]:
    """Return the same rows in the same order, in batches of the size of a Spark partition.

    Only batches that have to be combined are copied. List columns start at offset 0 of their arrays, see `_rebase_lists`.
    """
    wanted = _slice_rows(batches, cores)
    slices: list[pa.RecordBatch] = []
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for part in (part for batch in batches for part in _split(batch, wanted)):
        if waiting and rows + part.num_rows / 2 > wanted:
            slices += _combine(waiting)
            waiting, rows = [], 0
        waiting.append(part)
        rows += part.num_rows
    return [_rebase_lists(part) for part in slices + _combine(waiting)]


def _rebase_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with list columns whose offsets start at 0; their values are shared, not copied.

    createDataFrame rebuilds list columns (`pyspark.sql.pandas.types._check_arrow_array_timestamps_localize`) by
    `ListArray.from_arrays(offsets, values, mask)`, and pyarrow refuses a mask where the offsets are a view: "Null
    bitmap with offsets slice not supported".
    """
    import pyarrow as pa

    columns = [_rebase_list(column) if pa.types.is_list(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _rebase_list(column: pa.ListArray) -> pa.ListArray:
    import pyarrow as pa

    if not column.offset:
        return column
    width = pa.int32().bit_width // 8
    ends = column.buffers()[1].slice(column.offset * width, (len(column) + 1) * width)
    validity = column.is_valid().buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(
        column.type, len(column), [validity, ends], column.null_count, children=[column.values]
    )


def _combine(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    import pyarrow as pa

    return (
        batches if len(batches) == 1 else list(pa.Table.from_batches(batches).combine_chunks().to_batches())
    )


def _slice_rows(batches: Sequence[pa.RecordBatch], cores: int) -> int:
    rows = sum(batch.num_rows for batch in batches)
    per_core = -(-rows // cores)
    row_bytes = sum(batch.nbytes for batch in batches) / max(1, rows)
    return int(max(1, min(max(per_core, SLICE_ROWS), SLICE_BYTES / max(1, row_bytes))))


def _split(batch: pa.RecordBatch, wanted: int) -> Iterator[pa.RecordBatch]:
    """Split a batch that is too long into views of about equal length."""
    count = max(1, round(batch.num_rows / wanted))
    length = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, length):
        yield batch.slice(start, length)


@contextmanager
def _arrow_settings(spark: SparkSession, slice_rows: int) -> Iterator[None]:
    """Set Arrow settings of the session for one createDataFrame: rows per partition, and no local relation.

    Without the second one Spark's driver would decode small data itself. Both are read when the DataFrame is created, and
    restored afterwards. A concurrent createDataFrame of the user may see them, which affects its speed only.
    """
    wanted: Mapping[str, str] = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(slice_rows),
        "spark.sql.execution.arrow.localRelationThreshold": "0",
    }
    with _settings:
        before = {key: spark.conf.get(key) for key in wanted}
        for key, value in wanted.items():
            spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                spark.conf.set(key, str(old))

"""From batches of records to a DataFrame with the columns of Spark's own Kafka source."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from asyncgroup.spark.schema import frame_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["create_frame"]

SLICE_ROWS: Final = 2_000
SLICE_BYTES: Final = 32 * 1024 * 1024
"""A DataFrame has a Spark partition per core, but none below so many rows and none above so many bytes."""

_settings = threading.Lock()
"""createDataFrame reads the session's settings; several members of one process share a session."""


def create_frame(spark: SparkSession, batches: Sequence[pa.RecordBatch]) -> DataFrame:
    """A DataFrame of Arrow batches, cut into about as many Spark partitions as there are cores.

    The batches are joined first: left alone, every one of them would become a partition, and a task, of its own.
    Blocks; to be called off the event loop.
    """
    import pyarrow as pa

    table = pa.Table.from_batches(batches).combine_chunks()
    has_headers = "headers" in table.column_names
    with _tuned(spark, _slice_rows(table, spark.sparkContext.defaultParallelism)):
        return spark.createDataFrame(table, frame_schema(include_headers=has_headers))


def _slice_rows(table: pa.Table, cores: int) -> int:
    row_bytes = max(1, table.nbytes // max(1, table.num_rows))
    per_core = -(-table.num_rows // cores)
    return int(max(1, min(max(per_core, SLICE_ROWS), SLICE_BYTES // row_bytes)))


@contextmanager
def _tuned(spark: SparkSession, slice_rows: int) -> Iterator[None]:
    """Rows per Spark partition, and no decoding of rows in the driver, for one createDataFrame.

    The settings are read when the DataFrame is made and put back then; a createDataFrame of the user's at the same
    moment could see them, which changes its speed and nothing else.
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

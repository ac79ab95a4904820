"""Where rows go: format "asyncgroup" as a sink of Spark's own writers, and ready sinks for the bridge.

- `df.write.format("asyncgroup")` and `df.writeStream.format("asyncgroup")` produce to topics, by the columns and
  options of Spark's Kafka sink (`writer`, `columns`, `write_settings`; what a crash may do to it: `delivery`). Spark
  refuses the output mode "update" for every sink in Python: write each batch in `foreachBatch` by `df.write` then.
- `ParquetByRange`, `Upsert` and `OffsetsInSink` are functions for `ForeachBatch`. Each is told the offset ranges of its
  batch, and a second delivery of them does no harm.
"""

from asyncgroup.spark.sink.offsets_in_sink import OffsetGapError, OffsetsInSink, OffsetsMovedError
from asyncgroup.spark.sink.parquet_by_range import ParquetByRange
from asyncgroup.spark.sink.range_files import StorageError
from asyncgroup.spark.sink.sql import Dialect
from asyncgroup.spark.sink.upsert import DbApiMerge, Merger, Upsert

__all__ = [
    "DbApiMerge",
    "Dialect",
    "Merger",
    "OffsetGapError",
    "OffsetsInSink",
    "OffsetsMovedError",
    "ParquetByRange",
    "StorageError",
    "Upsert",
]

"""Sinks: the format "asyncgroup" for Spark's writers, and functions for `ForeachBatch` that store batches.

- `df.write.format("asyncgroup")` and `df.writeStream.format("asyncgroup")` produce to topics, with the columns and
  options of Spark's Kafka sink (`writer`, `write_settings`). Spark does not allow the output mode "update" for sinks
  written in Python; use `df.write` in `foreachBatch` instead.
- `ParquetByRange`, `Upsert` and `OffsetsInSink` are functions for `ForeachBatch`. They use the offset ranges of a batch
  so that a redelivered batch is not stored twice.

- The writer: `writer`, `write_settings`, with `key_partitions` and the producers of a worker in `producer_cache`; `transactions` is
  the room of the one that commits each batch once.
- Stored ranges: `parquet_by_range`, over `range_store` with `range_layout` (rules, pure) and `range_files` (file systems).
- Databases: `upsert` and `offsets_in_sink`, over `sql`.
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

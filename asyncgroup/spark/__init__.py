"""Spark integration: a Kafka data source and sink, and a bridge from a consumer group to foreachBatch.

The data source (`format("asyncgroup")`): executors fetch ranges of offsets. It has the options of Spark's Kafka source
and a few more (`asyncgroup.spark.source.options`):

    from asyncgroup.spark import local_session, register

    spark = local_session()
    register(spark)                                        # not needed if asyncgroup was installed from a wheel
    orders = (spark.readStream.format("asyncgroup").option("kafka.bootstrap.servers", "localhost:9092")
              .option("subscribe", "orders").option("kafka.group.id", "reports").load())

The bridge: a consumer group's records become DataFrames; offsets are committed after the function returns:

    from asyncgroup import ConsumerConfig, ConsumerGroup
    from asyncgroup.spark import ForeachBatch, local_session

    spark = local_session()

    def store(df, batch_id):
        for part in batch_id.ranges:                       # a redelivered range has the same start: same directory
            part.rows(df).write.mode("overwrite").parquet(f"/data/{part.topic}/{part.partition}/{part.start}")

    async with ConsumerGroup("localhost:9092", "store", ConsumerConfig(auto_offset_reset="earliest")) as group:
        await group.run("orders", ForeachBatch(spark, store))

The same from a work queue, with an outcome for each record: `QueueForeachBatch`, and `FailedRows` for the rows that failed.

Sinks for the bridge: `ParquetByRange`, `Upsert` and `OffsetsInSink` (exactly once).

Needs the extra `spark` (pyspark, pyarrow) and Java 17 or later. Names are imported on first use, because every new
Python worker of an executor imports this package.

The rooms are `source`, `sink` and `bridge`, and `examples`. Beside them:

- `data_source` is the class that Spark loads, `autoregister` lets Spark find it; `session` creates sessions, `requirements` checks what
  they need.
- `ranges` and `arrow`: offset ranges, and records as Arrow batches. `option_words`: errors in the words of options; `api_timeout`:
  the time for requests.
- Python workers: `worker_process`, and the daemons `preloading_daemon` and `quiet_daemon` that fork them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.spark.bridge.batches import BatchInterrupted, Retry
    from asyncgroup.spark.bridge.failed_rows import FailedRows
    from asyncgroup.spark.bridge.foreach_batch import ForeachBatch
    from asyncgroup.spark.bridge.queue_foreach_batch import QueueForeachBatch
    from asyncgroup.spark.bridge.statistics import BridgeStatistics
    from asyncgroup.spark.ranges import BatchId, OffsetRange
    from asyncgroup.spark.requirements import SparkUnavailable, check_session, require_spark
    from asyncgroup.spark.session import configure, local_session, register
    from asyncgroup.spark.sink import (
        DbApiMerge,
        Dialect,
        OffsetGapError,
        OffsetsInSink,
        OffsetsMovedError,
        ParquetByRange,
        StorageError,
        Upsert,
    )

__all__ = [
    "BatchId",
    "BatchInterrupted",
    "BridgeStatistics",
    "DbApiMerge",
    "Dialect",
    "FailedRows",
    "ForeachBatch",
    "OffsetGapError",
    "OffsetRange",
    "OffsetsInSink",
    "OffsetsMovedError",
    "ParquetByRange",
    "QueueForeachBatch",
    "Retry",
    "SparkUnavailable",
    "StorageError",
    "Upsert",
    "check_session",
    "configure",
    "local_session",
    "register",
    "require_spark",
]

_NAMES = {
    "bridge.batches": ["BatchInterrupted", "Retry"],
    "bridge.failed_rows": ["FailedRows"],
    "bridge.foreach_batch": ["ForeachBatch"],
    "bridge.queue_foreach_batch": ["QueueForeachBatch"],
    "bridge.statistics": ["BridgeStatistics"],
    "ranges": ["BatchId", "OffsetRange"],
    "requirements": ["SparkUnavailable", "check_session", "require_spark"],
    "session": ["configure", "local_session", "register"],
    "sink": [
        "DbApiMerge",
        "Dialect",
        "OffsetGapError",
        "OffsetsInSink",
        "OffsetsMovedError",
        "ParquetByRange",
        "StorageError",
        "Upsert",
    ],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)

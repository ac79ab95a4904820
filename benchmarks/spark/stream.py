"""Measure a streaming query: rows per second by trigger and by addBatch, and the CPU time of all Spark processes."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.spark.cases import StreamSettings
from benchmarks.spark.process_tree import tree_cpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["measure", "read_stream"]

CHECK_SECONDS: Final = 0.02
"""Seconds between two checks for the end of the first batch."""


def read_stream(
    spark: SparkSession, format_: str, servers: str, topic: str, options: dict[str, str]
) -> DataFrame:
    """Return a streaming DataFrame of a topic's records; `format_` is the source's format."""
    source = spark.readStream.format(format_).option("kafka.bootstrap.servers", servers)
    return source.option("subscribe", topic).options(**options).load()


def measure(spark: SparkSession, given: dict[str, Any]) -> dict[str, float | None]:
    """Read a whole topic; return the figures of a source (see `Measurement`)."""
    settings = StreamSettings(**given)
    options = settings.options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(settings.batch)}
    frame = read_stream(spark, settings.format, settings.bootstrap_servers, settings.topic, options)
    with tempfile.TemporaryDirectory(prefix="asyncgroup-benchmark-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            cpu = _cpu_after_first_batch(query, settings.limit)
            query.awaitTermination(round(settings.limit))
            if query.isActive:
                raise TimeoutError(f"the query took longer than {settings.limit:g} s")
            cpu_end = tree_cpu(os.getpid())
            return _figures(query, None if cpu is None or cpu_end is None else cpu_end - cpu)
        finally:
            query.stop()


def _cpu_after_first_batch(query: StreamingQuery, limit: float) -> float | None:
    """Return the CPU seconds of all processes at the end of the first batch; None if the system has no such figure."""
    end = time.perf_counter() + limit
    while query.isActive and query.lastProgress is None and time.perf_counter() < end:
        time.sleep(CHECK_SECONDS)
    return tree_cpu(os.getpid())


def _figures(query: StreamingQuery, cpu: float | None) -> dict[str, float | None]:
    batches = [each for each in query.recentProgress if each.numInputRows]
    first, rest = batches[0], batches[1:]
    rows = sum(each.numInputRows for each in rest)
    trigger_seconds = sum(each.durationMs["triggerExecution"] for each in rest) / 1000
    add_seconds = sum(each.durationMs["addBatch"] for each in rest) / 1000
    return {
        "rows": rows + first.numInputRows,
        "batches": len(batches),
        "rate": rows / trigger_seconds if trigger_seconds else 0.0,
        "add_rate": rows / add_seconds if add_seconds else 0.0,
        "cpu": cpu / rows * 1e6 if cpu is not None and rows else None,
        "overhead": (trigger_seconds - add_seconds) / len(rest) if rest else None,
        "first": first.durationMs["triggerExecution"] / 1000,
    }

"""Rows written to a topic by a batch query, as a measured task: by our sink or by Spark's own."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.spark.cases import SinkSettings
from benchmarks.spark.process_tree import tree_cpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

TASKS: Final = 2
"""As many as `local_session` has cores."""

PRODUCER: Final = {
    "kafka.acks": "all",
    # ours is not idempotent yet
    "kafka.enable.idempotence": "false",
    "kafka.linger.ms": "5",
    "kafka.batch.size": str(128 << 10),
    "kafka.compression.type": "none",
}
"""What both sinks are told: where their own defaults differ, nobody's shall decide."""


def measure(spark: SparkSession, given: dict[str, Any]) -> dict[str, float | None]:
    """Rows a second of the whole query, and CPU of all processes of Spark."""
    settings = SinkSettings(**given)
    writing = _rows(spark, settings.rows, settings.size).write.format(settings.format).mode("append")
    writing = writing.option("kafka.bootstrap.servers", settings.bootstrap_servers).options(**PRODUCER)
    cpu, begun = tree_cpu(os.getpid()), time.perf_counter()
    writing.option("topic", settings.topic).save()
    seconds, cpu_end = time.perf_counter() - begun, tree_cpu(os.getpid())
    return {
        "rate": settings.rows / seconds,
        "cpu": None if cpu is None or cpu_end is None else (cpu_end - cpu) / settings.rows * 1e6,
    }


def _rows(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Keys of eight bytes and values of `size`, made by Spark as they are written."""
    text = "rpad(lpad(cast(id as string), 8, '0'), {}, '.')"
    columns = [
        f"cast({text.format(width)} as binary) {name}" for name, width in (("key", 8), ("value", size))
    ]
    return spark.range(0, rows, 1, TASKS).selectExpr(*columns)

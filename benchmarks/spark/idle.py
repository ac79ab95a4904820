"""The CPU time of a query on a topic without new records."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.spark.cases import IdleSettings
from benchmarks.spark.process_tree import cpu_by_process
from benchmarks.spark.stream import read_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["measure"]

CHECK_SECONDS: Final = 0.1
STARTING: Final = "Initializing"
"""The beginning of a query's status message while it starts; other messages differ by where the query waits."""


def measure(spark: SparkSession, given: dict[str, Any]) -> dict[str, float | None]:
    """Measure the CPU seconds per second of a waiting query: of all processes of Spark, and of the broker."""
    settings = IdleSettings(**given)
    if not settings.format:
        return _watch(settings)
    options = {"startingOffsets": "latest"}
    frame = read_stream(spark, settings.format, settings.bootstrap_servers, settings.topic, options)
    with tempfile.TemporaryDirectory(prefix="asyncgroup-benchmark-") as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            _wait_until_started(query, settings.limit)
            time.sleep(settings.settle)
            return _watch(settings)
        finally:
            query.stop()


def _wait_until_started(query: StreamingQuery, limit: float) -> None:
    end = time.perf_counter() + limit
    while query.status["message"].startswith(STARTING):
        if not query.isActive or time.perf_counter() > end:
            raise RuntimeError(f"the query does not start: {query.status} {query.exception()}")
        time.sleep(CHECK_SECONDS)


def _watch(settings: IdleSettings) -> dict[str, float | None]:
    watched = {"share": os.getpid(), "broker": settings.broker_pid}
    begun = time.perf_counter()
    before = {name: _cpu(pid) for name, pid in watched.items()}
    time.sleep(settings.seconds)
    after = {name: _cpu(pid) for name, pid in watched.items()}
    seconds = time.perf_counter() - begun
    return {name: _share(before[name], after[name], seconds) for name in watched}


def _cpu(pid: int | None) -> dict[int, float] | None:
    return None if pid is None else cpu_by_process(pid)


def _share(before: dict[int, float] | None, after: dict[int, float] | None, seconds: float) -> float | None:
    """Return the CPU seconds per second. Workers that ended count as 0: Spark ends idle ones only."""
    if before is None or after is None:
        return None
    return sum(cpu - before.get(pid, 0.0) for pid, cpu in after.items()) / seconds

"""asyncgroup's bridge: claims of a group are passed to `ForeachBatch`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from benchmarks.run_group import run_until
from benchmarks.spark.batch_meter import BatchMeter
from benchmarks.spark.cases import BridgeSettings, LatencySettings
from benchmarks.spark.latency import BatchTimer, Commits, single_batches
from benchmarks.spark.process_tree import tree_cpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncgroup import ConsumerConfig, TopicPartition
    from asyncgroup.offsets import CommittedOffset
    from asyncgroup.spark import BatchId

__all__ = ["latency", "rate"]

MAX_BYTES: Final = 512 << 20
"""Bytes of a batch: high enough that only the number of rows limits a batch."""
MAX_WAIT: Final = 1.0
"""Seconds, long enough that only the number of rows ends a batch; the last batch of a topic waits that long."""


def rate(spark: SparkSession, given: dict[str, Any]) -> dict[str, float | None]:
    """Measure rows per second, without the first and the last batch."""
    return asyncio.run(_rate(spark, BridgeSettings(**given)))


async def _rate(spark: SparkSession, settings: BridgeSettings) -> dict[str, float | None]:
    from asyncgroup import ConsumerGroup
    from asyncgroup.spark import ForeachBatch

    meter = BatchMeter(settings.rows, settings.batch)
    loop, finished = asyncio.get_running_loop(), asyncio.Event()

    def store(df: DataFrame, batch_id: BatchId) -> None:
        df.write.format("noop").mode("overwrite").save()
        rows = sum(part.end - part.start for part in batch_id.ranges)
        if not meter.add(rows, time.perf_counter(), tree_cpu(os.getpid())):
            loop.call_soon_threadsafe(finished.set)

    handler = ForeachBatch(spark, store, max_rows=settings.batch, max_bytes=MAX_BYTES, max_wait=MAX_WAIT)
    async with asyncio.timeout(settings.limit):
        async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, _config()) as group:
            await run_until(finished, group, settings.topic, handler)
    return meter.figures()


def _config() -> ConsumerConfig:
    from asyncgroup import ConsumerConfig

    return ConsumerConfig(auto_offset_reset="earliest")


class _Hook:
    """A hook that records successful commits."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    def on_commit(
        self,
        group_id: str,  # noqa: ARG002
        offsets: Mapping[TopicPartition, CommittedOffset],
        failed: Mapping[TopicPartition, Exception] | None,
    ) -> None:
        """Record the offsets that were committed."""
        for tp, committed in offsets.items():
            if failed is None or tp not in failed:
                self._commits.add(tp, committed.offset)


def latency(spark: SparkSession, given: dict[str, Any]) -> dict[str, float]:
    """Measure the seconds from producing a small batch until it is committed; batches don't wait for further rows."""
    return asyncio.run(_latency(spark, LatencySettings(**given)))


async def _latency(spark: SparkSession, settings: LatencySettings) -> dict[str, float]:
    from asyncgroup import ConsumerGroup
    from asyncgroup.spark import ForeachBatch

    commits, timer = Commits(), BatchTimer()

    def store(df: DataFrame, _batch_id: BatchId) -> None:
        timer.called()
        df.write.format("noop").mode("overwrite").save()
        timer.returned()

    handler = ForeachBatch(spark, store, max_wait=0.0)
    async with asyncio.timeout(settings.limit):
        async with ConsumerGroup(
            settings.bootstrap_servers, settings.group_id, _config(), hooks=[_Hook(commits)]
        ) as group:
            running = asyncio.create_task(group.run(settings.topic, handler))
            await single_batches(settings, timer, commits, running)
            await group.aclose()
            await running
    return timer.figures(settings.warm_up)

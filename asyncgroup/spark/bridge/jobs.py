"""Calls of the user's function in a thread of their own, and the way to stop the Spark jobs in them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.frames import create_frame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchFunction", "SparkJobs"]

_log = logging.getLogger("asyncgroup.spark")

BatchFunction: TypeAlias = "Callable[[DataFrame, BatchId], Any]"

CANCEL_INTERVAL: Final = 0.5
"""Seconds between cancellations: the function may start another job after the first was cancelled."""

_tags = itertools.count()


class SparkJobs:
    """One call at a time, always in the same thread: Spark pins a JVM thread, with its job tags, to each of ours."""

    def __init__(self, spark: SparkSession, fn: BatchFunction) -> None:
        self._spark, self._fn = spark, fn
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-foreach-batch")
        self._canceller = ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-cancel-jobs")

    async def run(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, interrupt: asyncio.Future[None]
    ) -> None:
        """Call the function; returns, or raises what it raised, when its thread is free again and not before.

        A thread cannot be cancelled: when `interrupt` is set, the Spark jobs of the call are, until it ends.
        """
        loop = asyncio.get_running_loop()
        tag = f"asyncgroup-{os.getpid()}-{next(_tags)}"
        call = loop.run_in_executor(self._worker, self._call, records, batch_id, tag)
        first: list[asyncio.Future[Any]] = [call, interrupt]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        while not call.done():
            await loop.run_in_executor(self._canceller, self._cancel, tag)
            await asyncio.wait({call}, timeout=CANCEL_INTERVAL)
        error = call.result()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the threads; only while no call is under way."""
        self._worker.shutdown()
        self._canceller.shutdown()

    def _call(self, records: Sequence[pa.RecordBatch], batch_id: BatchId, tag: str) -> BaseException | None:
        """In the thread. The exception is returned, since a future cannot carry every kind of it."""
        context = self._spark.sparkContext
        try:
            context.addJobTag(tag)
            try:
                context.setJobDescription(f"batch {batch_id}: {', '.join(map(str, batch_id.ranges))}")
                self._fn(create_frame(self._spark, records), batch_id)
            finally:
                context.removeJobTag(tag)
        except BaseException as error:  # noqa: BLE001  it goes on in the event loop
            return error
        return None

    def _cancel(self, tag: str) -> None:
        try:
            self._spark.sparkContext.cancelJobsWithTag(tag)
        except Exception as error:  # noqa: BLE001  a JVM that is gone has no jobs either
            _log.warning("Spark jobs could not be cancelled: %s", error)

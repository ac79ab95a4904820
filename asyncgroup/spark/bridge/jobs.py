"""Calls of the user's function in a thread of their own, and the way to stop the Spark jobs in them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from asyncgroup.lifecycle import describe
from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.frames import create_frame
from asyncgroup.spark.requirements import SparkUnavailable, is_connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchFunction", "CallResult", "SparkJobs"]

_log = logging.getLogger("asyncgroup.spark")

BatchFunction: TypeAlias = "Callable[[DataFrame, BatchId], Any]"

CANCEL_INTERVAL: Final = 0.5
"""Seconds between cancellations: the function may start another job after the first was cancelled."""

MAX_UNCOLLECTED_BYTES: Final = 256 * 1024 * 1024
"""How much of finished batches Java may hold for objects that Python has not collected yet."""

_tags = itertools.count()


class CallResult(NamedTuple):
    """What came of a call: the exception that the function raised, and the seconds that its parts took."""

    error: BaseException | None
    frame_seconds: float
    fn_seconds: float


class SparkJobs:
    """One call at a time, always in the same thread: Spark pins a JVM thread, with its job tags, to each of ours."""

    def __init__(self, spark: SparkSession, fn: BatchFunction) -> None:
        self._spark, self._fn = spark, fn
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-foreach-batch")
        self._canceller = ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-cancel-jobs")
        self._frames = _FrameReclaimer()

    async def run(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, interrupted: asyncio.Future[None]
    ) -> CallResult:
        """Call the function; returns when its thread is free again and not before.

        A thread cannot be cancelled: when `interrupted` is set, the Spark jobs of the call are, until it ends.
        """
        loop = asyncio.get_running_loop()
        tag = f"asyncgroup-{os.getpid()}-{next(_tags)}"
        call = loop.run_in_executor(self._worker, self._work, records, batch_id, tag, loop.time)
        first: list[asyncio.Future[Any]] = [call, interrupted]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        while not call.done():
            await loop.run_in_executor(self._canceller, self._cancel, tag)
            await asyncio.wait({call}, timeout=CANCEL_INTERVAL)
        return call.result()

    def close(self) -> None:
        """End the threads; only while no call is under way."""
        self._worker.shutdown()
        self._canceller.shutdown()

    def _work(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, tag: str, time: Callable[[], float]
    ) -> CallResult:
        """In the thread."""
        called = self._call(records, batch_id, tag, time)
        self._frames.collect()
        return called

    def _call(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, tag: str, time: Callable[[], float]
    ) -> CallResult:
        """The exception is returned, since a future cannot carry every kind of it."""
        began = framed = time()
        error: BaseException | None = None
        try:
            with _tagged(self._spark, tag):
                if not is_connect(self._spark):
                    ranges = ", ".join(map(str, batch_id.ranges))
                    self._spark.sparkContext.setJobDescription(f"batch {batch_id}: {ranges}")
                frame = create_frame(self._spark, records)
                framed = time()
                self._frames.track(frame, sum(batch.nbytes for batch in records))
                self._fn(frame, batch_id)
        except asyncio.CancelledError as raised:
            # as itself it would pass for a cancellation of whoever waits for the group
            error = RuntimeError("the function raised CancelledError")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001  it goes on in the event loop
            error = raised
            if isinstance(raised, Exception) and _java_has_ended(self._spark):
                error = SparkUnavailable(f"Spark's Java process has ended: {describe(raised)}")
                error.__cause__ = raised
        return CallResult(error, framed - began, time() - framed)

    def _cancel(self, tag: str) -> None:
        try:
            if is_connect(self._spark):
                self._spark.interruptTag(tag)
            else:
                self._spark.sparkContext.cancelJobsWithTag(tag)
        except Exception as error:  # noqa: BLE001  a JVM that is gone has no jobs either
            _log.warning("Spark jobs could not be cancelled: %s", error)


@contextlib.contextmanager
def _tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Spark jobs of the block have this tag. Raises SparkUnavailable if the session was stopped, or its Java is gone.

    Where the tag cannot be taken away Spark has gone meanwhile: the next batch says so, and this one is what its
    function has made of it.
    """
    remote = is_connect(spark)
    add, remove = (
        (spark.addTag, spark.removeTag)
        if remote
        else (spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag)
    )
    if _is_stopped(spark):
        raise SparkUnavailable("the SparkSession of the ForeachBatch was stopped")
    try:
        add(tag)
    except Exception as error:  # whatever py4j makes of a Java that is gone
        raise SparkUnavailable(f"Spark does not answer: {describe(error)}") from error
    try:
        yield
    finally:
        try:
            remove(tag)
        except Exception as error:  # noqa: BLE001  whatever py4j makes of it
            _log.warning("the job tag of a batch is left in Spark: %s", describe(error))


def _is_stopped(spark: SparkSession) -> bool:
    if is_connect(spark):
        return bool(getattr(spark, "is_stopped", False))
    context = spark.sparkContext
    return getattr(context, "_jsc", context) is None


def _java_has_ended(spark: SparkSession) -> bool:
    """Return whether the session's Java process is gone: only a new session helps then."""
    from py4j.protocol import Py4JNetworkError

    try:
        spark.sparkContext._jsc.sc().isStopped()
    except (OSError, Py4JNetworkError):
        return True
    except Exception:  # noqa: BLE001  a session without Java, or one that was stopped
        return False
    return False


class _FrameReclaimer:
    """What Java holds for DataFrames that are of no use any more.

    py4j's objects refer to themselves, so that only Python's collector frees them, and what they stand for in Java. A
    bridge makes few objects and many bytes: left alone, Java would be out of memory long before Python collects its
    oldest generation, into which objects come when a batch takes its time.
    """

    def __init__(self) -> None:
        self._newest: weakref.ref[Any] | None = None
        self._size = self._kept = 0

    def track(self, frame: Any, size: int) -> None:
        """A DataFrame of `size` bytes was made."""
        java = getattr(frame, "_jdf", None)
        self._newest, self._size = None if java is None else weakref.ref(java), size

    def collect(self) -> None:
        """The function has returned. All generations are collected, which takes tens of milliseconds, only at times."""
        gc.collect(1)
        # it is as old as anything that the function has made of it
        if self._newest is None or self._newest() is None:
            return
        self._kept += self._size
        if self._kept > MAX_UNCOLLECTED_BYTES:
            self._kept = 0
            gc.collect()

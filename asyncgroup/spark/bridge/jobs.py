"""Call the user's function in a thread, and cancel its Spark jobs on request."""

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

from asyncgroup.checks import is_async
from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import describe_error
from asyncgroup.spark.bridge.frames import create_frame
from asyncgroup.spark.ranges import BatchId
from asyncgroup.spark.requirements import SparkUnavailable, is_connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BatchFunction", "CallResult", "SparkJobs", "check_function"]

_log = logging.getLogger("asyncgroup.spark")

BatchFunction: TypeAlias = "Callable[[DataFrame, BatchId], Any]"

CANCEL_INTERVAL: Final = 0.5
"""Seconds between cancellations: after its job was cancelled, the function may start another one."""

MAX_UNCOLLECTED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of finished batches that the JVM may hold for Python objects that are not garbage-collected yet."""

_tags = itertools.count()


class CallResult(NamedTuple):
    """The result of a call of the user's function."""

    error: BaseException | None
    """What the function, or the preparation of its call, has raised."""
    frame_seconds: float
    """Time taken to create the DataFrame."""
    fn_seconds: float
    """Time taken by the function."""


def check_function(key: str, function: object, allowed: str) -> None:
    """Raise ConfigError unless `function` can be called in a thread: `allowed` describes it."""
    if not callable(function) or is_async(function):
        raise ConfigError(key, function, allowed)


class SparkJobs:
    """Runs one call at a time, always in the same thread: pyspark pins a JVM thread, with its job tags, to each thread."""

    def __init__(self, spark: SparkSession, fn: BatchFunction) -> None:
        self._spark = spark
        self._fn = fn
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-foreach-batch")
        self._canceller = ThreadPoolExecutor(1, thread_name_prefix="asyncgroup-cancel-jobs")
        self._frames = _FrameReclaimer()

    async def run(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, interrupted: asyncio.Future[None]
    ) -> CallResult:
        """Call the function; return only after its thread is free again.

        A thread cannot be cancelled. When `interrupted` is set, the call's Spark jobs are cancelled repeatedly until it
        returns.
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
        """End the threads. No call may be running."""
        self._worker.shutdown()
        self._canceller.shutdown()

    def _work(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, tag: str, time: Callable[[], float]
    ) -> CallResult:
        """Make the call, then free memory of the JVM. Runs in the thread."""
        called = self._call(records, batch_id, tag, time)
        self._frames.collect()
        return called

    def _call(
        self, records: Sequence[pa.RecordBatch], batch_id: BatchId, tag: str, time: Callable[[], float]
    ) -> CallResult:
        """Make the call. Exceptions are returned, since a future cannot hold every kind (StopIteration)."""
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
            # raised unchanged it would look like a cancellation of the task that runs the group
            error = RuntimeError("the function raised CancelledError")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001  raised in the event loop
            error = raised
            if isinstance(raised, Exception) and _java_has_ended(self._spark):
                error = SparkUnavailable(f"Spark's Java process has ended: {describe_error(raised)}")
                error.__cause__ = raised
        return CallResult(error, framed - began, time() - framed)

    def _cancel(self, tag: str) -> None:
        try:
            if is_connect(self._spark):
                self._spark.interruptTag(tag)
            else:
                self._spark.sparkContext.cancelJobsWithTag(tag)
        except Exception as error:  # noqa: BLE001  a JVM that has ended has no jobs to cancel
            _log.warning("Spark jobs of an interrupted batch could not be cancelled: %s", error)


@contextlib.contextmanager
def _tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Tag the Spark jobs of the block. Raises SparkUnavailable if the session was stopped or its JVM has ended.

    A failure to remove the tag is only logged: Spark ended during the batch, the function has returned or raised by
    itself, and the next batch raises SparkUnavailable.
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
    except Exception as error:  # py4j raises various types if the JVM has ended
        raise SparkUnavailable(f"Spark does not answer: {describe_error(error)}") from error
    try:
        yield
    finally:
        try:
            remove(tag)
        except Exception as error:  # noqa: BLE001  see above
            _log.warning("the job tag of a batch could not be removed: %s", describe_error(error))


def _is_stopped(spark: SparkSession) -> bool:
    if is_connect(spark):
        return bool(getattr(spark, "is_stopped", False))
    context = spark.sparkContext
    return getattr(context, "_jsc", context) is None


def _java_has_ended(spark: SparkSession) -> bool:
    """Return whether the session's JVM has ended, so that only a new session can work."""
    from py4j.protocol import Py4JNetworkError

    try:
        spark.sparkContext._jsc.sc().isStopped()
    except (OSError, Py4JNetworkError):
        return True
    except Exception:  # noqa: BLE001  a Connect session, which has no JVM here, or a stopped one
        return False
    return False


class _FrameReclaimer:
    """Runs Python's garbage collector so that the JVM can free DataFrames of finished batches.

    py4j's proxy objects are in reference cycles, so only the garbage collector frees them, and the JVM objects that they
    hold. A bridge creates few objects but many bytes: the JVM would run out of memory long before Python collects its
    oldest generation, which objects reach when a batch takes long.
    """

    def __init__(self) -> None:
        self._newest: weakref.ref[Any] | None = None
        self._size = 0  # bytes of the newest frame
        self._kept = 0  # bytes of frames that may still be held since the last full collection

    def track(self, frame: Any, size: int) -> None:
        """Record that a DataFrame of `size` bytes was created."""
        java = getattr(frame, "_jdf", None)
        self._newest, self._size = None if java is None else weakref.ref(java), size

    def collect(self) -> None:
        """Collect garbage after a call; all generations, which takes tens of milliseconds, only when enough bytes remain."""
        gc.collect(1)
        # if the frame is freed, then so is everything that the function has derived from it, which is not older
        if self._newest is None or self._newest() is None:
            return
        self._kept += self._size
        if self._kept > MAX_UNCOLLECTED_BYTES:
            self._kept = 0
            gc.collect()

"""`QueueForeachBatch`: passes the records of a work queue to Spark in batches, and ends each delivery by the function's result."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from asyncgroup.errors import ClosedError, ConfigError, UsageError
from asyncgroup.lifecycle import add_note, cancel_and_wait, describe_error, start_task, wait_shielded
from asyncgroup.spark.bridge.arguments import BridgeArguments, check_batch_limits, check_flag
from asyncgroup.spark.bridge.batches import Retry, RetryState
from asyncgroup.spark.bridge.commits import BatchNumbers
from asyncgroup.spark.bridge.failed_rows import FailedRows, Outcome, failed_records
from asyncgroup.spark.bridge.jobs import SparkJobs, check_function
from asyncgroup.spark.bridge.queue_batch import QueueBatch
from asyncgroup.spark.bridge.queue_rows import MessageRows, OffsetRows, QueueRows
from asyncgroup.spark.bridge.statistics import BridgeMetrics, BridgeStatistics
from asyncgroup.spark.ranges import MESSAGE_KEYS, BatchId
from asyncgroup.spark.requirements import SparkUnavailable
from asyncgroup.workqueue import BatchPolicy, DeliveryBatch, WorkQueue
from asyncgroup.workqueue.work_queue import has_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["QueueBatchFunction", "QueueForeachBatch"]

_log = logging.getLogger("asyncgroup.spark")

QueueBatchFunction: TypeAlias = "Callable[[DataFrame, int], FailedRows | list[FailedRows] | None]"

OnQueueError: TypeAlias = Literal["nack"] | Retry
"""The action of a QueueForeachBatch after an exception of the function other than FailedRows."""

RENEWALS_IN_POLL_INTERVAL: Final = 10
"""The number of renewals in `max_poll_interval`, so that the claims of a long batch do not count as stuck."""


class QueueForeachBatch(BridgeArguments):
    """Calls `fn(df, batch_id)` with batches of a WorkQueue's records; each record has its own outcome.

        foreach = QueueForeachBatch(spark, store)
        async with WorkQueue("localhost:9092", "lake", "orders", dead_letter=DeadLetter(5)) as queue:
            await foreach.run(queue)

    `df` has the columns and types of Spark's Kafka source, as for ForeachBatch: key, value, topic, partition, offset,
    timestamp, timestampType, and with `include_headers` headers; its rows are in the order of topic, partition and
    offset. `fn` is a sync function; it runs in a thread, one call at a time.

    Messages of Pulsar have no offset: in place of `offset` there are messageId (a string, as `str` of a MessageId),
    eventTime and orderingKey; timestamp is the publish time, headers are the properties, partition is -1 in a topic without
    partitions, and rows are in the order in which the messages of a partition arrived.

    - `fn` returns None: all records of the batch are acknowledged.
    - `fn` raises or returns FailedRows: the records of the rows that it names are nacked, or go to the retry or the dead letter
      topic; those of all other rows are acknowledged. The next batch begins when the copies are acknowledged by the broker.
    - `fn` raises anything else, or names rows that are not in the batch: all records of the batch are nacked. With
      `on_error=Retry(...)` the call is repeated first, with the same rows and number.
    - A partition is revoked while `fn` runs: the rebalance waits for the end of the batch, at most `rebalance_timeout`. After
      that the outcome of its rows is discarded, and they are delivered to the partition's next owner. If that is true for
      all rows, the batch's Spark jobs are cancelled.
    - The caller is cancelled: the batch's Spark jobs are cancelled, and its records are delivered again without counting an
      attempt. `run` ends when the thread of `fn` has ended: a `fn` that does no Spark work cannot be stopped.

    Delivery is at least once, and a batch is not made of the same rows when some of them are delivered again. Use sinks that
    key on (topic, partition, offset), such as `Upsert`, and with Pulsar on (topic, messageId); those that need the offset
    ranges of ForeachBatch are refused.
    `batch_id` is a plain number, counted from 0 by each object. Deliveries are renewed while `fn` runs, so that neither the
    queue's `ack_timeout` nor `max_poll_interval` limits its time.

    A batch starts when it has `max_rows` rows or about `max_bytes` bytes of keys and values, or `max_wait` seconds after
    the end of the last one if there is any record by then. It cannot have more bytes than the queue's
    `receive_buffer_bytes`, nor two records of one key with Mode.KEY_SHARED. With `durable` the acknowledgements of a batch are
    committed (by Pulsar: confirmed) before the next one begins; otherwise with the queue's next grouped commit. With Mode.EXCLUSIVE and
    Mode.FAILOVER use `reject` or `reconsume_later` for failed rows: a nack delivers again what follows it and is not
    acknowledged, which includes the next batch.

    Raises ConfigError for an argument that is not allowed.
    """

    def __init__(
        self,
        spark: SparkSession,
        fn: QueueBatchFunction,
        *,
        max_rows: int = 100_000,
        max_bytes: int = 64 * 1024 * 1024,
        max_wait: float = 0.2,
        include_headers: bool = False,
        on_error: OnQueueError = "nack",
        durable: bool = False,
    ) -> None:
        check_function("fn", fn, "a sync function (df, batch_id), which is called in a thread")
        if getattr(fn, "_needs_ranges", False):
            raise ConfigError("fn", fn, "a function that needs no offset ranges: a queue's batches have gaps")
        check_batch_limits(max_rows, max_bytes, max_wait, may_be_zero=False)
        for key, flag in (("include_headers", include_headers), ("durable", durable)):
            check_flag(key, flag)
        if on_error != "nack" and not isinstance(on_error, Retry):
            raise ConfigError("on_error", on_error, "'nack' or a Retry")
        self._spark = spark
        self._fn = fn
        self._policy = BatchPolicy(max_records=max_rows, max_bytes=max_bytes, timeout=max_wait)
        self._include_headers = include_headers
        self._on_error = on_error
        self._durable = durable
        self._numbers = BatchNumbers()
        self._metrics = BridgeMetrics()
        self._random = random.Random()
        """The source of jitter for pauses between retries; seed it for reproducible pauses."""
        self._queue: WorkQueue | None = None
        """The queue of the running call of `run`, or None."""
        self._running: QueueBatch | None = None
        self._rows: QueueRows = OffsetRows()
        """How the records of that queue become rows."""

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        state = "not running" if self._queue is None else "idle"
        return f"<QueueForeachBatch {name}: {state if self._running is None else repr(self._running)}>"

    def statistics(self) -> BridgeStatistics:
        """Return counters and the current state. Call it on the event loop, whose clock it reads.

        Queued rows are not counted, see `WorkQueue.statistics`; the ranges of a batch cover its rows and may have gaps.
        """
        batch = self._running
        running = None if batch is None else (batch.batch_id, batch.started_at)
        return self._metrics.snapshot(0, 0, running, asyncio.get_running_loop().time())

    async def run(self, queue: WorkQueue) -> None:
        """Call the function with the queue's records until the queue closes; the close waits for a running batch.

        `queue` is open. Raises what ended the queue, SparkUnavailable if Spark has ended (the batch is delivered again),
        ClosedError if the queue was not entered, UsageError if `run` of this object runs already, ConfigError for an object
        that is not a WorkQueue, or without offsets (Pulsar) if the function is an Upsert that keys on them.
        """
        if not isinstance(queue, WorkQueue):
            raise ConfigError("queue", queue, "a WorkQueue")
        if self._queue is not None:
            raise UsageError(f"run() of {self!r} was called twice: it runs already")
        self._rows = _rows_of(queue, self._fn)
        jobs = SparkJobs(self._spark, self._call_function)
        self._queue = queue
        try:
            while (deliveries := await _next(queue, self._policy)) is not None:
                if deliveries:
                    await self._deliver(jobs, queue, deliveries)
        finally:
            self._queue = None
            jobs.close()

    # --- one batch ----------------------------------------------------------------------------------------------------------

    async def _deliver(self, jobs: SparkJobs, queue: WorkQueue, deliveries: DeliveryBatch) -> None:
        """Call the function and end the deliveries; those that are left after an error are given back."""
        retries = RetryState(self._on_error if isinstance(self._on_error, Retry) else "raise", self._random)
        time = asyncio.get_running_loop().time
        batch = self._running = QueueBatch(deliveries, self._numbers.next(), retries, time(), self._rows)
        poll_interval = 0.0 if queue.config is None else queue.config.max_poll_interval
        # 0 means no limit: only ack timeouts count
        interval = poll_interval / RENEWALS_IN_POLL_INTERVAL or float("inf")
        keeper = start_task(batch.keep(interval), name=f"{batch.batch_id!r}: keep")
        try:
            try:
                error = await self._call(jobs, batch)
            finally:
                await cancel_and_wait(keeper)
            await self._finish(batch, error)
        finally:
            batch.release()
            self._running = None

    async def _finish(self, batch: QueueBatch, error: BaseException | None) -> None:
        """End the deliveries. Raises SparkUnavailable, if that is the error: it is no failure of the records."""
        if not batch.by_key:
            return  # none of the records could be a row
        if batch.is_interrupted:
            _log.warning("%r was interrupted; its records are delivered again", batch.batch_id)
            self._metrics.record_interruption()
        elif error is None:
            self._metrics.record_batch(batch.batch_id, len(batch.by_key), batch.bytes)
            await self._end_deliveries(batch)
        elif isinstance(error, SparkUnavailable):
            raise error
        else:
            _log.warning("%r: the function raised, its records are nacked", batch.batch_id, exc_info=error)
            # all are nacked before a cancellation is raised
            await wait_shielded(start_task(batch.nack(error)))

    async def _call(self, jobs: SparkJobs, batch: QueueBatch) -> BaseException | None:
        """Call the function, with retries; return its last exception, None if it returned or the batch was interrupted."""
        try:
            records = await batch.to_arrow(include_headers=self._include_headers)
        except Exception as error:  # noqa: BLE001  records that have no rows: the batch has failed
            self._metrics.record_failure(error, asyncio.get_running_loop().time())
            return error
        while records and not batch.is_interrupted:
            call = start_task(jobs.run(records, batch.batch_id, batch.interrupted))
            try:
                # waited for, not awaited: a cancellation must not end the task, as its thread goes on
                await asyncio.wait([call])
            except asyncio.CancelledError:
                batch.interrupt()
                self._metrics.record_interruption()
                await wait_shielded(call)
                raise
            called = call.result()
            self._metrics.record_call(called.frame_seconds, called.fn_seconds)
            raised = called.error
            if raised is None or batch.is_interrupted:
                return None
            self._metrics.record_failure(raised, asyncio.get_running_loop().time())
            if not batch.retries.failed(raised):
                add_note(raised, f"while delivering {batch.batch_id!r}")
                return raised
            _log.warning("%r: the function raised, retrying: %s", batch.batch_id, describe_error(raised))
            await batch.retries.retry.wait(batch.no_retry)
        return None

    def _call_function(self, df: DataFrame, batch_id: BatchId) -> None:
        """Call the function, and find the deliveries of the rows that it names. Runs in the thread."""
        batch, queue = self._running, self._queue
        assert batch is not None
        assert queue is not None
        result: object
        try:
            result = self._fn(df, int(batch_id))
        except FailedRows as failed:
            result = failed
        batch.failed = failed_records(result, batch.by_key, partial(_check_copies, queue), batch.rows.keys)

    async def _end_deliveries(self, batch: QueueBatch) -> None:
        """End the deliveries by the result of the function; a cancellation is raised after they have ended, except for copies."""
        time = asyncio.get_running_loop().time
        began = time()
        if lost := batch.lost:
            _log.warning("%r: %d of its records are delivered again", batch.batch_id, lost)
        try:
            await wait_shielded(start_task(batch.settle()))
            # the acknowledgements do not wait for copies, which a broker may delay
            if self._durable:
                await batch.commit()
            await batch.copy()
        finally:
            self._metrics.record_commit(time() - began)


async def _next(queue: WorkQueue, policy: BatchPolicy) -> DeliveryBatch | None:
    """Return the next deliveries, possibly none; None after the close of the queue."""
    try:
        return await queue.batch_receive(policy)
    except ClosedError:
        return None


def _rows_of(queue: WorkQueue, fn: QueueBatchFunction) -> QueueRows:
    """Return how the records of a queue become rows. Raises ClosedError if it was not entered, ConfigError."""
    if has_offsets(queue):
        return OffsetRows()
    if getattr(fn, "_needs_offsets", False):
        allowed = f"a sink with other keys, as keys={MESSAGE_KEYS!r}: messages of Pulsar have no offset"
        raise ConfigError("fn", fn, allowed)
    return MessageRows()


def _check_copies(queue: WorkQueue, outcome: Outcome) -> None:
    """Raise ConfigError if a record is to be copied to a topic that the queue does not have."""
    for key, topic, argument in (
        ("reject", queue.dead_letter_topic, "dead_letter=DeadLetter(…)"),
        ("reconsume_later", queue.retry_topic, "retry=RetryTopic(…)"),
    ):
        value = getattr(outcome, key)
        if value is not None and topic is None:
            raise ConfigError(key, value, f"None: the queue has no topic for the copies ({argument})")

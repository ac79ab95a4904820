"""The bridge of one session: claims put records into a queue, a runner task makes batches, calls the function, commits.

`consume` runs once per claim, in the handler's task; the runner task starts with the first claim and ends with the last.
While the function processes a batch, the claims queue records for the next ones.

Batches are processed one at a time, and each waits for the commit of the one before, also of other partitions: a commit is
one request for all partitions, so overlapping it would save a few milliseconds and could break the order.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncgroup.group import Claim, Session
from asyncgroup.lifecycle import add_note, cancel_and_wait, start_task, wait_shielded, wait_within
from asyncgroup.model import Batch, TopicPartition
from asyncgroup.spark.bridge.batches import BatchInterrupted, BridgedClaim, OnError, RetryState, RunningBatch
from asyncgroup.spark.bridge.commits import BatchNumbers, first_range_start, mark_and_commit
from asyncgroup.spark.bridge.jobs import SparkJobs
from asyncgroup.spark.bridge.record_queue import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, Chunk, RecordQueue
from asyncgroup.spark.bridge.statistics import BridgeMetrics
from asyncgroup.spark.ranges import BatchId

__all__ = ["BatchOptions", "Bridge"]

_log = logging.getLogger("asyncgroup.spark")


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options of a `ForeachBatch` about its batches."""

    max_rows: int
    max_bytes: int
    max_wait: float
    """Seconds from the first record of a batch."""
    include_headers: bool
    on_error: OnError


class Bridge:
    """Makes batches of the records of all claims of `session`, and processes them one at a time."""

    def __init__(
        self,
        session: Session,
        jobs: SparkJobs,
        options: BatchOptions,
        numbers: BatchNumbers,
        metrics: BridgeMetrics,
        rng: random.Random,
    ) -> None:
        self._session = session
        self._jobs = jobs
        self._options = options
        self._numbers = numbers
        self._metrics = metrics
        self._rng = rng
        self._queue = RecordQueue(options.max_rows, options.max_bytes)
        self._claims: dict[TopicPartition, BridgedClaim] = {}  # the latest one of each partition
        self._consumed: set[BridgedClaim] = set()  # also former ones whose interrupted batch still runs
        self._running: RunningBatch | None = None
        self._data_available = asyncio.Event()  # set when the queue has grown, or the bridge closes
        self._batch_taken = asyncio.Event()  # replaced by a new one for each batch
        self._closing = asyncio.Event()
        self.time: Callable[[], float] = asyncio.get_running_loop().time
        self._runner: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"delivering {self._running.batch_id!r}" if self._running else "idle"
        return f"<Bridge: {len(self._claims)} claims, {state}, {self._queue!r}>"

    @property
    def queued(self) -> tuple[int, int]:
        """Queued rows and bytes."""
        return self._queue.rows, self._queue.bytes

    @property
    def running(self) -> tuple[BatchId, float] | None:
        """The batch that is being processed, and the loop's time of its start; None if there is none."""
        return (self._running.batch_id, self._running.started_at) if self._running else None

    # --- the claims' side ---------------------------------------------------------------------------------------

    def add_claim(self, claim: Claim, start: int | None) -> BridgedClaim:
        """Add a claim, whose first range starts at `start`; None: see `first_range_start`."""
        self._numbers.observe(claim.initial_metadata)
        state = BridgedClaim(claim, first_range_start(claim) if start is None else start)
        self._claims[state.tp] = state
        self._consumed.add(state)
        self._queue.drop(state.tp)
        if self._runner is None:
            self._runner = start_task(self._run(), name=f"{claim.topic}: foreachBatch")
        return state

    def remove_claim(self, state: BridgedClaim) -> bool:
        """Remove a claim; return True if it was the last one, so that `aclose` must be called."""
        self._consumed.remove(state)
        if self._is_latest(state):
            del self._claims[state.tp]
            self._queue.drop(state.tp)
        return not self._consumed

    def _is_latest(self, state: BridgedClaim) -> bool:
        """False if the partition has come back as another claim while a function that cannot be stopped had this one."""
        return self._claims.get(state.tp) is state

    async def aclose(self) -> None:
        """End the runner task and the threads. No batch may be running."""
        self._closing.set()
        self._data_available.set()
        try:
            if self._runner is not None:
                await wait_shielded(self._runner)
        finally:
            self._jobs.close()

    async def consume(self, state: BridgedClaim) -> None:
        """Queue a claim's records until it ends; then wait for the running batch if it holds some of them.

        Raises what the function, the commit or the claim's iterator raised. Cancellation interrupts the batch, and becomes
        BatchInterrupted if a rebalance caused it.
        """
        pulling = start_task(self._pull(state), name=f"{state.tp}: pull")
        ended = start_task(state.claim.wait_ended(), name=f"{state.tp}: end")
        first: list[asyncio.Future[Any]] = [pulling, ended, state.failure]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(pulling, ended)
            if self._is_latest(state):
                self._queue.drop(state.tp)
            await self._drain(state)
        except asyncio.CancelledError:
            if (interrupted := await self._interrupt(state)) is not None:
                raise interrupted from None
            if not state.failure.done():
                raise
            # the bridge failed in the same loop iteration: only this claim can raise its error
        finally:
            await cancel_and_wait(pulling, ended)
        if state.failure.done():
            raise state.failure.result()
        if not pulling.cancelled() and (error := pulling.exception()) is not None:
            raise error

    async def _pull(self, state: BridgedClaim) -> None:
        queue = self._queue
        batches = state.claim.batches(
            max_records=min(MAX_CHUNK_ROWS, queue.max_rows), max_bytes=min(MAX_CHUNK_BYTES, queue.max_bytes)
        )
        async for batch in batches:
            queue.put(self._to_chunk(state, batch))
            self._data_available.set()
            # a reader that has records gives no turn at each batch: without this one a claim would fill the batch alone
            await asyncio.sleep(0)
            while not queue.accepts(state.tp):
                # it waits for the function: not stuck, however long that takes
                state.claim.renew(float("inf"))
                await self._batch_taken.wait()

    def _to_chunk(self, state: BridgedClaim, batch: Batch) -> Chunk:
        # a gap in the log belongs to the range after it, so that each range starts where the last one ended
        start = state.position
        if batch.first_offset < start:
            # a backward seek, or the log was truncated: records queued from this offset on are obsolete
            start = self._queue.rewind(state.tp, batch.first_offset)
        state.position = batch.last_offset + 1
        records = batch.to_arrow(include_headers=self._options.include_headers)
        return Chunk(state.tp, start, state.position, self.time(), records, batch.leader_epoch)

    async def _drain(self, state: BridgedClaim) -> None:
        """Wait for the running batch if it holds records of this claim; interrupt it if the session is lost."""
        batch = self._running
        if batch is None or not batch.has_records_of(state):
            return
        batch.no_retry.set()
        lost = start_task(self._session.wait_lost(), name=f"{state.tp}: loss")
        try:
            await asyncio.wait({batch.finished, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not batch.finished.done():
                batch.interrupt()
                await asyncio.wait({batch.finished})
        finally:
            await cancel_and_wait(lost)

    async def _interrupt(self, state: BridgedClaim) -> BatchInterrupted | None:
        """Interrupt the batch and wait until its thread has ended; return the error that this claim must raise, if any."""
        batch = self._running
        if batch is None or not batch.has_records_of(state):
            return None
        is_first = batch.interrupt()
        await wait_shielded(batch.function_ended)
        if not (is_first and state.ended_by_rebalance and self._session.ended):
            return None  # only one claim raises, and none if the session goes on with the others
        seconds = self.time() - batch.started_at
        text = f"{batch.batch_id!r} was interrupted after {seconds:.1f} s, because the rebalance timeout had passed"
        return BatchInterrupted(f"{text}; it will be delivered again")

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while await self._wait_until_due():
            chunks = self._queue.pop_batch(self._is_alive)
            self._batch_taken.set()
            self._batch_taken = asyncio.Event()
            if chunks and not await self._deliver(chunks):
                return

    def _is_alive(self, tp: TopicPartition) -> bool:
        return tp in self._claims and not self._claims[tp].claim.ended

    async def _wait_until_due(self) -> bool:
        """Wait until a batch is full or `max_wait` has passed; False if the bridge closes."""
        while not self._closing.is_set():
            self._data_available.clear()
            oldest = self._queue.oldest
            remaining = None if oldest is None else oldest + self._options.max_wait - self.time()
            if remaining is not None and (self._queue.is_full or remaining <= 0):
                return True
            await wait_within(self._data_available, remaining)
        return False

    async def _deliver(self, chunks: list[Chunk]) -> bool:
        """Process a batch: call the function, mark, commit. Return False if the bridge has failed."""
        retries = RetryState(self._options.on_error, self._rng)
        batch = self._running = RunningBatch(chunks, self._claims, self._numbers.next(), retries, self.time())
        failure: BaseException | None = None
        try:
            failure = await self._call(batch)
        except BaseException as error:  # noqa: BLE001  raised by a claim, see _fail
            failure = error
        batch.function_ended.set_result(None)
        if batch.is_interrupted:
            failure = None
            self._requeue_chunks(batch)
        elif failure is None:
            self._metrics.record_batch(batch.batch_id, batch.rows, batch.bytes)
            failure = await self._commit(batch)
        if failure is not None:
            self._fail(batch, failure)
        self._running = None
        batch.finished.set_result(None)
        return failure is None

    async def _call(self, batch: RunningBatch) -> BaseException | None:
        """Call the function, with retries; return its last exception, None if it returned or the batch was interrupted."""
        records = [chunk.records for chunk in batch.chunks]
        while True:
            called = await self._jobs.run(records, batch.batch_id, batch.interrupted)
            self._metrics.record_call(called.frame_seconds, called.fn_seconds)
            error = called.error
            if error is None or batch.is_interrupted:
                return None
            self._metrics.record_failure(error, self.time())
            if not batch.retries.failed(error):
                return error
            _log.warning(
                "%r: the function raised (attempt %d), retrying in %.1f s",
                batch.batch_id,
                batch.retries.failures,
                batch.retries.retry.seconds,
                exc_info=error,
            )
            if await batch.retries.retry.wait(batch.no_retry):
                batch.interrupt()  # no call is started for a claim that has ended
                return None

    def _requeue_chunks(self, batch: RunningBatch) -> None:
        """Requeue an interrupted batch's chunks of the claims that are left; the rest is delivered to other members."""
        self._metrics.record_interruption()
        _log.warning("%r was interrupted; it will be delivered again", batch.batch_id)
        parts = (
            self._not_rewound(chunk)
            for chunk in batch.chunks
            if batch.has_records_of(self._claims.get(chunk.tp))
        )
        self._queue.requeue([chunk for chunk in parts if chunk is not None])

    def _not_rewound(self, chunk: Chunk) -> Chunk | None:
        """Return the part of a chunk before the offset to which its claim has gone back since, or all of it."""
        return chunk.before(self._queue.next_start(chunk.tp, self._claims[chunk.tp].position))

    async def _commit(self, batch: RunningBatch) -> BaseException | None:
        began = self.time()
        try:
            return await mark_and_commit(self._session, batch, self._claims, self._closing)
        except Exception as error:  # noqa: BLE001  raised by a claim, see _fail
            return error
        finally:
            self._metrics.record_commit(self.time() - began)

    def _fail(self, batch: RunningBatch, error: BaseException) -> None:
        """Let one claim raise the error, one of the batch if possible; this ends the session for the others."""
        failures = batch.retries.failures
        add_note(
            error, f"while delivering {batch.batch_id!r}" + (f", attempt {failures}" if failures > 1 else "")
        )
        for tp in sorted(self._claims, key=lambda tp: (tp not in batch.claims, tp)):
            if not self._claims[tp].failure.done():
                self._claims[tp].failure.set_result(error)
                return
        _log.error("%r failed after all claims had ended", batch.batch_id, exc_info=error)

"""The bridge of one session: claims hand over records, one runner makes batches of them, delivers and commits.

`consume` runs once per claim, in the handler's task; the runner starts with the first claim and ends with the last.
While a batch is with the user's function, the claims gather the next ones.

Batches go out one at a time, and the next one, whatever its partitions, waits for the commit of the one before: a commit
is one request for all of them, so that to overlap it would win a few milliseconds and could lose the order.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from asyncgroup.group import Claim, Session
from asyncgroup.lifecycle import cancel_and_wait, finish, note, wait_within
from asyncgroup.model import Batch, TopicPartition
from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.commit_metadata import BatchNumbers
from asyncgroup.spark.bridge.committing import mark_and_commit
from asyncgroup.spark.bridge.jobs import SparkJobs
from asyncgroup.spark.bridge.record_queue import Chunk, RecordQueue
from asyncgroup.spark.bridge.retry import OnError, RetryState
from asyncgroup.spark.bridge.running_batch import BatchInterrupted, ClaimState, RunningBatch
from asyncgroup.spark.bridge.statistics import BridgeMetrics

__all__ = ["BatchOptions", "Bridge"]

_log = logging.getLogger("asyncgroup.spark")

MAX_CHUNK_ROWS: Final = 16_000
MAX_CHUNK_BYTES: Final = 1024 * 1024
"""Records are turned into Arrow on the event loop, at most so many (so many wire bytes) in one go: a few milliseconds.

In a thread of its own that took a sixth more processor time, since thread and loop fight for the interpreter, and
smaller pieces took more as well. The price: with records of 200 bytes at full speed the loop's turns take 20 to 30 ms
instead of 5, which heartbeats do not mind.
"""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What the user of a `ForeachBatch` wants of its batches; `max_wait` counts seconds."""

    max_rows: int
    max_bytes: int
    max_wait: float
    include_headers: bool
    on_error: OnError


class Bridge:
    """Gathers the claims of `session` and delivers batches, one at a time."""

    def __init__(
        self,
        session: Session,
        jobs: SparkJobs,
        options: BatchOptions,
        numbers: BatchNumbers,
        metrics: BridgeMetrics,
        rng: random.Random,
    ) -> None:
        self._session, self._jobs, self._options = session, jobs, options
        self._numbers, self._metrics, self._rng = numbers, metrics, rng
        self._queue = RecordQueue(options.max_rows, options.max_bytes)
        self._claims: dict[TopicPartition, ClaimState] = {}
        self._running: RunningBatch | None = None
        self._data_available = asyncio.Event()
        self._batch_taken = asyncio.Event()
        self._closing = asyncio.Event()
        self.time: Callable[[], float] = asyncio.get_running_loop().time
        self._runner: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"delivering {self._running.batch_id!r}" if self._running else "idle"
        return f"<Bridge: {len(self._claims)} claims, {state}, {self._queue!r}>"

    @property
    def queued(self) -> tuple[int, int]:
        """Rows and bytes that wait for the next batches."""
        return self._queue.rows, self._queue.bytes

    @property
    def running(self) -> tuple[BatchId, float] | None:
        """The batch under way, and the loop's time of its beginning."""
        return (self._running.batch_id, self._running.started_at) if self._running else None

    # --- the claims' side ---------------------------------------------------------------------------------------

    def open(self, claim: Claim, start: int | None) -> ClaimState:
        """Make a place for a claim, whose first range starts at `start`; None: where the group says."""
        self._numbers.observe(claim.initial_metadata)
        state = ClaimState(claim, start)
        self._claims[state.tp] = state
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(), name=f"{claim.topic}: foreachBatch")
        return state

    def leave(self, state: ClaimState) -> bool:
        """Give the place up; True if it was the last one, and `aclose` is due."""
        self._claims.pop(state.tp, None)
        self._queue.drop(state.tp)
        return not self._claims

    async def aclose(self) -> None:
        """End the runner and its threads; no batch is under way any more."""
        self._closing.set()
        self._data_available.set()
        try:
            if self._runner is not None:
                await finish(self._runner)
        finally:
            self._jobs.close()

    async def consume(self, state: ClaimState) -> None:
        """Hand over a claim's records until it ends; then wait for the batch that holds some of them.

        Raises what the function, the commit or the claim's iterator raised. When cancelled, the batch is interrupted;
        raises BatchInterrupted if that was for the sake of a rebalance.
        """
        pulling = asyncio.create_task(self._pull(state), name=f"{state.tp}: pull")
        ended = asyncio.create_task(state.claim.wait_ended(), name=f"{state.tp}: end")
        first: list[asyncio.Future[Any]] = [pulling, ended, state.failure]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(pulling, ended)
            self._queue.drop(state.tp)
            await self._drain(state)
        except asyncio.CancelledError:
            if (interrupted := await self._interrupt(state)) is not None:
                raise interrupted from None
            if not state.failure.done():
                raise
            # in the same turn: the bridge has failed, and nobody else would raise it
        finally:
            await cancel_and_wait(pulling, ended)
        if state.failure.done():
            raise state.failure.result()
        if not pulling.cancelled() and (error := pulling.exception()) is not None:
            raise error

    async def _pull(self, state: ClaimState) -> None:
        queue = self._queue
        batches = state.claim.batches(
            max_records=min(MAX_CHUNK_ROWS, queue.max_rows), max_bytes=min(MAX_CHUNK_BYTES, queue.max_bytes)
        )
        async for batch in batches:
            queue.put(self._to_chunk(state, batch))
            self._data_available.set()
            while not queue.accepts(state.tp):
                await self._batch_taken.wait()

    def _to_chunk(self, state: ClaimState, batch: Batch) -> Chunk:
        # a gap in the log belongs to the range after it, so that a range starts where the last commit was
        start = state.position
        if batch.first_offset < start:
            # the reader was told to go back, or the log was truncated: what it had read from here on does not count
            start = self._queue.rewind(state.tp, batch.first_offset)
        state.position = batch.last_offset + 1
        records = batch.to_arrow(include_headers=self._options.include_headers)
        return Chunk(state.tp, start, state.position, self.time(), records, batch.leader_epoch)

    async def _drain(self, state: ClaimState) -> None:
        """Wait for the batch under way, if it holds records of this claim; a lost session's is interrupted."""
        batch = self._running
        if batch is None or state.tp not in batch.partitions:
            return
        batch.no_retry.set()
        lost = asyncio.create_task(self._session.wait_lost(), name=f"{state.tp}: loss")
        try:
            await asyncio.wait({batch.finished, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not batch.finished.done():
                batch.interrupt()
                await asyncio.wait({batch.finished})
        finally:
            await cancel_and_wait(lost)

    async def _interrupt(self, state: ClaimState) -> BatchInterrupted | None:
        """No time is left: have the batch end, and wait until its thread is free; what this claim has to raise."""
        batch = self._running
        if batch is None or state.tp not in batch.partitions:
            return None
        is_first = batch.interrupt()
        await finish(batch.function_ended)
        if not (is_first and state.ended_by_rebalance and self._session.ended):
            return None  # the others go on, if the session does
        seconds = self.time() - batch.started_at
        text = (
            f"{batch.batch_id!r} was interrupted after {seconds:.1f} s, when a rebalance could wait no longer"
        )
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
        """Wait until a batch should be taken; False if the bridge closes."""
        while not self._closing.is_set():
            self._data_available.clear()
            oldest = self._queue.oldest
            remaining = None if oldest is None else oldest + self._options.max_wait - self.time()
            if remaining is not None and (self._queue.is_full or remaining <= 0):
                return True
            await wait_within(self._data_available, remaining)
        return False

    async def _deliver(self, chunks: list[Chunk]) -> bool:
        """Call the function, mark, commit; False if the bridge has failed."""
        retries = RetryState(self._options.on_error, self._rng)
        batch = self._running = RunningBatch(chunks, self._numbers.next(), retries, self.time())
        failure: BaseException | None = None
        try:
            failure = await self._call(batch)
        except BaseException as error:  # noqa: BLE001  a claim raises it
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
        """Call the function, again if it raises and may; returns its last exception."""
        records = [chunk.records for chunk in batch.chunks]
        while True:
            called = await self._jobs.run(records, batch.batch_id, batch.interrupted)
            self._metrics.record_call(called.frame_seconds, called.fn_seconds)
            error = called.error
            if error is None or batch.is_interrupted:
                return None
            self._metrics.record_failure(error, self.time())
            pause = batch.retries.backoff_after(error)
            if pause is None:
                return error
            _log.warning(
                "%r failed (%d), it is tried again in %.1f s",
                batch.batch_id,
                batch.retries.failures,
                pause,
                exc_info=error,
            )
            if await wait_within(batch.no_retry, pause):
                batch.interrupt()  # nothing is begun for a claim that has ended
                return None

    def _requeue_chunks(self, batch: RunningBatch) -> None:
        """Whatever came of it counts as not done; the claims that stay get their part delivered again."""
        self._metrics.interrupted += 1
        _log.warning("%r was interrupted; it will be delivered again", batch.batch_id)
        parts = (self._not_rewound(chunk) for chunk in batch.chunks if chunk.tp in self._claims)
        self._queue.requeue([chunk for chunk in parts if chunk is not None])

    def _not_rewound(self, chunk: Chunk) -> Chunk | None:
        """All of a piece, unless its reader went back meanwhile."""
        return chunk.before(self._queue.next_start(chunk.tp, self._claims[chunk.tp].position))

    async def _commit(self, batch: RunningBatch) -> BaseException | None:
        began = self.time()
        try:
            return await mark_and_commit(self._session, batch, self._claims, self._closing)
        except Exception as error:  # noqa: BLE001  it ends the batch, as any failure of it
            return error
        finally:
            self._metrics.commit_seconds += self.time() - began

    def _fail(self, batch: RunningBatch, error: BaseException) -> None:
        """One claim raises it, of the batch if there is one left; the session then ends for the others."""
        failures = batch.retries.failures
        note(error, f"while delivering {batch.batch_id!r}" + (f", try {failures}" if failures > 1 else ""))
        for tp in sorted(self._claims, key=lambda tp: (tp not in batch.partitions, tp)):
            if not self._claims[tp].failure.done():
                self._claims[tp].failure.set_result(error)
                return
        _log.error("the batch %r failed after all claims had gone", batch.batch_id, exc_info=error)

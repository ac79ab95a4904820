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
from asyncgroup.spark.bridge.committing import mark_and_commit
from asyncgroup.spark.bridge.delivery import BatchInterrupted, Delivery, Lane
from asyncgroup.spark.bridge.gatherer import Gatherer, Piece
from asyncgroup.spark.bridge.jobs import SparkJobs
from asyncgroup.spark.bridge.numbers import BatchNumbers
from asyncgroup.spark.bridge.retry import OnError, Tries
from asyncgroup.spark.bridge.statistics import Tally

__all__ = ["Bridge", "Wishes"]

_log = logging.getLogger("asyncgroup.spark")

PIECE_ROWS: Final = 16_000
PIECE_BYTES: Final = 1024 * 1024
"""Records are turned into Arrow on the event loop, at most so many (so many wire bytes) in one go: a few milliseconds.

In a thread of its own that took a sixth more processor time, since thread and loop fight for the interpreter, and
smaller pieces took more as well. The price: with records of 200 bytes at full speed the loop's turns take 20 to 30 ms
instead of 5, which heartbeats do not mind.
"""


@dataclass(frozen=True, kw_only=True)
class Wishes:
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
        wishes: Wishes,
        numbers: BatchNumbers,
        tally: Tally,
        rng: random.Random,
    ) -> None:
        self._session, self._jobs, self._wishes = session, jobs, wishes
        self._numbers, self._tally, self._rng = numbers, tally, rng
        self._gatherer = Gatherer(wishes.max_rows, wishes.max_bytes)
        self._lanes: dict[TopicPartition, Lane] = {}
        self._delivery: Delivery | None = None
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._closing = asyncio.Event()
        self.time: Callable[[], float] = asyncio.get_running_loop().time
        self._runner: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"delivering {self._delivery.batch_id!r}" if self._delivery else "idle"
        return f"<Bridge: {len(self._lanes)} claims, {state}, {self._gatherer!r}>"

    @property
    def queued(self) -> tuple[int, int]:
        """Rows and bytes that wait for the next batches."""
        return self._gatherer.rows, self._gatherer.bytes

    @property
    def running(self) -> tuple[BatchId, float] | None:
        """The batch under way, and the loop's time of its beginning."""
        return (self._delivery.batch_id, self._delivery.began) if self._delivery else None

    # --- the claims' side ---------------------------------------------------------------------------------------

    def open(self, claim: Claim, start: int | None) -> Lane:
        """Make a place for a claim, whose first range starts at `start`; None: where the group says."""
        self._numbers.see(claim.initial_metadata)
        lane = Lane(claim, start)
        self._lanes[lane.tp] = lane
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(), name=f"{claim.topic}: foreachBatch")
        return lane

    def leave(self, lane: Lane) -> bool:
        """Give the place up; True if it was the last one, and `aclose` is due."""
        self._lanes.pop(lane.tp, None)
        self._gatherer.drop(lane.tp)
        return not self._lanes

    async def aclose(self) -> None:
        """End the runner and its threads; no batch is under way any more."""
        self._closing.set()
        self._news.set()
        try:
            if self._runner is not None:
                await finish(self._runner)
        finally:
            self._jobs.close()

    async def consume(self, lane: Lane) -> None:
        """Hand over a claim's records until it ends; then wait for the batch that holds some of them.

        Raises what the function, the commit or the claim's iterator raised. When cancelled, the batch is interrupted;
        raises BatchInterrupted if that was for the sake of a rebalance.
        """
        pulling = asyncio.create_task(self._pull(lane), name=f"{lane.tp}: pull")
        ended = asyncio.create_task(lane.claim.wait_ended(), name=f"{lane.tp}: end")
        first: list[asyncio.Future[Any]] = [pulling, ended, lane.failure]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(pulling, ended)
            self._gatherer.drop(lane.tp)
            await self._drain(lane)
        except asyncio.CancelledError:
            if (interrupted := await self._abandon(lane)) is not None:
                raise interrupted from None
            if not lane.failure.done():
                raise
            # in the same turn: the bridge has failed, and nobody else would raise it
        finally:
            await cancel_and_wait(pulling, ended)
        if lane.failure.done():
            raise lane.failure.result()
        if not pulling.cancelled() and (error := pulling.exception()) is not None:
            raise error

    async def _pull(self, lane: Lane) -> None:
        gatherer = self._gatherer
        batches = lane.claim.batches(
            max_records=min(PIECE_ROWS, gatherer.max_rows), max_bytes=min(PIECE_BYTES, gatherer.max_bytes)
        )
        async for batch in batches:
            gatherer.put(self._piece(lane, batch))
            self._news.set()
            while not gatherer.may_pull(lane.tp):
                await self._taken.wait()

    def _piece(self, lane: Lane, batch: Batch) -> Piece:
        # a gap in the log belongs to the range after it, so that a range starts where the last commit was
        start = lane.position
        if batch.first_offset < start:
            # the reader was told to go back, or the log was truncated: what it had read from here on does not count
            start = self._gatherer.rewind(lane.tp, batch.first_offset)
        lane.position = batch.last_offset + 1
        records = batch.to_arrow(include_headers=self._wishes.include_headers)
        return Piece(lane.tp, start, lane.position, self.time(), records, batch.leader_epoch)

    async def _drain(self, lane: Lane) -> None:
        """Wait for the batch under way, if it holds records of this claim; a lost session's is interrupted."""
        delivery = self._delivery
        if delivery is None or lane.tp not in delivery.partitions:
            return
        delivery.is_last_try.set()
        lost = asyncio.create_task(self._session.wait_lost(), name=f"{lane.tp}: loss")
        try:
            await asyncio.wait({delivery.over, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not delivery.over.done():
                delivery.interrupt_now()
                await asyncio.wait({delivery.over})
        finally:
            await cancel_and_wait(lost)

    async def _abandon(self, lane: Lane) -> BatchInterrupted | None:
        """No time is left: have the batch end, and wait until its thread is free; what this claim has to raise."""
        delivery = self._delivery
        if delivery is None or lane.tp not in delivery.partitions:
            return None
        is_first = delivery.interrupt_now()
        await finish(delivery.freed)
        if not (is_first and lane.is_rebalanced and self._session.ended):
            return None  # the others go on, if the session does
        seconds = self.time() - delivery.began
        text = f"{delivery.batch_id!r} was interrupted after {seconds:.1f} s, when a rebalance could wait no longer"
        return BatchInterrupted(f"{text}; it will be delivered again")

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while await self._wait_until_due():
            pieces = self._gatherer.take(self._is_alive)
            self._taken.set()
            self._taken = asyncio.Event()
            if pieces and not await self._deliver(pieces):
                return

    def _is_alive(self, tp: TopicPartition) -> bool:
        return tp in self._lanes and not self._lanes[tp].claim.ended

    async def _wait_until_due(self) -> bool:
        """Wait until a batch should be taken; False if the bridge closes."""
        while not self._closing.is_set():
            self._news.clear()
            oldest = self._gatherer.oldest
            remaining = None if oldest is None else oldest + self._wishes.max_wait - self.time()
            if remaining is not None and (self._gatherer.is_full or remaining <= 0):
                return True
            await wait_within(self._news, remaining)
        return False

    async def _deliver(self, pieces: list[Piece]) -> bool:
        """Call the function, mark, commit; False if the bridge has failed."""
        tries = Tries(self._wishes.on_error, self._rng)
        delivery = self._delivery = Delivery(pieces, self._numbers.take(), tries, self.time())
        failure: BaseException | None = None
        try:
            failure = await self._call(delivery)
        except BaseException as error:  # noqa: BLE001  a claim raises it
            failure = error
        delivery.freed.set_result(None)
        if delivery.is_interrupted:
            failure = None
            self._take_back(delivery)
        elif failure is None:
            self._tally.returned(delivery.batch_id, delivery.rows, delivery.bytes)
            failure = await self._settle(delivery)
        if failure is not None:
            self._fail(delivery, failure)
        self._delivery = None
        delivery.over.set_result(None)
        return failure is None

    async def _call(self, delivery: Delivery) -> BaseException | None:
        """Call the function, again if it raises and may; returns its last exception."""
        records = [piece.records for piece in delivery.pieces]
        while True:
            called = await self._jobs.run(records, delivery.batch_id, delivery.interrupt)
            self._tally.called(called.frame_seconds, called.fn_seconds)
            error = called.error
            if error is None or delivery.is_interrupted:
                return None
            self._tally.failed(error, self.time())
            pause = delivery.tries.pause_after(error)
            if pause is None:
                return error
            _log.warning(
                "%r failed (%d), it is tried again in %.1f s",
                delivery.batch_id,
                delivery.tries.failures,
                pause,
                exc_info=error,
            )
            if await wait_within(delivery.is_last_try, pause):
                delivery.interrupt_now()  # nothing is begun for a claim that has ended
                return None

    def _take_back(self, delivery: Delivery) -> None:
        """Whatever came of it counts as not done; the claims that stay get their part delivered again."""
        self._tally.interrupted += 1
        _log.warning("%r was interrupted; it will be delivered again", delivery.batch_id)
        parts = (self._not_read_again(piece) for piece in delivery.pieces if piece.tp in self._lanes)
        self._gatherer.put_back([piece for piece in parts if piece is not None])

    def _not_read_again(self, piece: Piece) -> Piece | None:
        """All of a piece, unless its reader went back meanwhile."""
        return piece.before(self._gatherer.start_of(piece.tp, self._lanes[piece.tp].position))

    async def _settle(self, delivery: Delivery) -> BaseException | None:
        began = self.time()
        try:
            return await mark_and_commit(self._session, delivery, self._lanes, self._closing)
        except Exception as error:  # noqa: BLE001  it ends the batch, as any failure of it
            return error
        finally:
            self._tally.commit_seconds += self.time() - began

    def _fail(self, delivery: Delivery, error: BaseException) -> None:
        """One claim raises it, of the batch if there is one left; the session then ends for the others."""
        failures = delivery.tries.failures
        note(error, f"while delivering {delivery.batch_id!r}" + (f", try {failures}" if failures > 1 else ""))
        for tp in sorted(self._lanes, key=lambda tp: (tp not in delivery.partitions, tp)):
            if not self._lanes[tp].failure.done():
                self._lanes[tp].failure.set_result(error)
                return
        _log.error("the batch %r failed after all claims had gone", delivery.batch_id, exc_info=error)

"""The bridge of one session: claims hand over records, one runner makes batches of them, delivers and commits.

`consume` runs once per claim, in the handler's task; the runner starts with the first claim and ends with the last.
While a batch is with the user's function, the claims gather the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Final

from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ErrorCode,
    TransportError,
)
from asyncgroup.group import Claim, Session
from asyncgroup.lifecycle import finish, note
from asyncgroup.model import Batch, TopicPartition
from asyncgroup.spark.bridge.batch_id import BatchId
from asyncgroup.spark.bridge.gatherer import Gatherer, Piece, ranges_of
from asyncgroup.spark.bridge.jobs import SparkJobs

__all__ = ["Bridge"]

_log = logging.getLogger("asyncgroup.spark")

PIECE_ROWS: Final = 4_000
PIECE_BYTES: Final = 1024 * 1024
"""Records are turned into Arrow on the event loop, at most so many (so many wire bytes) in one go."""

COMMIT_BACKOFF: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Pauses between tries of a commit, on top of the session's own retries; the last one repeats."""


class Lane:
    """A claim's place in the bridge. `position` is where its next range starts."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.tp = TopicPartition(claim.topic, claim.partition)
        self.position = claim.initial_offset
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """What this claim has to raise for the whole bridge."""


class Delivery:
    """A batch that was begun: `freed` is done when its thread is free, `over` when its offsets are committed too."""

    def __init__(self, pieces: list[Piece], batch_id: BatchId) -> None:
        loop = asyncio.get_running_loop()
        self.pieces, self.batch_id = pieces, batch_id
        self.partitions = {piece.tp for piece in pieces}
        self.interrupt: asyncio.Future[None] = loop.create_future()
        self.freed: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()

    def interrupt_now(self) -> None:
        """Let the function end soon; nothing of the batch is marked."""
        if not self.interrupt.done():
            self.interrupt.set_result(None)


class Bridge:
    """Gathers the claims of `session` and delivers batches, one at a time."""

    def __init__(
        self,
        session: Session,
        jobs: SparkJobs,
        gatherer: Gatherer,
        numbers: Iterator[int],
        *,
        max_wait: float,
        include_headers: bool,
    ) -> None:
        self._session, self._jobs, self._gatherer, self._numbers = session, jobs, gatherer, numbers
        self._max_wait, self._include_headers = max_wait, include_headers
        self._lanes: dict[TopicPartition, Lane] = {}
        self._delivery: Delivery | None = None
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._closing = asyncio.Event()
        self._time = asyncio.get_running_loop().time
        self._runner: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"delivering {self._delivery.batch_id!r}" if self._delivery else "idle"
        return f"<Bridge: {len(self._lanes)} claims, {state}, {self._gatherer!r}>"

    # --- the claims' side ---------------------------------------------------------------------------------------

    def open(self, claim: Claim) -> Lane:
        """Make a place for a claim."""
        lane = Lane(claim)
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
        if self._runner is not None:
            await finish(self._runner)
        self._jobs.close()

    async def consume(self, lane: Lane) -> None:
        """Hand over a claim's records until it ends; then wait for the batch that holds some of them.

        Raises what the function, the commit or the claim's iterator raised. When cancelled, the batch is interrupted.
        """
        pulling = asyncio.create_task(self._pull(lane), name=f"{lane.tp}: pull")
        ended = asyncio.create_task(lane.claim.wait_ended(), name=f"{lane.tp}: end")
        first: list[asyncio.Future[Any]] = [pulling, ended, lane.failure]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            await _cancel(pulling, ended)
            self._gatherer.drop(lane.tp)
            await self._drain(lane)
        except asyncio.CancelledError:
            await self._abandon(lane)
            raise
        finally:
            await _cancel(pulling, ended)
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
        start = min(lane.position, batch.first_offset) if lane.position >= 0 else batch.first_offset
        lane.position = batch.last_offset + 1
        records = batch.to_arrow(include_headers=self._include_headers)
        return Piece(lane.tp, start, lane.position, self._time(), records)

    async def _drain(self, lane: Lane) -> None:
        """Wait for the batch under way, if it holds records of this claim; a lost session's is interrupted."""
        delivery = self._delivery
        if delivery is None or lane.tp not in delivery.partitions:
            return
        lost = asyncio.create_task(self._session.wait_lost(), name=f"{lane.tp}: loss")
        try:
            await asyncio.wait({delivery.over, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not delivery.over.done():
                delivery.interrupt_now()
                await asyncio.wait({delivery.over})
        finally:
            await _cancel(lost)

    async def _abandon(self, lane: Lane) -> None:
        """No time is left: have the batch end, and wait until its thread is free."""
        delivery = self._delivery
        if delivery is not None and lane.tp in delivery.partitions:
            delivery.interrupt_now()
            await finish(delivery.freed)

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
            remaining = None if oldest is None else oldest + self._max_wait - self._time()
            if remaining is not None and (self._gatherer.is_full or remaining <= 0):
                return True
            await _wait_at_most(self._news, remaining)
        return False

    async def _deliver(self, pieces: list[Piece]) -> bool:
        """Call the function, mark, commit; False if the bridge has failed."""
        pieces.sort(key=lambda piece: (piece.tp, piece.start))
        batch_id = BatchId(next(self._numbers), ranges_of(pieces))
        delivery = self._delivery = Delivery(pieces, batch_id)
        failure: BaseException | None = None
        try:
            await self._jobs.run([piece.records for piece in pieces], batch_id, delivery.interrupt)
        except BaseException as error:  # noqa: BLE001  a claim raises it
            failure = error
        delivery.freed.set_result(None)
        if delivery.interrupt.done():
            # whatever came of it counts as not done; the claims that stay get their part delivered again
            failure = None
            self._gatherer.put_back(piece for piece in pieces if self._is_alive(piece.tp))
        elif failure is None:
            try:
                failure = await self._settle(delivery)
            except Exception as error:  # noqa: BLE001  it ends the batch, as any failure of it
                failure = error
        if failure is not None:
            self._fail(delivery, failure)
        self._delivery = None
        delivery.over.set_result(None)
        return failure is None

    def _fail(self, delivery: Delivery, error: BaseException) -> None:
        """One claim raises it, of the batch if there is one left; the session then ends for the others."""
        note(error, f"while delivering {delivery.batch_id!r}")
        for tp in sorted(self._lanes, key=lambda tp: (tp not in delivery.partitions, tp)):
            if not self._lanes[tp].failure.done():
                self._lanes[tp].failure.set_result(error)
                return
        _log.error("the batch %r failed after all claims had gone", delivery.batch_id, exc_info=error)

    async def _settle(self, delivery: Delivery) -> CommitFailedError | None:
        """Mark the batch and commit; returns the error that trying again cannot heal, if there is one."""
        for part in delivery.batch_id.ranges:
            lane = self._lanes.get(TopicPartition(part.topic, part.partition))
            if lane is not None and not self._session.is_lost:
                self._session.mark_offset(part.topic, part.partition, part.end)
        for pause in _pauses():
            try:
                await self._session.commit()
                return None
            except CommitFailedError as error:
                reasons = self._reasons(delivery, error)
                if not reasons or self._closing.is_set():
                    return None
                if not all(map(_heals, reasons)):
                    return error
                _log.warning("batch %s is done, its commit is tried again: %s", delivery.batch_id, error)
            await _wait_at_most(self._closing, pause)
        return None

    def _reasons(self, delivery: Delivery, error: CommitFailedError) -> list[AsyncGroupError]:
        """Why partitions of this batch that we still own could not be committed."""
        return [
            reason
            for tp, reason in error.errors.items()
            if tp in delivery.partitions and tp in self._lanes and not self._session.is_lost
        ]


def _heals(error: AsyncGroupError) -> bool:
    if isinstance(error, BrokerError):
        # between join and sync of a rebalance; the marks go out under the next generation or not at all
        return error.retriable or error.code == ErrorCode.REBALANCE_IN_PROGRESS
    return isinstance(error, TransportError)


def _pauses() -> Iterator[float]:
    yield from COMMIT_BACKOFF
    while True:
        yield COMMIT_BACKOFF[-1]


async def _wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await finish(asyncio.gather(*tasks, return_exceptions=True))

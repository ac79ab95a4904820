"""Which batches belong to the current transaction of a member, and what an abort takes back. Pure state, no I/O.

The claims of a member share one producer, so they share its transactions, as the tasks of a thread do in Kafka Streams
(`TaskExecutor.commitOffsetsOrTransaction`). A transaction can be committed only when no batch in it is half transformed:
it is OPEN, then ENDING, when further batches wait for the next one, then COMMITTING.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from asyncgroup.group.sessions.claim import Claim
from asyncgroup.model import Batch, CommittedOffset, TopicPartition

__all__ = ["ClaimProgress", "Phase", "SharedTransaction", "SharedTransactions", "Ticket"]


class Phase(Enum):
    """The phases of a transaction."""

    OPEN = "batches begin and end"
    ENDING = "batches that have begun are awaited, others wait for the next transaction"
    COMMITTING = "offsets and output are committed"
    OVER = "committed or aborted"


class SharedTransaction:
    """One transaction: how many batches in it are being transformed, and the first failure."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.phase = Phase.OPEN
        self.running = 0
        """Batches that have begun and not ended."""
        self.calls = 0
        """Calls of the producer for its batches that have not returned."""
        self.failure: BaseException | None = None
        """Why it has to be aborted; None while it can be committed."""
        self.is_producers_failure = False
        """Whether the producer raised it, so that it counts as a failed attempt."""
        self.over = asyncio.Event()

    def __repr__(self) -> str:
        state = "to be aborted" if self.failure is not None else self.phase.name.lower()
        return f"<SharedTransaction {self.number}: {state}, {self.running} batches>"

    @property
    def is_open(self) -> bool:
        """Whether further batches can begin."""
        return self.failure is None and self.phase is Phase.OPEN

    @property
    def is_live(self) -> bool:
        """Whether output can still be added to it."""
        return self.failure is None and self.phase in (Phase.OPEN, Phase.ENDING)

    @property
    def is_whole(self) -> bool:
        """Whether it can be committed, or has to be aborted."""
        is_quiet = not (self.running or self.calls)
        return self.failure is not None or (self.phase is Phase.ENDING and is_quiet)


class ClaimProgress:
    """What a claim has in the current transaction, and where an abort returns to."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.marks = claim._inner.offsets
        self.first_offset: int | None = None
        """The lowest offset of its batches in the transaction; None if it has none."""
        self.before = self.marks.value
        """The mark when the transaction began."""
        self.waiter: asyncio.Future[Ticket | None] | None = None
        """Set while a batch waits for the next transaction."""

    def __repr__(self) -> str:
        return f"<ClaimProgress of {self.claim.tp}: from {self.first_offset}, next commit {self.marks.next_offset}>"

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self.claim.tp


class Ticket:
    """A batch that is being transformed in a transaction."""

    __slots__ = ("batch", "is_open", "progress", "transaction")

    def __init__(self, transaction: SharedTransaction, progress: ClaimProgress, batch: Batch) -> None:
        self.transaction = transaction
        self.progress = progress
        self.batch = batch
        self.is_open = True


class SharedTransactions:
    """The transactions of one session. Each change sets `changed`, and the task that commits checks the state again."""

    def __init__(self) -> None:
        self.current: SharedTransaction | None = None
        self.changed = asyncio.Event()
        self._claims: dict[TopicPartition, ClaimProgress] = {}
        self._waiting: dict[ClaimProgress, Batch] = {}  # in order of arrival
        self._count = 0

    def __repr__(self) -> str:
        return f"<SharedTransactions: {self.current!r}, {len(self._waiting)} batches wait>"

    @property
    def is_wanted(self) -> bool:
        """Whether a batch waits for the next transaction."""
        return bool(self._waiting)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of this state holds."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    # --- claims ---------------------------------------------------------------------------------------------------

    def add(self, claim: Claim) -> ClaimProgress:
        """Add a claim: its marks are no longer committed outside of transactions."""
        if (former := self._claims.get(claim.tp)) is not None:  # its handler ignores its cancellation
            self.remove(former)
        progress = self._claims[claim.tp] = ClaimProgress(claim)
        progress.marks.transactional = True
        return progress

    def remove(self, progress: ClaimProgress) -> None:
        """Remove a claim that has ended; what it has in the transaction cannot be committed any more."""
        self.give_up(progress, RuntimeError("the claim has ended"))
        if self._claims.get(progress.tp) is progress:
            del self._claims[progress.tp]

    def on_claim_ended(self, progress: ClaimProgress) -> None:
        """The claim was revoked, or the session ends: its waiting batch is dropped, and its transaction ends soon."""
        self._drop_waiting(progress)
        if self._has_batches(progress):
            assert self.current is not None
            self.request_end(self.current)

    def give_up(self, progress: ClaimProgress, error: BaseException) -> None:
        """Abort the transaction if it contains batches of this claim, unless its commit has begun."""
        if self._has_batches(progress):
            assert self.current is not None
            self.fail(self.current, error)

    def _has_batches(self, progress: ClaimProgress) -> bool:
        """Whether the transaction contains batches of this claim."""
        is_present = self._claims.get(progress.tp) is progress  # else the partition was assigned again
        return is_present and self.current is not None and progress.first_offset is not None

    # --- batches --------------------------------------------------------------------------------------------------

    def enter(self, progress: ClaimProgress, batch: Batch) -> Ticket | None:
        """Begin a batch in the open transaction; None if it has to wait for the next one."""
        if self.current is None or not self.current.is_open:
            return None
        return self._begin_batch(self.current, progress, batch)

    def wait_in_line(self, progress: ClaimProgress, batch: Batch) -> asyncio.Future[Ticket | None]:
        """Return a future of the batch's ticket in the next transaction; None if the batch is dropped before."""
        progress.waiter = asyncio.get_running_loop().create_future()
        self._waiting[progress] = batch
        self.changed.set()
        return progress.waiter

    def _begin_batch(self, transaction: SharedTransaction, progress: ClaimProgress, batch: Batch) -> Ticket:
        transaction.running += 1
        before = progress.marks.value
        if progress.first_offset is None:
            progress.first_offset, progress.before = batch.first_offset, before
        elif batch.first_offset < progress.first_offset:
            # reading went back: a seek, or the log was truncated
            progress.first_offset = batch.first_offset
            progress.before = min(progress.before, before, key=lambda value: value.offset)
        return Ticket(transaction, progress, batch)

    def end_batch(self, ticket: Ticket) -> None:
        """A batch is complete: it is committed with the transaction."""
        self._close(ticket)
        if ticket.transaction.is_live:
            batch, marks = ticket.batch, ticket.progress.marks
            marks.advance(batch.last_offset + 1, "", batch.leader_epoch)
            if marks.next_offset <= batch.last_offset:
                self.fail(
                    ticket.transaction, RuntimeError(f"{marks!r} is behind {batch!r}: the log was truncated")
                )

    def fail_batch(self, ticket: Ticket, error: BaseException) -> None:
        """A batch failed: its transaction is to be aborted."""
        self._close(ticket)
        self.fail(ticket.transaction, error)

    def _close(self, ticket: Ticket) -> None:
        ticket.is_open = False
        ticket.transaction.running -= 1
        self.changed.set()

    def end_call(self, transaction: SharedTransaction) -> None:
        """A call of the producer for a batch has returned."""
        transaction.calls -= 1
        if not transaction.is_open:  # else nothing waits for it
            self.changed.set()

    def withdraw(self, progress: ClaimProgress) -> None:
        """Drop a waiting batch, or one whose ticket was not used: its reader was cancelled."""
        waiter = progress.waiter
        if waiter is not None and waiter.done() and not waiter.cancelled() and (ticket := waiter.result()):
            self.fail_batch(ticket, RuntimeError("the reader was cancelled"))
        self._drop_waiting(progress)

    def _drop_waiting(self, progress: ClaimProgress) -> None:
        self._waiting.pop(progress, None)
        waiter, progress.waiter = progress.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self) -> SharedTransaction:
        """Begin a transaction, and all waiting batches in it."""
        self._count += 1
        self.current = transaction = SharedTransaction(self._count)
        waiting, self._waiting = self._waiting, {}
        for progress, batch in waiting.items():
            waiter = progress.waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(self._begin_batch(transaction, progress, batch))
        return transaction

    def request_end(self, transaction: SharedTransaction) -> None:
        """Let no further batch begin, so that the transaction can be committed once the running ones are complete."""
        if transaction.phase is Phase.OPEN:
            transaction.phase = Phase.ENDING
            self.changed.set()

    def fail(
        self, transaction: SharedTransaction, error: BaseException, *, by_producer: bool = False
    ) -> None:
        """The transaction has to be aborted; the first reason counts. Ignored once its commit has begun."""
        if transaction.is_live:
            transaction.failure, transaction.is_producers_failure = error, by_producer
            self.changed.set()

    def begin_commit(self, transaction: SharedTransaction) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets to commit; from now on the outcome is that of the producer."""
        transaction.phase = Phase.COMMITTING
        return {
            tp: progress.marks.value
            for tp, progress in self._claims.items()
            if progress.first_offset is not None
        }

    def committed(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        """The transaction is committed with these offsets."""
        for progress in self._claims.values():
            if progress.first_offset is not None:
                progress.first_offset = None
                progress.marks.committed(offsets[progress.tp])
        self._end()

    def aborted(self) -> None:
        """The transaction is aborted: each claim in it reads its batches again, and drops the one that it holds."""
        for progress in self._claims.values():
            if progress.first_offset is not None:
                offset, progress.first_offset = progress.first_offset, None
                marks = progress.marks
                marks.take_back(progress.before)
                if (
                    marks.next_offset < progress.before.offset
                ):  # the log was truncated, or the topic recreated
                    offset = marks.next_offset
                self._drop_waiting(progress)
                if not progress.claim.ended:
                    progress.claim.seek(offset)
        self._end()

    def _end(self) -> None:
        transaction, self.current = self.current, None
        if transaction is not None:
            transaction.phase = Phase.OVER
            transaction.over.set()
        self.changed.set()

"""SessionTransactions: the transactions of one session: claims transform batches in them, and a task commits them.

A member has one producer for all claims, as KIP-447 allows. With one for each claim the coordinators end as many transactions
as there are partitions: copying records of 100 bytes from 12 partitions took 15 % more CPU time with transactions of 0.1 s, and
40 % more, at about half of the rate, with those of 0.02 s (Kafka 4.3). The price of sharing is that a slow batch delays the
commits of all claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, HandlerCancelled, SessionFailed
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.transactions.errors import FailureAction, failure_action, fenced_error
from asyncgroup.group.transactions.output import TransactionOutput
from asyncgroup.group.transactions.shared import ClaimProgress, SharedTransaction, SharedTransactions, Ticket
from asyncgroup.lifecycle import add_note, cancel_and_wait, describe_error, start_task
from asyncgroup.log_events import log_fields
from asyncgroup.model import Batch
from asyncgroup.producer import Producer

__all__ = ["BatchLimits", "Failures", "SessionTransactions", "TransformFunction"]

_log = logging.getLogger("asyncgroup.group")

INF: Final = float("inf")

TransformFunction: TypeAlias = Callable[[Batch, TransactionOutput], Coroutine[Any, Any, None]]
"""Transforms a batch: writes its output."""


class BatchLimits(NamedTuple):
    """How large batches and transactions are."""

    max_records: int
    max_bytes: int
    commit_interval: float
    """Seconds from the first batch of a transaction to its end."""


class Failures:
    """Counts transactions that failed in a row, over sessions: after `limit` of them the next error is raised.

    With `raises_fenced` also ProducerFencedError is raised: another member may use the same transactional id.
    """

    def __init__(self, limit: int, raises_fenced: bool) -> None:
        self.limit = limit
        self._raises_fenced = raises_fenced
        self.count = 0

    def __repr__(self) -> str:
        return f"<Failures: {self.count} of {self.limit}>"

    def next_action(self, error: BaseException, *, counts: bool) -> FailureAction:
        """Return what to do after a failure, and count it."""
        self.count += counts
        if self.count > self.limit or (self._raises_fenced and fenced_error(error) is not None):
            return FailureAction.RAISE
        return failure_action(error)


class _Abort(Exception):
    """Aborts the producer's transaction; the reason is `SharedTransaction.failure`."""


class SessionTransactions:
    """Runs the transactions of a session with one producer. `run` is the body of the task that commits."""

    def __init__(
        self,
        session: Session,
        cluster: ClusterClient,
        producer: Producer,
        transform: TransformFunction,
        limits: BatchLimits,
        failures: Failures,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._producer = producer
        self._transform = transform
        self._limits = limits
        self._failures = failures
        self._state = SharedTransactions()
        self._retry = cluster.retry()

    def __repr__(self) -> str:
        return f"<SessionTransactions of {self._session.group_id!r}: {self._state!r}>"

    # --- claims ---------------------------------------------------------------------------------------------------

    async def consume(self, claim: Claim) -> None:
        """Transform the batches of a claim until it ends, and wait until those in the transaction are committed."""
        progress = self._state.add(claim)
        watching = start_task(self._watch(progress), name=f"{claim.tp}: end of the claim")
        limits = self._limits
        try:
            async for batch in claim.batches(max_records=limits.max_records, max_bytes=limits.max_bytes):
                await self._process(progress, batch)
            while progress.first_offset is not None and (transaction := self._state.current) is not None:
                self._state.request_end(transaction)
                await transaction.over.wait()
        finally:
            self._state.remove(progress)
            await cancel_and_wait(watching)

    async def _watch(self, progress: ClaimProgress) -> None:
        """End the transaction when a claim in it ends, at once if nothing can be committed any more."""
        await progress.claim.wait_ended()
        if self._session.is_lost:
            self._state.give_up(progress, self._session.cause or RuntimeError("the member is lost"))
        self._state.on_claim_ended(progress)

    async def _process(self, progress: ClaimProgress, batch: Batch) -> None:
        """Transform a batch in the open transaction, or in the next one."""
        ticket = self._state.enter(progress, batch) or await self._wait_in_line(progress, batch)
        if ticket is not None:  # else the batch is read again, here or by the next owner
            await self._run_transform(ticket)

    async def _wait_in_line(self, progress: ClaimProgress, batch: Batch) -> Ticket | None:
        state = progress.claim._inner
        state.renew(INF)  # it waits for other claims or for the commit: it is not stuck
        try:
            return await self._state.wait_in_line(progress, batch)
        except asyncio.CancelledError:
            self._state.withdraw(progress)
            raise
        finally:
            state.renew(0.0)

    async def _run_transform(self, ticket: Ticket) -> None:
        """Call the transform function in a task, so that its transaction is aborted at once when its time has passed.

        The function may ignore its cancellation; the other claims do not wait for it.
        """
        output = TransactionOutput(self._producer, self._state, ticket)
        work = start_task(self._transform(ticket.batch, output))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as cancellation:
            self._state.fail_batch(ticket, cancellation)
            await cancel_and_wait(work)
            if not work.cancelled() and (raised := work.exception()) is not None:
                raise raised from None
            raise
        error = HandlerCancelled("transform raised CancelledError") if work.cancelled() else work.exception()
        if error is None:
            self._state.end_batch(ticket)
            return
        is_aborted = ticket.transaction.failure is not None
        self._state.fail_batch(ticket, error)
        if not is_aborted:  # else the batch is repeated, and the function may succeed
            tp, batch = ticket.progress.claim.tp, ticket.batch
            add_note(error, f"of the batch of {tp} with offsets {batch.first_offset} to {batch.last_offset}")
            raise error

    # --- the task that commits --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run one transaction after another while there are batches, until cancelled or until the session has to end."""
        try:
            while True:
                await self._state.until(lambda: self._state.is_wanted)
                error = await self._run_transaction()
                if error is None:
                    self._retry.reset()
                elif not await self._recover(error):
                    return
        except Exception as error:  # noqa: BLE001  a bug: the claims must not wait for this task
            self._session._inner.fail(error, "the task of the transactions failed", by_handler=False)
        finally:
            self._state.aborted()

    async def _run_transaction(self) -> BaseException | None:
        """Run a transaction; return the error if its producer failed."""
        state, session = self._state, self._session._inner
        transaction: SharedTransaction | None = None
        try:
            async with self._producer.transaction():
                transaction = state.begin()
                await self._gather(transaction)
                if transaction.failure is not None:
                    raise _Abort
                offsets = state.begin_commit(transaction)
                if offsets:
                    await self._producer.send_offsets(session.group_offsets(offsets))
        except _Abort:
            assert transaction is not None
            error = transaction.failure if transaction.is_producers_failure else None
        except Exception as failure:  # noqa: BLE001  `failure_action` decides
            error = failure
        else:
            state.committed(offsets)
            self._failures.count = 0
            self._cluster.hooks.emit("on_commit", session.group_id, offsets, None)
            return None
        state.aborted()
        if transaction is not None:
            await state.until(lambda: not transaction.calls)
        return error

    async def _gather(self, transaction: SharedTransaction) -> None:
        """Let batches begin for `commit_interval`, then wait for those that have begun."""
        state = self._state
        try:
            async with asyncio.timeout(self._limits.commit_interval):
                await state.until(lambda: not transaction.is_open)
        except TimeoutError:
            state.request_end(transaction)
        await state.until(lambda: transaction.is_whole)

    async def _recover(self, error: BaseException) -> bool:
        """After a failure: wait before the next transaction, or end the session and return False."""
        session = self._session._inner
        # at the end of a session a transaction may fail because of the rebalance
        action = self._failures.next_action(error, counts=not session.ended)
        if action is FailureAction.RAISE:
            session.fail(fenced_error(error) or error, "a transaction failed", by_handler=False)
            return False
        if session.ended:
            _log.info("group %s: the last transaction failed: %s", session.group_id, describe_error(error))
            return False
        what = "its batches are repeated"
        if action is FailureAction.NEW_PRODUCER:  # it may be committed
            what = "the next session begins at the committed offsets"
        fields = log_fields("transaction_failed", group=session.group_id, error=error)
        _log.warning("group %s: a transaction failed, %s: %s", session.group_id, what, error, extra=fields)
        if isinstance(error, AsyncGroupError):
            session.member_health.report_error(error)
        if action is FailureAction.NEW_PRODUCER:
            cause = SessionFailed(f"a transaction failed: {describe_error(error)}")
            cause.__cause__ = error
            session.end(cause)
            return False
        await self._retry.wait()
        return True

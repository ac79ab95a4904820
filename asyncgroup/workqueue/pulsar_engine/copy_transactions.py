"""PulsarCopyTransactions: a copy and the acknowledgement of its original are committed in the same transaction.

A transaction takes the copies that wait. So after a crash at any point the copy is visible if and only if its original is
acknowledged.

- An aborted transaction acknowledges nothing: the broker delivers its originals again, to this consumer or to another one. Their
  deliveries are still open here, and their copies are tried again: the copy that is committed first counts.
- If the broker refuses one of several, each is tried in a transaction alone.
- A conflict says that the original is acknowledged: by a commit whose answer was lost, or by another consumer that got the message
  after this one had lost its connection. In both cases nothing is left to do here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from asyncgroup.errors import AsyncGroupError, ClosedError
from asyncgroup.lifecycle import cancel_and_wait, copy_error, mark_retrieved, start_task
from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.transactions.errors import PulsarTransactionConflict, PulsarTransactionError
from asyncgroup.pulsar.transactions.transaction import PulsarTransaction
from asyncgroup.workqueue.engine import OnWritten, OutgoingCopy
from asyncgroup.workqueue.pulsar_engine.copy_writer import PulsarCopyWriter

__all__ = ["AcknowledgingPartition", "PulsarCopyTransactions"]

TRANSACTION_TIMEOUT: Final = 10.0
"""Seconds after which a transaction whose process has died is aborted."""

MOST_COPIES: Final = 500
"""Copies of one transaction."""

_UNKNOWN: Final = -1


class AcknowledgingPartition(Protocol):
    """A partition of the queue, as the copies of its messages see it."""

    def ack_in(self, transaction: PulsarTransaction, offset: int) -> None:
        """Acknowledge a message in a transaction. Raises ClosedError if the message was given up."""
        ...

    def note_committed(self, offset: int) -> None:
        """The acknowledgement is committed, or another one is: no other follows."""
        ...

    def note_aborted(self, offset: int) -> None:
        """The message comes again, while its delivery is open here."""
        ...


class _Abandoned(Exception):
    """A copy was given up after it was sent: the others are written without it."""


class _WaitingCopy:
    """A copy that is not committed yet."""

    __slots__ = ("alone", "copy", "offset", "outcome", "tp")

    def __init__(self, tp: TopicPartition, offset: int, copy: OutgoingCopy, *, alone: bool) -> None:
        self.tp = tp
        self.offset = offset
        self.copy = copy
        self.alone = alone
        self.outcome: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(mark_retrieved)

    def __repr__(self) -> str:
        return f"<copy of {self.tp}@{self.offset} to {self.copy.topic!r}>"


class PulsarCopyTransactions:
    """A CopyWriter; `partition_of` returns the partition of a message, None if the queue has it no more."""

    is_transactional = True

    def __init__(
        self,
        client: Callable[[], PulsarClient],
        writer: PulsarCopyWriter,
        partition_of: Callable[[TopicPartition], AcknowledgingPartition | None],
    ) -> None:
        self._client = client
        self._writer = writer
        self._partition_of = partition_of
        self._waiting: list[_WaitingCopy] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<PulsarCopyTransactions {len(self._waiting)} copies wait>"

    async def check(self) -> None:
        """Raise TransactionsNotEnabled if the broker has no transactions."""
        async with self._client().transaction(TRANSACTION_TIMEOUT):
            pass

    async def aclose(self) -> None:
        """Abort the open transaction, and close the producers. Safe to call twice."""
        self._is_closed = True
        if self._task is not None:
            await cancel_and_wait(self._task)
        await self._writer.aclose()

    async def write(
        self,
        tp: TopicPartition,
        offset: int,
        copy: OutgoingCopy,
        on_written: OnWritten,  # noqa: ARG002
        *,
        alone: bool,
    ) -> RecordMetadata:
        """Return when the copy and the acknowledgement of its original are committed.

        Raises PulsarTransactionAborted, PulsarTransactionOutcomeUnknown, PulsarServerError, TransportError, ClosedError.
        """
        if self._is_closed:
            raise ClosedError("the queue is closed")
        waiting = _WaitingCopy(tp, offset, copy, alone=alone)
        self._waiting.append(waiting)
        if self._task is None:
            self._task = start_task(self._run(), name="transactions of copies")
        return await waiting.outcome

    def abandon(self, tp: TopicPartition, offset: int, *, is_over: bool) -> None:  # noqa: ARG002  of groups
        """Write no copies of a partition from `offset` on."""
        for waiting in self._waiting:
            if waiting.tp == tp and waiting.offset >= offset:
                waiting.outcome.cancel()

    def passes(self, error: Exception) -> bool:
        """Whether it may pass soon."""
        cause = error.__cause__ if isinstance(error, PulsarTransactionError) else error
        if isinstance(cause, AsyncGroupError):
            return cause.retriable or isinstance(cause, PulsarTransactionError)
        return isinstance(error, PulsarTransactionError)

    # --- transactions -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        taken: list[_WaitingCopy] = []
        try:
            while taken := self._take():
                await self._commit_or_fail(taken)
        finally:
            self._task = None
            waiting, self._waiting = [*taken, *self._waiting], []
            for each in waiting:
                if not each.outcome.done():
                    each.outcome.set_exception(ClosedError("the queue is closed"))

    def _take(self) -> list[_WaitingCopy]:
        """Remove and return the copies of the next transaction."""
        waiting = [each for each in self._waiting if not each.outcome.done()]
        taken = waiting[:1] if waiting and waiting[0].alone else [each for each in waiting if not each.alone]
        taken = taken[:MOST_COPIES]
        self._waiting = [each for each in waiting if each not in taken]
        return taken

    async def _commit_or_fail(self, copies: list[_WaitingCopy]) -> None:
        try:
            found = await self._commit(copies)
        except _Abandoned:
            self._waiting[:0] = copies  # `_take` leaves out those that were given up
        except PulsarTransactionConflict:
            if len(copies) > 1:
                await self._commit_each(copies)
            else:
                self._settle(copies, [RecordMetadata(copies[0].copy.topic, _UNKNOWN, _UNKNOWN, _UNKNOWN)])
        except Exception as error:  # noqa: BLE001  those that wait get it
            if len(copies) > 1 and not self.passes(error):
                await self._commit_each(copies)
                return
            for each in copies:
                if not each.outcome.done():
                    each.outcome.set_exception(copy_error(error))
        else:
            self._settle(copies, found)

    async def _commit_each(self, copies: list[_WaitingCopy]) -> None:
        for each in copies:
            if not each.outcome.done():
                await self._commit_or_fail([each])

    def _settle(self, copies: list[_WaitingCopy], found: list[RecordMetadata]) -> None:
        for each, metadata in zip(copies, found, strict=True):
            partition = self._partition_of(each.tp)
            if each.outcome.done():
                continue
            if partition is not None:
                partition.note_committed(each.offset)
            each.outcome.set_result(metadata)

    async def _commit(self, copies: list[_WaitingCopy]) -> list[RecordMetadata]:
        acked: list[tuple[AcknowledgingPartition, int]] = []
        try:
            async with self._client().transaction(TRANSACTION_TIMEOUT) as transaction:
                sends = [start_task(self._writer.send(each.copy, transaction)) for each in copies]
                try:
                    await asyncio.wait(sends)
                finally:
                    await cancel_and_wait(*sends)
                found = [each.result() for each in sends]
                if any(each.outcome.done() for each in copies):
                    raise _Abandoned
                for each in copies:
                    partition = self._partition_of(each.tp)
                    if partition is None:
                        raise ClosedError(f"{each.tp}: the queue does not have this partition any more")
                    partition.ack_in(transaction, each.offset)
                    acked.append((partition, each.offset))
        except BaseException:
            for partition, offset in acked:
                partition.note_aborted(offset)
            raise
        return found

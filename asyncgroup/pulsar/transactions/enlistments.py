"""TransactionEnlistments: what takes part in a transaction: topics, subscriptions, and the producers and consumers that use it there.

The coordinator adds a topic or a subscription before the first message or acknowledgement in it, and commits or aborts in all of
them (Java's `TransactionImpl.registerProducedTopic` and `registerAckedTopic`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Protocol, TypeVar

from asyncgroup.errors import AsyncGroupError, ClosedError
from asyncgroup.lifecycle import mark_retrieved, start_task
from asyncgroup.pulsar.transactions.coordinators import PulsarCoordinators
from asyncgroup.pulsar.transactions.operations import TransactionOperations
from asyncgroup.pulsar.transactions.txn_id import TxnId

__all__ = ["TransactionEnlistments", "TransactionParticipant"]

K = TypeVar("K")


class TransactionParticipant(Protocol):
    """A consumer whose messages a transaction has acknowledged."""

    def abort_begins(self) -> None:
        """The coordinator is asked to abort: the broker delivers the messages again."""

    def ended(self, *, is_committed: bool) -> None:
        """The transaction has ended, or its outcome is not known."""

    def late_abort_begins(self) -> None:
        """Acknowledgements that have come after the end are going to be aborted: the broker delivers their messages again."""

    def late_abort_ends(self) -> None:
        """They are aborted, or that has failed."""


class TransactionEnlistments:
    """What takes part in one transaction; `error_of(failure)` is the error of an operation after a failure."""

    def __init__(
        self, coordinators: PulsarCoordinators, txn_id: TxnId, error_of: Callable[[Exception], Exception]
    ) -> None:
        self.operations = TransactionOperations()
        """The messages and acknowledgements that are not answered."""
        self._coordinators = coordinators
        self._id = txn_id
        self._error_of = error_of
        self._topics: dict[str, asyncio.Task[None]] = {}
        self._subscriptions: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._flushes: dict[object, Callable[[], object]] = {}
        self._participants: dict[tuple[str, str], list[TransactionParticipant]] = {}

    def __repr__(self) -> str:
        return f"<TransactionEnlistments of {self._id}: {len(self._topics)} topics, {len(self._subscriptions)} subscriptions>"

    # --- topics and subscriptions -----------------------------------------------------------------------------------------

    def topic(self, topic: str) -> asyncio.Task[None]:
        """Have the coordinator add a topic without partitions, or a partition; return the task of that, which all callers share."""
        return self._add(self._topics, topic, lambda: self._coordinators.add_partition(self._id, topic))

    def subscription(self, topic: str, subscription: str) -> asyncio.Task[None]:
        """Have the coordinator add a subscription of such a topic; return the task of that."""
        return self._add(
            self._subscriptions,
            (topic, subscription),
            lambda: self._coordinators.add_subscription(self._id, topic, subscription),
        )

    def _add(
        self, tasks: dict[K, asyncio.Task[None]], key: K, add: Callable[[], Awaitable[None]]
    ) -> asyncio.Task[None]:
        added = tasks.get(key)
        if added is None:
            added = tasks[key] = start_task(self._added_by(add), name=f"transaction {self._id}: {key}")
            added.add_done_callback(mark_retrieved)
        return added

    async def _added_by(self, add: Callable[[], Awaitable[None]]) -> None:
        try:
            await add()
        except AsyncGroupError as error:
            self.operations.fail(error)
            raise self._error_of(error) from error
        except asyncio.CancelledError:
            raise self._error_of(ClosedError("it has ended")) from None

    @property
    def topics(self) -> list[str]:
        """The topics, and partitions, that it may have messages in."""
        return list(self._topics)

    @property
    def subscriptions(self) -> dict[tuple[str, str], list[TransactionParticipant]]:
        """The topics, or partitions, and subscriptions that it may have acknowledgements in, and their consumers until it has ended."""
        return {key: self._participants.get(key, []) for key in self._subscriptions}

    # --- producers and consumers ------------------------------------------------------------------------------------------

    def flush_before_end(self, key: object, flush: Callable[[], object]) -> None:
        """Call `flush` before the end, so that open batches with messages of it are sent."""
        self._flushes.setdefault(key, flush)

    def add_participant(self, topic: str, subscription: str, participant: TransactionParticipant) -> None:
        """Notify a consumer of the end."""
        self._participants.setdefault((topic, subscription), []).append(participant)

    def flush(self) -> None:
        """Have the open batches sent."""
        for flush in self._flushes.values():
            flush()

    def abort_begins(self) -> None:
        """The coordinator is asked to abort."""
        for participant in chain.from_iterable(self._participants.values()):
            participant.abort_begins()

    def end(self, *, is_committed: bool) -> None:
        """Notify the participants, and forget them; add nothing more."""
        for added in chain(self._topics.values(), self._subscriptions.values()):
            added.cancel()
        participants, self._participants = self._participants, {}
        self._flushes.clear()
        for participant in chain.from_iterable(participants.values()):
            participant.ended(is_committed=is_committed)

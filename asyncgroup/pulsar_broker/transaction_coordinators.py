"""TransactionCoordinators: the open transactions, by coordinator (Pulsar's `TransactionMetadataStoreService`, `MLTransactionMetadataStore`).

What a coordinator knows outlives the broker that it runs in. It runs in the broker that owns its partition of COORDINATOR_TOPIC, from the
first connection of a client to it on; while it does not run, its transactions do not time out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.commands import CommandAck, CommandSend
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.namespaces import Namespaces
from asyncgroup.pulsar_broker.subscription import Timing
from asyncgroup.pulsar_broker.topic import BrokerTopic
from asyncgroup.pulsar_broker.topic_log import TransactionId

__all__ = [
    "COORDINATOR_TOPIC",
    "TransactionCoordinators",
    "TransactionMetadataStore",
    "TxnMeta",
]

COORDINATOR_TOPIC: Final = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Its partitions are the coordinators."""


@dataclass(slots=True)
class TxnMeta:
    """A transaction that has not ended, as its coordinator keeps it (Pulsar's `TxnMetaImpl`)."""

    id: TransactionId
    opened_at: int
    """ms since 1970."""
    deadline: int
    """ms since 1970 when it is aborted."""
    topics: dict[str, None] = field(default_factory=dict)
    """The topics that it writes to, partitions one by one."""
    subscriptions: dict[tuple[str, str], None] = field(default_factory=dict)
    """Topic and subscription of what it acknowledges."""


End = Callable[[TxnMeta, int, TxnAction], None]
"""Ends a transaction in its topics and subscriptions; the number is the low water mark: there is none up to it any more."""


class TransactionMetadataStore:
    """The transactions of one coordinator (Pulsar's `MLTransactionMetadataStore`)."""

    def __init__(self, number: int, end: End, timing: Timing) -> None:
        self.number = number
        self.is_running = False
        """Whether a broker runs it."""
        self._end = end
        self._timing = timing
        self._open: dict[int, TxnMeta] = {}  # in the order of their numbers
        self._next = 0
        self._deadlines: list[tuple[int, int]] = []  # a heap: time in ms, transaction
        self._wakes_at: int | None = None

    def __repr__(self) -> str:
        return f"<TransactionMetadataStore {self.number}: {len(self._open)} open transactions>"

    @property
    def transactions(self) -> Iterable[TxnMeta]:
        """Its open transactions."""
        return self._open.values()

    def start(self) -> None:
        """Run in a broker; those that have timed out since are aborted."""
        self.is_running = True
        self._abort_overdue()

    def begin(self, time_to_live: int) -> TransactionId:
        """Open a transaction, and return its id; `time_to_live` in ms."""
        number, self._next = self._next, self._next + 1
        now = self._timing.now()
        deadline = now + time_to_live
        self._open[number] = TxnMeta((self.number, number), now, deadline)
        if time_to_live < 1:
            self.end(number, TxnAction.ABORT)
        else:
            heappush(self._deadlines, (deadline, number))
            self._schedule()
        return self.number, number

    def find(self, number: int) -> TxnMeta:
        """Return an open transaction. Raises ServerFailure."""
        found = self._open.get(number)
        if found is None:
            raise ServerFailure(
                ServerError.TRANSACTION_NOT_FOUND,
                f"The transaction with this txdID `({self.number},{number})`not found ",
            )
        return found

    def end(self, number: int, action: TxnAction) -> None:
        """Commit a transaction, or abort it. Raises ServerFailure."""
        found = self.find(number)
        self._end(found, next(iter(self._open)) - 1, action)
        del self._open[number]

    # --- time -------------------------------------------------------------------------------------------------------------

    def _abort_overdue(self) -> None:
        now, deadlines = self._timing.now(), self._deadlines
        while deadlines and deadlines[0][0] <= now:
            number = heappop(deadlines)[1]
            if number in self._open:
                self.end(number, TxnAction.ABORT)
        self._schedule()

    def _schedule(self) -> None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._open:
            heappop(deadlines)
        if deadlines and (self._wakes_at is None or deadlines[0][0] < self._wakes_at):
            self._wakes_at = deadlines[0][0]
            self._timing.wake(self._wakes_at, self._wake)

    def _wake(self) -> None:
        self._wakes_at = None
        if self.is_running:
            self._abort_overdue()


class TransactionCoordinators:
    """All coordinators; `count` 0: there are no transactions. `load(topic)` has the broker of a topic load it."""

    def __init__(
        self, count: int, namespaces: Namespaces, load: Callable[[TopicName], None], timing: Timing
    ) -> None:
        self.count = count
        self._namespaces = namespaces
        self._load = load
        self._coordinators = [TransactionMetadataStore(number, self._end, timing) for number in range(count)]
        if count:
            namespaces.define(COORDINATOR_TOPIC, count)

    def __repr__(self) -> str:
        return f"<TransactionCoordinators {self._coordinators!r}>"

    @property
    def transactions(self) -> list[TxnMeta]:
        """All open transactions."""
        return [found for coordinator in self._coordinators for found in coordinator.transactions]

    def coordinator(self, number: int) -> TransactionMetadataStore:
        """Return a coordinator. Raises ServerFailure."""
        if number >= self.count:
            raise ServerFailure(
                ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
                f"Transaction coordinator with id {number} not found!",
            )
        return self._coordinators[number]

    def find(self, transaction: TransactionId) -> TxnMeta:
        """Return an open transaction. Raises ServerFailure."""
        return self.coordinator(transaction[0]).find(transaction[1])

    def id_of(self, command: CommandSend | CommandAck) -> TransactionId:
        """Return the transaction of a command that has one. Raises ServerFailure if there are none here."""
        if not self.count:
            raise ServerFailure(ServerError.NOT_ALLOWED_ERROR, "Transactions are not enabled.")
        return command.txnid_most_bits or 0, command.txnid_least_bits or 0

    def _end(self, transaction: TxnMeta, low_water_mark: int, action: TxnAction) -> None:
        commits = action is TxnAction.COMMIT
        for text, name in transaction.subscriptions:
            topic = self._topic(text)
            subscription = None if topic is None else topic.subscriptions.get(name)
            if subscription is not None:
                subscription.end_transaction(transaction.id, low_water_mark, commits=commits)
        for text in transaction.topics:
            topic = self._topic(text)
            if topic is not None:
                topic.end_transaction(transaction.id, low_water_mark, commits=commits)

    def _topic(self, text: str) -> BrokerTopic | None:
        """Return a topic, loaded by its broker; None if it does not exist any more."""
        try:
            found = self._namespaces.topics.get(TopicName.parse(text))
        except ConfigError:
            return None
        if found is not None:
            self._load(found.name)
        return found

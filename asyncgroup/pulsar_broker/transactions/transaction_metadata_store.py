"""TransactionMetadataStore: the open transactions of one coordinator (Pulsar's `MLTransactionMetadataStore`). Pure state.

What a coordinator knows outlives the broker that it runs in; while it does not run, its transactions do not time out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import TransactionId
from asyncgroup.pulsar_broker.timing import Timing

__all__ = ["TransactionMetadataStore", "TxnMeta"]


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
    """The transactions of one coordinator. `end` is called with each that ends."""

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

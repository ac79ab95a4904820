"""PendingAckHandle: what open transactions have acknowledged in a subscription. Pure state (Pulsar's `PendingAckHandleImpl`)."""

from __future__ import annotations

from collections.abc import Sequence

from asyncgroup.pulsar.wire.ack_set import bits_of, full_set
from asyncgroup.pulsar.wire.commands import MessageIdData
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import Position, StoredEntry, TopicLog, TransactionId
from asyncgroup.pulsar_broker.subscriptions.cursor import Cursor

__all__ = ["PendingAckHandle"]


class PendingAckHandle:
    """The acknowledgements of open transactions. Messages that one has acknowledged are refused to all others, and to itself."""

    def __init__(self, log: TopicLog, cursor: Cursor) -> None:
        self._log = log
        self._cursor = cursor
        self._acked: dict[TransactionId, dict[int, tuple[StoredEntry, int]]] = {}  # messages as bits
        self._cumulative: tuple[TransactionId, Position, int] | None = None
        self._partly_committed: set[int] = set()  # batches with messages that transactions have acknowledged

    def __repr__(self) -> str:
        return f"<PendingAckHandle of {len(self._acked)} transactions, cumulative {self._cumulative}>"

    def __len__(self) -> int:
        return len(self._acked) + (self._cumulative is not None)

    # --- individual -------------------------------------------------------------------------------------------------------

    def ack(
        self, transaction: TransactionId, ids: Sequence[MessageIdData], *, is_shared: bool
    ) -> list[tuple[int, int]]:
        """Reserve messages; return the entries and how many messages of each may still be delivered. Raises ServerFailure.

        A batch of which some messages are acknowledged cannot be acknowledged as a whole if a transaction has done that, and in Shared and
        Key_Shared subscriptions: `PendingAckHandleImpl` has a copy of such batches, and finds the overlap.
        """
        found = [self._wanted(transaction, each, is_shared=is_shared) for each in ids]
        wanted = [each for each in found if each is not None]
        own = self._acked.setdefault(transaction, {}) if wanted else {}
        reserved = self._cursor.reserved
        for entry, bits in wanted:
            before = own.get(entry.index)
            own[entry.index] = entry, bits if before is None else bits | before[1]
            reserved[entry.index] = reserved.get(entry.index, full_set(entry.count)) & ~bits
        return [(entry.index, self._cursor.deliverable(entry).bit_count()) for entry, _ in wanted]

    def _wanted(
        self, transaction: TransactionId, given: MessageIdData, *, is_shared: bool
    ) -> tuple[StoredEntry, int] | None:
        """Return an entry and the messages to acknowledge in it; None for one that is not stored yet. Raises ServerFailure."""
        position = (given.ledger_id, given.entry_id)
        entry = self._log.find(position)
        if entry is None:
            if self._log.index_of(position) <= self._cursor.mark_delete:
                raise _conflict(transaction, position, "already acked before")
            return None
        unacked = self._cursor.unacked(entry)
        reserved = self._cursor.reserved.get(entry.index)
        if given.ack_set:
            bits = full_set(entry.count) & ~bits_of(given.ack_set)
            is_free = reserved is None or not bits & ~reserved
        else:
            bits = unacked
            has_copy = is_shared or entry.index in self._partly_committed
            is_free = reserved is None and not (has_copy and unacked != full_set(entry.count))
        if not unacked or bits & ~unacked:
            raise _conflict(transaction, position, "already acked before")
        if not is_free:
            raise _conflict(transaction, position, "in pending ack status")
        return entry, bits

    def pop(self, transaction: TransactionId) -> list[tuple[StoredEntry, int]]:
        """Forget what a transaction has acknowledged one by one; return the entries, with the messages that it has not."""
        found = []
        reserved = self._cursor.reserved
        for index, (entry, bits) in self._acked.pop(transaction, {}).items():
            full = full_set(entry.count)
            if index in reserved:  # else it was acknowledged without the transaction
                reserved[index] |= bits
                if reserved[index] == full:
                    del reserved[index]
            found.append((entry, full & ~bits))
        return found

    def committed(self, index: int) -> None:
        """A transaction that was committed has acknowledged messages of this entry."""
        if self._cursor.is_acked(index):
            self._partly_committed.discard(index)
        else:
            self._partly_committed.add(index)

    def before(self, coordinator: int, low_water_mark: int) -> TransactionId | None:
        """Return the oldest transaction here if its coordinator has none with such a low number any more."""
        oldest = next(iter(self._acked), None)
        if oldest is not None and oldest[0] == coordinator and oldest[1] <= low_water_mark:
            return oldest
        return None

    # --- cumulative -------------------------------------------------------------------------------------------------------

    def ack_up_to(self, transaction: TransactionId, position: Position, unacked: int) -> None:
        """Reserve everything up to a position; one transaction at a time can do so. Raises ServerFailure."""
        index = self._log.index_of(position)
        if index <= self._cursor.mark_delete:
            raise _conflict(transaction, position, "within range of cursor's markDeletePosition")
        if self._cumulative is not None:
            owner, before, unacked_before = self._cumulative
            # of the same batch a set with fewer messages is later
            if owner != transaction or (position, -unacked) <= (before, -unacked_before):
                raise _conflict(transaction, position, f"within range of current currentPosition: {before}")
        self._cumulative = transaction, position, unacked

    def pop_cumulative(self, transaction: TransactionId) -> tuple[Position, int] | None:
        """Forget the position up to which a transaction has acknowledged, and return it with the messages of its batch that it has not."""
        if self._cumulative is None or self._cumulative[0] != transaction:
            return None
        _, position, unacked = self._cumulative
        self._cumulative = None
        return position, unacked


def _conflict(transaction: TransactionId, position: Position, why: str) -> ServerFailure:
    most, least = transaction
    ledger, entry = position
    return ServerFailure(
        ServerError.TRANSACTION_CONFLICT,
        f"Transaction:({most},{least}) try to ack message:{ledger}:{entry} {why}.",
    )

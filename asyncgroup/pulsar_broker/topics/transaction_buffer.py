"""TransactionBuffer: which messages of a topic belong to transactions, and how far it may be read (Pulsar's `TopicTransactionBuffer`).

Nothing from the first message of an open transaction on is read. A transaction ends in a topic with a marker, which takes an entry;
markers and messages of aborted transactions are acknowledged by the dispatchers when they come to them.
"""

from __future__ import annotations

from typing import Final

from asyncgroup.pulsar.wire.enums import MarkerType
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry, TopicLog, TransactionId

__all__ = ["TransactionBuffer"]

MARKER_PRODUCER: Final = "pulsar.txn.marker"
NO_SEQUENCE_ID: Final = (1 << 64) - 1


class TransactionBuffer:
    """The transactions of one topic."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._open: dict[
            TransactionId, list[int]
        ] = {}  # their messages, by index; the first transaction first
        self._aborted: set[TransactionId] = set()
        self._low_water_marks: dict[
            int, int
        ] = {}  # by coordinator: transactions up to this number have ended
        self._is_used = False
        self.committed_count = 0
        """Transactions that were committed."""
        self.aborted_count = 0
        """Transactions that were aborted."""

    def __repr__(self) -> str:
        return f"<TransactionBuffer of {len(self._open)} open transactions>"

    @property
    def open_count(self) -> int:
        """The number of transactions that have messages here and have not ended."""
        return len(self._open)

    def is_open(self, transaction: TransactionId) -> bool:
        """Whether a transaction has messages here and has not ended."""
        return transaction in self._open

    def check(self, transaction: TransactionId) -> None:
        """Raise ServerFailure if a transaction has certainly ended."""
        if self._is_forgotten(transaction):
            coordinator, number = transaction
            raise ServerFailure(
                ServerError.NOT_ALLOWED_ERROR,
                f"Transaction [({coordinator},{number})] has been ended. Please use a new transaction to send message.",
            )

    def add(self, transaction: TransactionId, entry: StoredEntry) -> None:
        """A message of a transaction was stored."""
        self._is_used = True
        if transaction in self._aborted:
            self._log.hidden.add(entry.index)
        else:
            self._open.setdefault(transaction, []).append(entry.index)
            self._limit()

    def end(self, transaction: TransactionId, low_water_mark: int, now: int, *, commits: bool) -> None:
        """Write the marker of a transaction, with the time of day in ms; an aborted one needs none if there were never any messages."""
        if not commits and not self._is_used:
            return
        self._write_marker(transaction, now, commits=commits)
        coordinator = transaction[0]
        self._low_water_marks[coordinator] = max(low_water_mark, self._low_water_marks.get(coordinator, -1))
        while (oldest := next(iter(self._open), None)) is not None and self._is_forgotten(oldest):
            self._write_marker(oldest, now, commits=False)
        self._limit()

    def _is_forgotten(self, transaction: TransactionId) -> bool:
        """Whether the coordinator of a transaction has none with such a low number any more."""
        coordinator, number = transaction
        return number <= self._low_water_marks.get(coordinator, -1)

    def _write_marker(self, transaction: TransactionId, now: int, *, commits: bool) -> None:
        kind = MarkerType.TXN_COMMIT if commits else MarkerType.TXN_ABORT
        self._log.hidden.add(self._log.append(_marker(transaction, kind, now), b"").index)
        indexes = self._open.pop(transaction, [])
        if commits:
            self.committed_count += 1
        else:
            self.aborted_count += 1
            self._aborted.add(transaction)
            self._log.hidden.update(indexes)

    def _limit(self) -> None:
        self._log.first_open = next(iter(self._open.values()))[0] if self._open else None


def _marker(transaction: TransactionId, kind: MarkerType, now: int) -> MessageMetadata:
    most, least = transaction
    return MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=NO_SEQUENCE_ID,
        publish_time=now,
        marker_type=kind,
        txnid_most_bits=most,
        txnid_least_bits=least,
    )

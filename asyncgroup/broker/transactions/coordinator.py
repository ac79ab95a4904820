"""The transaction coordinator: transactional ids, and what is answered to each API (Kafka's `TransactionCoordinator`).

There is one for the cluster, and each transactional id has a node that answers for it; what Kafka keeps in
`__transaction_state` survives the end of that node here as there. Every step, markers included, is done at once,
unless a partition has no leader: then its marker waits for one, and the transaction is prepared meanwhile.

Gaps: transactional ids do not expire, `__transaction_state` is no topic, a node that comes back takes its ids back at
once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from asyncgroup.broker.controller import Controller, java_hash
from asyncgroup.broker.coordinator.ports import Timers
from asyncgroup.broker.topics import NO_LEADER
from asyncgroup.broker.transactions.markers import OFFSETS_TOPIC, Marker, Markers
from asyncgroup.broker.transactions.metadata import NO_PRODUCER, Producer, TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["MAX_TIMEOUT", "TransactionCoordinator", "TransactionResult"]

log = logging.getLogger(__name__)

MAX_TIMEOUT: Final = 900.0
"""Kafka's default of `transaction.max.timeout.ms`, in seconds."""

TRANSACTION_PARTITIONS: Final = 50
"""Kafka's default of `transaction.state.log.num.partitions`."""


class TransactionResult(NamedTuple):
    """An error, or the producer as it is now."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER


class TransactionCoordinator:
    """All methods are synchronous. Ask `error_for` first."""

    def __init__(self, controller: Controller, timers: Timers, markers: Markers) -> None:
        self._controller, self._timers, self.markers = controller, timers, markers
        self._transactions: dict[str, TransactionMetadata] = {}
        self._waiting: dict[TopicPartition, dict[str, None]] = {}

    def __repr__(self) -> str:
        return f"<TransactionCoordinator {len(self._transactions)} transactional ids>"

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """What is known, by transactional id."""
        return self._transactions

    # -- who answers -----------------------------------------------------------------------------------------

    def coordinator_of(self, transactional_id: str) -> int:
        """The node that answers for a transactional id, -1 if none is alive."""
        nodes = sorted(self._controller.alive)
        return (
            nodes[java_hash(transactional_id) % TRANSACTION_PARTITIONS % len(nodes)] if nodes else NO_LEADER
        )

    def error_for(self, transactional_id: str, node_id: int) -> ErrorCode:
        """Why this node cannot serve a transactional id; NONE if it can."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        mine = self.coordinator_of(transactional_id) == node_id
        return ErrorCode.NONE if mine else ErrorCode.NOT_COORDINATOR

    def offsets_place(self, group_id: str) -> TopicPartition:
        """The partition of `__consumer_offsets` that a transaction with offsets of this group holds."""
        return TopicPartition(OFFSETS_TOPIC, self._controller.offsets_partition(group_id))

    # -- what producers ask ----------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout: float, expected: Producer = NO_PRODUCER
    ) -> TransactionResult:
        """A producer starts (InitProducerId): who wrote under this id before is fenced.

        An open transaction is aborted first, and the client told to come back (CONCURRENT_TRANSACTIONS).
        """
        if not 0 < timeout <= MAX_TIMEOUT:
            return TransactionResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        found = self._transactions.get(transactional_id)
        if found is None:
            found = TransactionMetadata(transactional_id, self._controller.next_producer_id())
            self._transactions[transactional_id] = found
        if error := found.check_init(expected):
            return TransactionResult(error)
        if found.state is TransactionState.ONGOING:
            self._abort_fenced(found)
            return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        new_id = None
        if found.producer.is_exhausted and expected.epoch in (NO_PRODUCER.epoch, found.producer.epoch):
            new_id = self._controller.next_producer_id()
        error = found.begin_life(expected, new_id, timeout)
        return TransactionResult(error) if error else TransactionResult(ErrorCode.NONE, found.producer)

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Let the transaction hold these partitions (AddPartitionsToTxn, AddOffsetsToTxn, Produce of KIP-890)."""
        found = self._transactions.get(transactional_id)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := found.check_producer(producer):
            return error
        begins = found.state is not TransactionState.ONGOING
        found.add(partitions)
        if begins:
            self._timers.schedule(transactional_id, found.timeout, lambda: self._time_out(found))
        return ErrorCode.NONE

    def verify(self, transactional_id: str, producer: Producer, tp: TopicPartition) -> ErrorCode:
        """Whether the transaction holds a partition (AddPartitionsToTxn with VerifyOnly, KIP-890)."""
        found = self._transactions.get(transactional_id)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := found.check_producer(producer):
            return error
        return ErrorCode.NONE if tp in found.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def admit(
        self,
        transactional_id: str | None,
        producer: Producer,
        tp: TopicPartition,
        *,
        adds: bool,
        knows_abortable: bool,
    ) -> ErrorCode:
        """Whether a transactional write to a partition is in order, in words that its client knows.

        `adds`: a client of KIP-890 adds partitions by writing to them; others must have added them before.
        `knows_abortable`: the request's version has TRANSACTION_ABORTABLE. (`AddPartitionsToTxnManager`.)
        """
        if not transactional_id:
            return ErrorCode.INVALID_TXN_STATE
        if adds:
            error = self.add_partitions(transactional_id, producer, (tp,))
        else:
            error = self.verify(transactional_id, producer, tp)
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
            return ErrorCode.INVALID_TXN_STATE
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and not adds:
            return ErrorCode.NOT_ENOUGH_REPLICAS  # older clients don't try again after anything else
        return error

    def end(self, transactional_id: str, producer: Producer, *, commit: bool) -> TransactionResult:
        """Commit or abort (EndTxn up to version 4): the epoch stays, and the same request may come again."""
        found = self._transactions.get(transactional_id)
        if found is None or producer.id != found.producer.id:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != found.producer.epoch:
            return TransactionResult(ErrorCode.PRODUCER_FENCED)
        if found.state is TransactionState.ONGOING:
            self._settle(found, commit=commit)
            return TransactionResult(ErrorCode.NONE, found.producer)
        return self._ended_already(found, commit=commit)

    def end_and_bump(self, transactional_id: str, producer: Producer, *, commit: bool) -> TransactionResult:
        """Commit or abort (EndTxn from version 5, KIP-890): the epoch goes up, the answer says to what.

        A repeated request is known by its epoch, one below the current. An abort of nothing bumps as well.
        """
        found = self._transactions.get(transactional_id)
        if found is None:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        overflowed = producer.id == found.previous_id and producer.is_exhausted and found.producer.epoch == 0
        if producer.id != found.producer.id and not overflowed:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        bumped = producer.epoch + 1 == found.producer.epoch
        idle = found.state in (TransactionState.EMPTY, TransactionState.ONGOING)
        if overflowed or (bumped and not idle):
            return self._ended_already(found, commit=commit)
        if producer.epoch != found.producer.epoch or found.state.is_prepared:
            return TransactionResult(ErrorCode.PRODUCER_FENCED)
        if commit and found.state is not TransactionState.ONGOING:
            return TransactionResult(ErrorCode.INVALID_TXN_STATE)
        found.bump(self._controller.next_producer_id() if producer.is_exhausted else None)
        self._settle(found, commit=commit)
        return TransactionResult(ErrorCode.NONE, found.successor or found.producer)

    @staticmethod
    def _ended_already(found: TransactionMetadata, *, commit: bool) -> TransactionResult:
        """The answer to a request that comes again, or too late."""
        prepared, complete = (
            (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            if commit
            else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        )
        if found.state is complete:
            return TransactionResult(ErrorCode.NONE, found.producer)
        if found.state is prepared:
            return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        return TransactionResult(ErrorCode.INVALID_TXN_STATE)

    # -- ending ----------------------------------------------------------------------------------------------

    def _time_out(self, found: TransactionMetadata) -> None:
        """`transaction.timeout.ms` is over."""
        log.info("transaction of %r took more than %g s: aborted", found.transactional_id, found.timeout)
        self._abort_fenced(found)

    def _abort_fenced(self, found: TransactionMetadata) -> None:
        """Abort an open transaction in a new epoch, so that its producer can write nothing more."""
        found.fence()
        self._settle(found, commit=False)

    def _settle(self, found: TransactionMetadata, *, commit: bool) -> None:
        self._timers.cancel(found.transactional_id)
        found.prepare(commit=commit)
        self._write_markers(found, list(found.partitions))

    def _write_markers(self, found: TransactionMetadata, partitions: Iterable[TopicPartition]) -> None:
        marker = Marker(found.producer, found.state is TransactionState.PREPARE_COMMIT)
        for tp in partitions:
            if self.markers.write(tp, marker) is ErrorCode.LEADER_NOT_AVAILABLE:
                self._waiting.setdefault(tp, {})[found.transactional_id] = None
            else:
                del found.partitions[tp]
        if not found.partitions:
            found.complete()

    def partition_changed(self, tp: TopicPartition) -> None:
        """The partition may have a leader again, or be gone: write the markers that waited for it."""
        for transactional_id in self._waiting.pop(tp, ()):
            self._write_markers(self._transactions[transactional_id], [tp])

"""The transaction coordinator: transactional ids, and what is answered to each API (Kafka's `TransactionCoordinator`).

There is one for the cluster, and each transactional id has a node that answers for it; what Kafka keeps in
`__transaction_state` survives the end of that node here as there. Every step, markers included, is done at once,
unless a partition has no leader: then its marker waits for one, and the transaction is prepared meanwhile.

Gap: `__transaction_state` is no topic. An id that is idle for `transactional.id.expiration.ms` is forgotten; as that is
looked at when somebody asks for it, no timer is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.ports import Timers
from asyncgroup.broker.journal import Journal
from asyncgroup.broker.transactions.markers import OFFSETS_TOPIC, Marker, Markers
from asyncgroup.broker.transactions.metadata import NO_PRODUCER, Producer, TransactionMetadata
from asyncgroup.broker.transactions.state import IDLE_STATES, TransactionState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["MAX_TIMEOUT", "TransactionCoordinator", "TransactionResult"]

log = logging.getLogger(__name__)

MAX_TIMEOUT: Final = 900.0
"""Kafka's default of `transaction.max.timeout.ms`, in seconds."""

STORAGE_RETRY: Final = 1.0
"""Seconds after which a marker is written again that the disk did not take."""


ID_EXPIRATION_MS: Final = 604_800_000
"""Kafka's default of `transactional.id.expiration.ms`."""


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
        for name in list(self._transactions):
            self.find(name)
        return self._transactions

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """What is known of a transactional id, None for one that is unknown, or idle for so long that it is forgotten."""
        found = self._transactions.get(transactional_id)
        if found is None or found.state not in IDLE_STATES:
            return found
        if self.markers.clock() - found.updated < ID_EXPIRATION_MS:
            return found
        del self._transactions[transactional_id]
        self._journal.transaction_deleted(transactional_id)
        return None

    def _changed(self, found: TransactionMetadata) -> None:
        found.updated = self.markers.clock()
        self._journal.transaction_changed(found)

    # -- who answers -----------------------------------------------------------------------------------------

    def coordinator_of(self, transactional_id: str) -> int:
        """The node that answers for a transactional id, -1 if none is alive."""
        return self._controller.transaction_coordinator_of(transactional_id)

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
        found = self.find(transactional_id)
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
        self._changed(found)
        return TransactionResult(error) if error else TransactionResult(ErrorCode.NONE, found.producer)

    def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Let the transaction hold these partitions (AddPartitionsToTxn, AddOffsetsToTxn, Produce of KIP-890)."""
        found = self.find(transactional_id)
        if found is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := found.check_producer(producer):
            return error
        begins = found.state is not TransactionState.ONGOING
        if begins:
            found.started = self.markers.clock()
        found.add(partitions)
        self._changed(found)
        if begins:
            self._timers.schedule(transactional_id, found.timeout, lambda: self._time_out(found))
        return ErrorCode.NONE

    def verify(self, transactional_id: str, producer: Producer, tp: TopicPartition) -> ErrorCode:
        """Whether the transaction holds a partition (AddPartitionsToTxn with VerifyOnly, KIP-890)."""
        found = self.find(transactional_id)
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
        found = self.find(transactional_id)
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
        found = self.find(transactional_id)
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
        if found.state is not TransactionState.ONGOING:  # an abort of nothing (KIP-890)
            found.started = self.markers.clock()
        found.prepare(commit=commit)
        self._changed(found)  # before any marker: from here on there is no way back
        self._write_markers(found, list(found.partitions))

    def _write_markers(self, found: TransactionMetadata, partitions: Iterable[TopicPartition]) -> None:
        marker = Marker(found.producer, found.state is TransactionState.PREPARE_COMMIT)
        for tp in partitions:
            error = self.markers.write(tp, marker)
            if error in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR):
                self._waiting.setdefault(tp, {})[found.transactional_id] = None
                if error is ErrorCode.KAFKA_STORAGE_ERROR:
                    self._timers.schedule(tp, STORAGE_RETRY, partial(self.partition_changed, tp))
            else:
                del found.partitions[tp]
        if not found.partitions:
            found.complete()
            self._changed(found)

    def restore(self, transactions: Iterable[TransactionMetadata]) -> None:
        """Take up what a journal kept: outcomes that were settled get their markers, open transactions their time."""
        for found in transactions:
            self._transactions[found.transactional_id] = found
            if found.state is TransactionState.ONGOING:
                self._timers.schedule(found.transactional_id, found.timeout, partial(self._time_out, found))
            elif found.state.is_prepared:
                self._write_markers(found, list(found.partitions))

    @property
    def _journal(self) -> Journal:
        return self._controller.journal

    def partition_changed(self, tp: TopicPartition) -> None:
        """The partition may have a leader again, or be gone: write the markers that waited for it."""
        for transactional_id in self._waiting.pop(tp, ()):
            self._write_markers(self._transactions[transactional_id], [tp])

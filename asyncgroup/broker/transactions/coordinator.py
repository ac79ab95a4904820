"""The transaction coordinator: transactional ids, and what is answered to each API (Kafka's `TransactionCoordinator`).

There is one for the cluster, and each transactional id has a node that answers for it; what Kafka keeps in
`__transaction_state` survives the end of that node here as there. Every step, markers included, is done at once,
unless a partition has no leader: then its marker waits for one, and the transaction is prepared meanwhile.

Gap: `__transaction_state` is no topic. What is known of the ids is in `store`, how transactions end in `completion`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.coordinator.interfaces import Timers
from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.transactions.completion import TransactionCompletion
from asyncgroup.broker.transactions.markers import OFFSETS_TOPIC, MarkerWriter
from asyncgroup.broker.transactions.metadata import NO_PRODUCER, ProducerIdAndEpoch, TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.broker.transactions.store import TransactionStore
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["MAX_TIMEOUT", "TransactionCoordinator", "TransactionResult"]

MAX_TIMEOUT: Final = 900.0
"""Kafka's default of `transaction.max.timeout.ms`, in seconds."""


class TransactionResult(NamedTuple):
    """An error, or the producer as it is now."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


class TransactionCoordinator:
    """All methods are synchronous. Ask `error_for` first.

    What the journal does not take is not done: StorageError, which says NOT_COORDINATOR.
    """

    def __init__(self, controller: Controller, timers: Timers, markers: MarkerWriter) -> None:
        self._controller, self.markers = controller, markers
        self._store = TransactionStore(controller, markers.clock)
        self._completion = TransactionCompletion(self._store, timers, markers)

    def __repr__(self) -> str:
        return f"<TransactionCoordinator {self._store!r}>"

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """What is known, by transactional id."""
        return self._store.all()

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """What is known of a transactional id, None for one that is unknown or was forgotten."""
        return self._store.find(transactional_id)

    # -- who answers -----------------------------------------------------------------------------------------

    def coordinator_of(self, transactional_id: str) -> int:
        """The node that answers for a transactional id, -1 if none is alive."""
        return self._controller.coordinators.of_transaction(transactional_id)

    def error_for(self, transactional_id: str, node_id: int) -> ErrorCode:
        """Why this node cannot serve a transactional id; NONE if it can."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        mine = self.coordinator_of(transactional_id) == node_id
        return ErrorCode.NONE if mine else ErrorCode.NOT_COORDINATOR

    def offsets_topic_partition(self, group_id: str) -> TopicPartition:
        """The partition of `__consumer_offsets` that a transaction with offsets of this group holds."""
        return TopicPartition(OFFSETS_TOPIC, self._controller.coordinators.offsets_partition(group_id))

    # -- what producers ask ----------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout: float, expected: ProducerIdAndEpoch = NO_PRODUCER
    ) -> TransactionResult:
        """A producer starts (InitProducerId): who wrote under this id before is fenced.

        An open transaction is aborted first, and the client told to come back (CONCURRENT_TRANSACTIONS).
        Raises StorageError.
        """
        if not 0 < timeout <= MAX_TIMEOUT:
            return TransactionResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        metadata = self.find(transactional_id)
        if metadata is None:
            metadata = TransactionMetadata(transactional_id, self._controller.next_producer_id())
        if error := metadata.check_init(expected):
            return TransactionResult(error)
        if metadata.state is TransactionState.ONGOING:
            self._completion.fence_and_abort(metadata)
            return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        new_id = None
        if metadata.producer.is_exhausted and expected.epoch in (NO_PRODUCER.epoch, metadata.producer.epoch):
            new_id = self._controller.next_producer_id()
        with self._store.saving(metadata):
            error = metadata.init_producer(expected, new_id, timeout)
        self._store.add(metadata)
        return TransactionResult(error) if error else TransactionResult(ErrorCode.NONE, metadata.producer)

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Let the transaction hold these partitions (AddPartitionsToTxn, AddOffsetsToTxn, Produce of KIP-890).

        Raises StorageError.
        """
        metadata = self.find(transactional_id)
        if metadata is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := metadata.check_producer(producer):
            return error
        begins, wanted = metadata.state is not TransactionState.ONGOING, list(partitions)
        if not begins and metadata.partitions.keys() >= set(wanted):
            return ErrorCode.NONE
        with self._store.saving(metadata):
            if begins:
                metadata.start_timestamp = self.markers.clock()
            metadata.add(wanted)
        if begins:
            self._completion.start_timeout(metadata)
        return ErrorCode.NONE

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, tp: TopicPartition) -> ErrorCode:
        """Whether the transaction holds a partition (AddPartitionsToTxn with VerifyOnly, KIP-890)."""
        metadata = self.find(transactional_id)
        if metadata is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := metadata.check_producer(producer):
            return error
        return ErrorCode.NONE if tp in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE

    def add_or_verify(
        self,
        transactional_id: str | None,
        producer: ProducerIdAndEpoch,
        tp: TopicPartition,
        *,
        add_partition: bool,
        supports_abortable_error: bool,
    ) -> ErrorCode:
        """Whether a transactional write to a partition is in order, in words that its client knows.

        `add_partition`: a client of KIP-890 adds partitions by writing to them; others must have added them before.
        `supports_abortable_error`: the request's version has TRANSACTION_ABORTABLE. (`AddPartitionsToTxnManager`.)
        """
        if not transactional_id:
            return ErrorCode.INVALID_TXN_STATE
        try:
            if add_partition:
                error = self.add_partitions(transactional_id, producer, (tp,))
            else:
                error = self.verify(transactional_id, producer, tp)
        except StorageError:  # as `ReplicaManager` says for a coordinator that cannot answer
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error is ErrorCode.TRANSACTION_ABORTABLE and not supports_abortable_error:
            return ErrorCode.INVALID_TXN_STATE
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and not add_partition:
            return ErrorCode.NOT_ENOUGH_REPLICAS  # older clients don't try again after anything else
        return error

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool) -> TransactionResult:
        """Commit or abort (EndTxn up to version 4): the epoch stays, and the same request may come again.

        Raises StorageError.
        """
        metadata = self.find(transactional_id)
        if metadata is None or producer.id != metadata.producer.id:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if producer.epoch != metadata.producer.epoch:
            return TransactionResult(ErrorCode.PRODUCER_FENCED)
        if metadata.state is TransactionState.ONGOING:
            self._completion.end(metadata, commit=commit)
            return TransactionResult(ErrorCode.NONE, metadata.producer)
        return self._ended_already(metadata, commit=commit)

    def end_and_bump(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> TransactionResult:
        """Commit or abort (EndTxn from version 5, KIP-890): the epoch goes up, the answer says to what.

        A repeated request is known by its epoch, one below the current. An abort of nothing bumps as well.
        Raises StorageError.
        """
        metadata = self.find(transactional_id)
        if metadata is None:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        overflowed = (
            producer.id == metadata.previous_producer_id
            and producer.is_exhausted
            and metadata.producer.epoch == 0
        )
        if producer.id != metadata.producer.id and not overflowed:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        bumped = producer.epoch + 1 == metadata.producer.epoch
        idle = metadata.state in (TransactionState.EMPTY, TransactionState.ONGOING)
        if overflowed or (bumped and not idle):
            return self._ended_already(metadata, commit=commit)
        if producer.epoch != metadata.producer.epoch or metadata.state.is_prepared:
            return TransactionResult(ErrorCode.PRODUCER_FENCED)
        if commit and metadata.state is not TransactionState.ONGOING:
            return TransactionResult(ErrorCode.INVALID_TXN_STATE)
        new_id = self._controller.next_producer_id() if producer.is_exhausted else None
        self._completion.end(metadata, commit=commit, before_prepare=partial(metadata.bump_epoch, new_id))
        return TransactionResult(ErrorCode.NONE, metadata.next_producer or metadata.producer)

    @staticmethod
    def _ended_already(metadata: TransactionMetadata, *, commit: bool) -> TransactionResult:
        """The answer to a request that comes again, or too late."""
        prepared, complete = (
            (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            if commit
            else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        )
        if metadata.state is complete:
            return TransactionResult(ErrorCode.NONE, metadata.producer)
        if metadata.state is prepared:
            return TransactionResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        return TransactionResult(ErrorCode.INVALID_TXN_STATE)

    # -- from outside ----------------------------------------------------------------------------------------

    def restore(self, transactions: Iterable[TransactionMetadata]) -> None:
        """Take up what a journal kept."""
        for metadata in transactions:
            self._store.add(metadata)
            self._completion.resume(metadata)

    def partition_changed(self, tp: TopicPartition) -> None:
        """The partition may have a leader again, or be gone: markers may have waited for it."""
        self._completion.partition_changed(tp)

"""The transaction coordinator, with one method per API (Kafka's `TransactionCoordinator`).

One object serves the whole cluster; for each transactional id one node is the coordinator, and the state survives
the stop of that node, like Kafka's `__transaction_state`. Every step is immediate, including the markers, unless
a partition has no leader or the cluster has a delay for markers: until they are written the transaction is in a prepare
state.

Gap: `__transaction_state` is not a topic. The state of transactional ids is in `store`, the end of transactions
in `completion`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from asyncgroup.broker.clock import Timers
from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.transactions.completion import OFFSETS_TOPIC, MarkerWriter, TransactionCompletion
from asyncgroup.broker.transactions.metadata import (
    NO_PRODUCER,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from asyncgroup.broker.transactions.store import TransactionStore
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["MAX_TIMEOUT", "TransactionCoordinator", "TransactionResult"]

MAX_TIMEOUT: Final = 900.0
"""Kafka's default of `transaction.max.timeout.ms`, in seconds."""


class TransactionResult(NamedTuple):
    """An error, or the current producer id and epoch."""

    error: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


class TransactionCoordinator:
    """Serves the transactional ids of the cluster. All methods are synchronous. Callers check `error_for` first.

    A change that cannot be saved is undone, and KafkaStorageError with the code NOT_COORDINATOR is raised.
    """

    def __init__(
        self, controller: Controller, timers: Timers, markers: MarkerWriter, markers_delay: float = 0.0
    ) -> None:
        self._controller = controller
        self.markers = markers
        self._store = TransactionStore(controller, markers.clock)
        self._completion = TransactionCompletion(self._store, timers, markers, markers_delay)

    def __repr__(self) -> str:
        return f"<TransactionCoordinator {self._store!r}>"

    @property
    def transactions(self) -> Mapping[str, TransactionMetadata]:
        """The state of all transactional ids."""
        return self._store.all()

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id, None if it is unknown or expired."""
        return self._store.find(transactional_id)

    # -- coordinating nodes -----------------------------------------------------------------------------------

    def coordinator_of(self, transactional_id: str) -> int:
        """Return the node that coordinates a transactional id, -1 if none is alive."""
        return self._controller.coordinators.transaction_coordinator(transactional_id)

    def error_for(self, transactional_id: str, node_id: int) -> ErrorCode:
        """Return why this node cannot serve a transactional id, NONE if it can."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        is_coordinator = self.coordinator_of(transactional_id) == node_id
        return ErrorCode.NONE if is_coordinator else ErrorCode.NOT_COORDINATOR

    def offsets_topic_partition(self, group_id: str) -> TopicPartition:
        """Return the partition of `__consumer_offsets` that belongs to a transaction with offsets of this group."""
        return TopicPartition(OFFSETS_TOPIC, self._controller.coordinators.offsets_partition(group_id))

    # -- requests of producers --------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout: float, expected: ProducerIdAndEpoch = NO_PRODUCER
    ) -> TransactionResult:
        """Handle InitProducerId: fence the previous producer with this transactional id. `timeout` is in seconds.

        If a transaction is open, abort it and return CONCURRENT_TRANSACTIONS, which makes the client retry. Raise
        KafkaStorageError.
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
        # not before: a new id that could not be saved does not exist
        self._store.add(metadata)
        return TransactionResult(error) if error else TransactionResult(ErrorCode.NONE, metadata.producer)

    def add_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        """Add partitions to the transaction (AddPartitionsToTxn, AddOffsetsToTxn, and Produce with KIP-890).

        Raise KafkaStorageError.
        """
        metadata = self.find(transactional_id)
        if metadata is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error := metadata.check_producer(producer):
            return error
        begins, wanted = metadata.state is not TransactionState.ONGOING, list(partitions)
        # earlier requests have added all of these partitions
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
        """Return NONE if the partition belongs to the transaction (AddPartitionsToTxn with VerifyOnly, KIP-890)."""
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
        """Check a transactional write to a partition; return NONE or an error that the request's version knows.

        `add_partition`: add the partition to the transaction, as writes of KIP-890 clients do; else it must have been
        added before. `supports_abortable_error`: the version has TRANSACTION_ABORTABLE. (Kafka's
        `AddPartitionsToTxnManager.addOrVerifyTransaction`.)
        """
        if not transactional_id:
            return ErrorCode.INVALID_TXN_STATE
        try:
            if add_partition:
                error = self.add_partitions(transactional_id, producer, (tp,))
            else:
                error = self.verify(transactional_id, producer, tp)
        except KafkaStorageError:  # as `ReplicaManager` answers if the coordinator is not available
            return ErrorCode.NOT_ENOUGH_REPLICAS
        # Produce keeps this code for a fenced producer, the other requests have PRODUCER_FENCED (KIP-588)
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error is ErrorCode.TRANSACTION_ABORTABLE and not supports_abortable_error:
            return ErrorCode.INVALID_TXN_STATE
        if error is ErrorCode.CONCURRENT_TRANSACTIONS and not add_partition:
            # as `ReplicaManager` does: older clients retry after it, without a refresh of the metadata
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return error

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool) -> TransactionResult:
        """Handle EndTxn up to version 4: the epoch stays the same, and the request may be retried.

        Raise KafkaStorageError.
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
        """Handle EndTxn from version 5 (KIP-890): the epoch is bumped, and the result contains the new one.

        A retried request is recognized by its epoch, one below the current. An abort of an empty transaction bumps the
        epoch as well. Raise KafkaStorageError.
        """
        metadata = self.find(transactional_id)
        if metadata is None:
            return TransactionResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        # a retry of the request that used the last epoch: since then the transactional id has a new producer id
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
        """Return the result of a request for a transaction that has ended, or is ending, already."""
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

    # -- events of the cluster --------------------------------------------------------------------------------

    def restore(self, transactions: Iterable[TransactionMetadata]) -> None:
        """Restore the state of transactional ids from the journal, and resume their transactions."""
        for metadata in transactions:
            self._store.add(metadata)
            self._completion.resume(metadata)

    def partition_changed(self, tp: TopicPartition) -> None:
        """Write the markers that wait for the partition, which may have a leader again or be deleted."""
        self._completion.partition_changed(tp)

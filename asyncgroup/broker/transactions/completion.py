"""End transactions: decide the outcome, then write a marker to every partition.

This is `endTransaction` of Kafka's `TransactionCoordinator`, and its `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from asyncgroup.broker.clock import TimerKey, Timers
from asyncgroup.broker.errors import AppendError, KafkaStorageError
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.metadata.topics import NO_LEADER, OFFSETS_TOPIC, Partition
from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch, TransactionMetadata, TransactionState
from asyncgroup.broker.transactions.store import TransactionStore
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import ControlType

__all__ = ["OFFSETS_TOPIC", "MarkerWriter", "TransactionCompletion", "TransactionMarker"]


class TransactionMarker(NamedTuple):
    """The marker that ends a producer's transaction in a partition."""

    producer: ProducerIdAndEpoch
    commit: bool
    coordinator_epoch: int = 0
    bumps_epoch: bool = False
    """Whether the producer's epoch was bumped with the end of the transaction (KIP-890)."""


@dataclass(frozen=True, slots=True, eq=False)
class MarkerWriter:
    """Appends markers to the logs of the cluster; `clock` gives ms since 1970.

    `on_appended` is called with each partition after an append. For partitions of `__consumer_offsets`,
    `on_offsets_marker` is called too, with the partition number: the transaction's offsets are pending until its
    marker.
    """

    controller: Controller
    on_offsets_marker: Callable[[int, TransactionMarker], None]
    on_appended: Callable[[Partition], None]
    clock: Callable[[], int]

    def write(self, tp: TopicPartition, marker: TransactionMarker) -> ErrorCode:
        """Append a marker and return NONE or an error code.

        LEADER_NOT_AVAILABLE: to be retried when the partition has a leader. After UNKNOWN_TOPIC_OR_PARTITION
        (deleted) or INVALID_PRODUCER_EPOCH (a newer epoch of the producer wrote to the partition) no marker is
        needed.
        """
        topic = self.controller.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = topic.partitions[tp.partition]
        if partition.leader == NO_LEADER:
            return ErrorCode.LEADER_NOT_AVAILABLE
        try:
            partition.log.append_marker(
                ControlType.COMMIT if marker.commit else ControlType.ABORT,
                *marker.producer,
                partition.leader_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=self.clock(),
                append_time=partition.config.log_append_time,
                bumps_epoch=marker.bumps_epoch,
            )
        except AppendError as error:
            return error.code
        if tp.topic == OFFSETS_TOPIC:
            self.on_offsets_marker(tp.partition, marker)
        self.on_appended(partition)
        return ErrorCode.NONE


log = escaping_logger(__name__)

STORAGE_RETRY: Final = 1.0
"""Seconds until a marker, or the abort of a timed-out transaction, is retried after a storage error."""

_TRY_AGAIN: Final = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})
"""Errors after which a marker is written later; after other errors it is not needed any more."""


class TransactionCompletion:
    """Ends transactions, on request or when they time out."""

    def __init__(
        self, store: TransactionStore, timers: Timers, markers: MarkerWriter, markers_delay: float = 0.0
    ) -> None:
        self._store = store
        self._markers_delay = markers_delay
        """Seconds from a decision, which EndTxn returns, to the markers; 0: both in one step."""
        self._timers = timers
        self._markers = markers
        self._waiting: dict[TopicPartition, dict[str, TransactionMetadata]] = {}
        """Transactions whose marker could not be written yet, by partition and transactional id."""

    def __repr__(self) -> str:
        return f"<TransactionCompletion waiting for {len(self._waiting)} partitions>"

    def start_timeout(self, metadata: TransactionMetadata) -> None:
        """Schedule the abort of an open transaction, `timeout` seconds after its start."""
        left = metadata.timeout - (self._markers.clock() - metadata.start_timestamp) / 1000
        self._timers.schedule(_timeout_key(metadata), max(0.0, left), partial(self._time_out, metadata))

    def fence_and_abort(self, metadata: TransactionMetadata) -> None:
        """Bump the epoch and abort an open transaction, so that its producer cannot write any more.

        Raise KafkaStorageError.
        """
        self.end(metadata, commit=False, before_prepare=metadata.fence_producer_epoch)

    def end(
        self,
        metadata: TransactionMetadata,
        *,
        commit: bool,
        before_prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Decide the outcome, save it, then write the markers, at once or after the delay.

        Raise KafkaStorageError if it cannot be saved.

        `before_prepare` makes further changes that are saved with the outcome. Markers follow only after that, as a
        decision with a marker cannot be undone.
        """
        with self._store.saving(metadata):
            before_prepare()
            if metadata.state is not TransactionState.ONGOING:  # an abort of nothing (KIP-890)
                metadata.start_timestamp = self._markers.clock()
            metadata.prepare(commit=commit)
        self._timers.cancel(_timeout_key(metadata))
        log.debug("transactional id %r: %s", metadata.transactional_id, metadata.state)
        if self._markers_delay > 0:
            key = ("transaction markers", metadata.transactional_id)
            self._timers.schedule(key, self._markers_delay, partial(self._write_all_markers, metadata))
        else:
            self._write_all_markers(metadata)

    def _write_all_markers(self, metadata: TransactionMetadata) -> None:
        self._write_markers(metadata, list(metadata.partitions))

    def resume(self, metadata: TransactionMetadata) -> None:
        """Resume a transaction after a restart of the cluster.

        An open transaction gets its timeout again, a prepared one its markers.
        """
        if metadata.state is TransactionState.ONGOING:
            self.start_timeout(metadata)
        elif metadata.state.is_prepared:
            self._write_all_markers(metadata)

    def partition_changed(self, tp: TopicPartition) -> None:
        """Write the markers that wait for the partition, which may have a leader again or be deleted."""
        for metadata in self._waiting.pop(tp, {}).values():
            self._write_markers(metadata, [tp])

    def _time_out(self, metadata: TransactionMetadata) -> None:
        """Abort a transaction that took longer than its `transaction.timeout.ms`."""
        log.info(
            "transactional id %r: transaction took longer than %g s, aborting it",
            metadata.transactional_id,
            metadata.timeout,
        )
        try:
            self.fence_and_abort(metadata)
        except KafkaStorageError:
            self._timers.schedule(_timeout_key(metadata), STORAGE_RETRY, partial(self._time_out, metadata))

    def _write_markers(self, metadata: TransactionMetadata, partitions: Iterable[TopicPartition]) -> None:
        marker = TransactionMarker(metadata.producer, metadata.state is TransactionState.PREPARE_COMMIT)
        for tp in partitions:
            error = self._markers.write(tp, marker)
            if error in _TRY_AGAIN:
                self._waiting.setdefault(tp, {})[metadata.transactional_id] = metadata
                if error is ErrorCode.KAFKA_STORAGE_ERROR:
                    retry = partial(self.partition_changed, tp)
                    self._timers.schedule(("transaction marker", tp), STORAGE_RETRY, retry)
            else:
                del metadata.partitions[tp]
        if not metadata.partitions:
            metadata.complete()
            self._store.save_completed(metadata)
            log.debug("transactional id %r: %s", metadata.transactional_id, metadata.state)


def _timeout_key(metadata: TransactionMetadata) -> TimerKey:
    return ("transaction timeout", metadata.transactional_id)

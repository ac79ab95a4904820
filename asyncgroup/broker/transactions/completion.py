"""How transactions end: the outcome is settled, then every partition gets its marker (the second half of Kafka's
`TransactionCoordinator`, and the queues of its `TransactionMarkerChannelManager`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from asyncgroup.broker.coordinator.interfaces import TimerKey, Timers
from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.transactions.markers import MarkerWriter, TransactionMarker
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.broker.transactions.store import TransactionStore
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger
from asyncgroup.model import TopicPartition

__all__ = ["TransactionCompletion"]

log = escaping_logger(__name__)

STORAGE_RETRY: Final = 1.0
"""Seconds after which a marker is written again that the disk did not take."""

_TRY_AGAIN: Final = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})
"""Why a marker is not written yet; for other reasons it is not needed any more."""


class TransactionCompletion:
    """Ends transactions: when they are asked to, and when their time is up."""

    def __init__(self, store: TransactionStore, timers: Timers, markers: MarkerWriter) -> None:
        self._store, self._timers, self._markers = store, timers, markers
        self._waiting: dict[TopicPartition, dict[str, TransactionMetadata]] = {}

    def __repr__(self) -> str:
        return f"<TransactionCompletion {len(self._waiting)} partitions are waited for>"

    def start_timeout(self, metadata: TransactionMetadata) -> None:
        """A transaction is open: it has `timeout` seconds from its start on."""
        left = metadata.timeout - (self._markers.clock() - metadata.start_timestamp) / 1000
        self._timers.schedule(_timeout_key(metadata), max(0.0, left), partial(self._time_out, metadata))

    def fence_and_abort(self, metadata: TransactionMetadata) -> None:
        """Abort an open transaction in a new epoch, so that its producer can write nothing more. Raises StorageError."""
        self.end(metadata, commit=False, before_prepare=metadata.fence_producer_epoch)

    def end(
        self,
        metadata: TransactionMetadata,
        *,
        commit: bool,
        before_prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Settle the outcome, with what comes `before_prepare`; behind that there is no way back, so only then come markers.

        Raises StorageError.
        """
        with self._store.saving(metadata):
            before_prepare()
            if metadata.state is not TransactionState.ONGOING:  # an abort of nothing (KIP-890)
                metadata.start_timestamp = self._markers.clock()
            metadata.prepare(commit=commit)
        self._timers.cancel(_timeout_key(metadata))
        self._write_markers(metadata, list(metadata.partitions))

    def resume(self, metadata: TransactionMetadata) -> None:
        """Go on where the cluster stopped: an open transaction has what is left of its time, a settled one gets markers."""
        if metadata.state is TransactionState.ONGOING:
            self.start_timeout(metadata)
        elif metadata.state.is_prepared:
            self._write_markers(metadata, list(metadata.partitions))

    def partition_changed(self, tp: TopicPartition) -> None:
        """The partition may have a leader again, or be gone: write the markers that waited for it."""
        for metadata in self._waiting.pop(tp, {}).values():
            self._write_markers(metadata, [tp])

    def _time_out(self, metadata: TransactionMetadata) -> None:
        """`transaction.timeout.ms` is over."""
        log.info(
            "transaction of %r took more than %g s: aborted", metadata.transactional_id, metadata.timeout
        )
        try:
            self.fence_and_abort(metadata)
        except StorageError:
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


def _timeout_key(metadata: TransactionMetadata) -> TimerKey:
    return ("transaction timeout", metadata.transactional_id)

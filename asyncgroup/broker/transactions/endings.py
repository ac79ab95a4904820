"""How transactions end: the outcome is settled, then every partition gets its marker (the second half of Kafka's
`TransactionCoordinator`, and the queues of its `TransactionMarkerChannelManager`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from asyncgroup.broker.coordinator.ports import TimerKey, Timers
from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.transactions.markers import Marker, Markers
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.broker.transactions.store import TransactionStore
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger
from asyncgroup.model import TopicPartition

__all__ = ["Endings"]

log = escaping_logger(__name__)

STORAGE_RETRY: Final = 1.0
"""Seconds after which a marker is written again that the disk did not take."""

_TRY_AGAIN: Final = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR})
"""Why a marker is not written yet; for other reasons it is not needed any more."""


class Endings:
    """Ends transactions: when they are asked to, and when their time is up."""

    def __init__(self, store: TransactionStore, timers: Timers, markers: Markers) -> None:
        self._store, self._timers, self._markers = store, timers, markers
        self._waiting: dict[TopicPartition, dict[str, TransactionMetadata]] = {}

    def __repr__(self) -> str:
        return f"<Endings {len(self._waiting)} partitions are waited for>"

    def began(self, found: TransactionMetadata) -> None:
        """A transaction is open: it has `timeout` seconds from its start on."""
        left = found.timeout - (self._markers.clock() - found.started) / 1000
        self._timers.schedule(_timeout_key(found), max(0.0, left), partial(self._time_out, found))

    def abort_fenced(self, found: TransactionMetadata) -> None:
        """Abort an open transaction in a new epoch, so that its producer can write nothing more. Raises StorageError."""
        self.settle(found, commit=False, first=found.fence)

    def settle(
        self, found: TransactionMetadata, *, commit: bool, first: Callable[[], None] = lambda: None
    ) -> None:
        """Settle the outcome, with what comes `first`; behind that there is no way back, so only then come markers.

        Raises StorageError.
        """
        with self._store.keeping(found):
            first()
            if found.state is not TransactionState.ONGOING:  # an abort of nothing (KIP-890)
                found.started = self._markers.clock()
            found.prepare(commit=commit)
        self._timers.cancel(_timeout_key(found))
        self._mark(found, list(found.partitions))

    def resume(self, found: TransactionMetadata) -> None:
        """Go on where the cluster stopped: an open transaction has what is left of its time, a settled one gets markers."""
        if found.state is TransactionState.ONGOING:
            self.began(found)
        elif found.state.is_prepared:
            self._mark(found, list(found.partitions))

    def partition_changed(self, tp: TopicPartition) -> None:
        """The partition may have a leader again, or be gone: write the markers that waited for it."""
        for found in self._waiting.pop(tp, {}).values():
            self._mark(found, [tp])

    def _time_out(self, found: TransactionMetadata) -> None:
        """`transaction.timeout.ms` is over."""
        log.info("transaction of %r took more than %g s: aborted", found.transactional_id, found.timeout)
        try:
            self.abort_fenced(found)
        except StorageError:
            self._timers.schedule(_timeout_key(found), STORAGE_RETRY, partial(self._time_out, found))

    def _mark(self, found: TransactionMetadata, partitions: Iterable[TopicPartition]) -> None:
        marker = Marker(found.producer, found.state is TransactionState.PREPARE_COMMIT)
        for tp in partitions:
            error = self._markers.write(tp, marker)
            if error in _TRY_AGAIN:
                self._waiting.setdefault(tp, {})[found.transactional_id] = found
                if error is ErrorCode.KAFKA_STORAGE_ERROR:
                    retry = partial(self.partition_changed, tp)
                    self._timers.schedule(("transaction marker", tp), STORAGE_RETRY, retry)
            else:
                del found.partitions[tp]
        if not found.partitions:
            found.complete()
            self._store.completed(found)


def _timeout_key(found: TransactionMetadata) -> TimerKey:
    return ("transaction timeout", found.transactional_id)

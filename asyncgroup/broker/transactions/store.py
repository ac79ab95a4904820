"""The transactional ids that are known, as a journal keeps them (Kafka's `TransactionStateManager`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.errors import StorageError
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.transactions.state import IDLE_STATES
from asyncgroup.error_codes import ErrorCode

__all__ = ["TransactionStore"]

log = logging.getLogger(__name__)

ID_EXPIRATION_MS: Final = 604_800_000
"""Kafka's default of `transactional.id.expiration.ms`."""

MIN_EXPIRY_SCAN: Final = 1000
"""Transactional ids that may be known before those are looked for that nobody asks for any more."""


class TransactionStore:
    """Finds transactional ids, and has changes of them kept by the controller's journal; `clock` gives ms since 1970.

    An id that is idle for `transactional.id.expiration.ms` is forgotten; as that is looked at when somebody asks for it,
    and for all of them whenever there are twice as many as were left the last time, no timer is needed.
    """

    def __init__(self, controller: Controller, clock: Callable[[], int]) -> None:
        self._controller, self._clock = controller, clock
        self._transactions: dict[str, TransactionMetadata] = {}
        self._next_expiry_scan = MIN_EXPIRY_SCAN

    def __repr__(self) -> str:
        return f"<TransactionStore {len(self._transactions)} transactional ids>"

    def all(self) -> Mapping[str, TransactionMetadata]:
        """What is known, by transactional id."""
        for name in list(self._transactions):
            self.find(name)
        return self._transactions

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """What is known of a transactional id, None for one that is unknown, or idle for so long that it is forgotten."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.state not in IDLE_STATES:
            return metadata
        if self._clock() - metadata.last_update_timestamp < ID_EXPIRATION_MS:
            return metadata
        del self._transactions[transactional_id]
        self._controller.journal.transaction_deleted(transactional_id)
        return None

    def add(self, metadata: TransactionMetadata) -> None:
        """Know a transactional id from now on."""
        self._transactions[metadata.transactional_id] = metadata
        if len(self._transactions) >= self._next_expiry_scan:
            self._next_expiry_scan = max(MIN_EXPIRY_SCAN, 2 * len(self.all()))

    @contextmanager
    def saving(self, metadata: TransactionMetadata) -> Iterator[None]:
        """What is done to a transactional id inside is kept when this is left, or it is taken back: StorageError, which is
        NOT_COORDINATOR for clients (`TransactionStateManager.appendTransactionToLog`).
        """
        before = metadata.copy()
        try:
            yield
            self._save(metadata)
        except StorageError as error:
            metadata.restore_from(before)
            raise StorageError(str(error), ErrorCode.NOT_COORDINATOR) from error

    def save_completed(self, metadata: TransactionMetadata) -> None:
        """Keep that all is done; if that fails, a cluster that comes back finds it out again."""
        try:
            self._save(metadata)
        except StorageError as error:
            log.error("%s", error)

    def _save(self, metadata: TransactionMetadata) -> None:
        metadata.last_update_timestamp = self._clock()
        self._controller.journal.transaction_changed(metadata)

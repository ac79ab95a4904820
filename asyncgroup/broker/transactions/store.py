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

LOOKED_AT: Final = 1000
"""Transactional ids that may be known before those are looked for that nobody asks for any more."""


class TransactionStore:
    """Finds transactional ids, and has changes of them kept by the controller's journal; `clock` gives ms since 1970.

    An id that is idle for `transactional.id.expiration.ms` is forgotten; as that is looked at when somebody asks for it,
    and for all of them whenever there are twice as many as were left the last time, no timer is needed.
    """

    def __init__(self, controller: Controller, clock: Callable[[], int]) -> None:
        self._controller, self._clock = controller, clock
        self._transactions: dict[str, TransactionMetadata] = {}
        self._look_at = LOOKED_AT

    def __repr__(self) -> str:
        return f"<TransactionStore {len(self._transactions)} transactional ids>"

    def all(self) -> Mapping[str, TransactionMetadata]:
        """What is known, by transactional id."""
        for name in list(self._transactions):
            self.find(name)
        return self._transactions

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """What is known of a transactional id, None for one that is unknown, or idle for so long that it is forgotten."""
        found = self._transactions.get(transactional_id)
        if found is None or found.state not in IDLE_STATES:
            return found
        if self._clock() - found.updated < ID_EXPIRATION_MS:
            return found
        del self._transactions[transactional_id]
        self._controller.journal.transaction_deleted(transactional_id)
        return None

    def add(self, found: TransactionMetadata) -> None:
        """Know a transactional id from now on."""
        self._transactions[found.transactional_id] = found
        if len(self._transactions) >= self._look_at:
            self._look_at = max(LOOKED_AT, 2 * len(self.all()))

    @contextmanager
    def keeping(self, found: TransactionMetadata) -> Iterator[None]:
        """What is done to a transactional id inside is kept when this is left, or it is taken back: StorageError, which is
        NOT_COORDINATOR for clients (`TransactionStateManager.appendTransactionToLog`).
        """
        before = found.copy()
        try:
            yield
            self._keep(found)
        except StorageError as error:
            found.become(before)
            raise StorageError(str(error), ErrorCode.NOT_COORDINATOR) from error

    def completed(self, found: TransactionMetadata) -> None:
        """Keep that all is done; if that fails, a cluster that comes back finds it out again."""
        try:
            self._keep(found)
        except StorageError as error:
            log.error("%s", error)

    def _keep(self, found: TransactionMetadata) -> None:
        found.updated = self._clock()
        self._controller.journal.transaction_changed(found)

"""The transactional ids of the cluster, in memory and in the journal (Kafka's `TransactionStateManager`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from asyncgroup.broker.errors import KafkaStorageError
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.transactions.metadata import (
    IDLE_STATES,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["TransactionStore", "read_transaction", "transaction_record"]

log = logging.getLogger(__name__)

ID_EXPIRATION_MS: Final = 604_800_000
"""Kafka's default of `transactional.id.expiration.ms`."""

MIN_EXPIRY_SCAN: Final = 1000
"""The number of transactional ids below which no scan for expired ones takes place."""


class TransactionStore:
    """Finds transactional ids, and saves changes to the controller's journal; `clock` gives ms since 1970.

    An id that is idle for `transactional.id.expiration.ms` is removed. This is checked when the id is looked up,
    and for all ids when their number has doubled since the last scan, so no timer is needed.
    """

    def __init__(self, controller: Controller, clock: Callable[[], int]) -> None:
        self._controller = controller
        self._clock = clock
        self._transactions: dict[str, TransactionMetadata] = {}
        self._next_expiry_scan = MIN_EXPIRY_SCAN  # the number of ids at which all are checked for expiration

    def __repr__(self) -> str:
        return f"<TransactionStore {len(self._transactions)} transactional ids>"

    def all(self) -> Mapping[str, TransactionMetadata]:
        """Return all transactional ids that have not expired."""
        for name in list(self._transactions):
            self.find(name)
        return self._transactions

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id, None if it is unknown or expired."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.state not in IDLE_STATES:
            return metadata
        if self._clock() - metadata.last_update_timestamp < ID_EXPIRATION_MS:
            return metadata
        del self._transactions[transactional_id]
        self._controller.journal.resource_expired("transaction", (transactional_id,))
        return None

    def add(self, metadata: TransactionMetadata) -> None:
        """Add a transactional id, or replace its state."""
        self._transactions[metadata.transactional_id] = metadata
        if len(self._transactions) >= self._next_expiry_scan:
            self._next_expiry_scan = max(MIN_EXPIRY_SCAN, 2 * len(self.all()))

    @contextmanager
    def saving(self, metadata: TransactionMetadata) -> Iterator[None]:
        """Context manager: save the changes that its block makes to a transactional id.

        If the journal cannot save them, they are undone, and KafkaStorageError with the code NOT_COORDINATOR is raised
        (`TransactionStateManager.appendTransactionToLog`).
        """
        previous = metadata.copy()
        try:
            yield
            self._save(metadata)
        except KafkaStorageError as error:
            metadata.restore_from(previous)
            raise KafkaStorageError(str(error), ErrorCode.NOT_COORDINATOR) from error

    def save_completed(self, metadata: TransactionMetadata) -> None:
        """Save that a transaction is complete. If that fails, a restarted cluster writes its markers again."""
        try:
            self._save(metadata)
        except KafkaStorageError as error:
            log.error("%s", error)

    def _save(self, metadata: TransactionMetadata) -> None:
        metadata.last_update_timestamp = self._clock()
        name = (metadata.transactional_id,)
        self._controller.journal.resource_changed("transaction", name, transaction_record(metadata))


def transaction_record(transaction: TransactionMetadata) -> dict[str, Any]:
    """Return the record of a transactional id, without its key: all fields of `TransactionMetadata`."""
    next_producer = transaction.next_producer
    return {
        "producer": list(transaction.producer),
        "last_epoch": transaction.last_producer_epoch,
        "previous_id": transaction.previous_producer_id,
        "timeout": transaction.timeout,
        "started": transaction.start_timestamp,
        "updated": transaction.last_update_timestamp,
        "state": transaction.state.value,
        "successor": None if next_producer is None else list(next_producer),
        "partitions": [list(tp) for tp in transaction.partitions],
    }


def read_transaction(record: Mapping[str, Any]) -> TransactionMetadata:
    """Return the transactional id of a record."""
    transaction = TransactionMetadata(str(record["key"][1]), record["producer"][0])
    transaction.producer = ProducerIdAndEpoch(*record["producer"])
    transaction.last_producer_epoch = record["last_epoch"]
    transaction.previous_producer_id = record["previous_id"]
    transaction.timeout = record["timeout"]
    transaction.start_timestamp = record["started"]
    transaction.last_update_timestamp = record["updated"]
    transaction.state = TransactionState(record["state"])
    transaction.next_producer = (
        None if record["successor"] is None else ProducerIdAndEpoch(*record["successor"])
    )
    transaction.partitions = {TopicPartition(*tp): None for tp in record["partitions"]}
    return transaction

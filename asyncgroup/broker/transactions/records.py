"""The state of a transactional id to and from the form in which the journal keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncgroup.broker.transactions.metadata import ProducerIdAndEpoch, TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.model import TopicPartition

__all__ = ["read_transaction", "transaction_record"]


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

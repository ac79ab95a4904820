"""Transactions, and the producers of partitions, as an administrator sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from asyncgroup.admin.arguments import one_of, several
from asyncgroup.cluster.requests.results import raise_first
from asyncgroup.errors import AsyncGroupError
from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "HangingTransaction",
    "HangingTransactionsFound",
    "ProducerDescription",
    "TransactionDescription",
    "TransactionListing",
    "TransactionsListed",
    "checked_transaction_states",
]

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
"""Kafka's names of the states of a transactional id (`TransactionState`)."""


def checked_transaction_states(states: Iterable[str]) -> list[str]:
    """Return the states. Raises ConfigError for one that Kafka does not have."""
    return [one_of("state", each, STATES) for each in several("states", states)]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list."""

    transactional_id: str
    """The id."""
    coordinator: int
    """The node id of its coordinator."""
    producer_id: int
    """The id of its producer."""
    state: str
    """Kafka's name of the state, such as `Ongoing`."""


@dataclass(frozen=True, slots=True)
class TransactionsListed:
    """The transactional ids of the nodes that answered, and the errors of the others."""

    transactions: tuple[TransactionListing, ...]
    """Each id once, sorted."""
    errors: Mapping[int, AsyncGroupError]
    """By node id."""

    def raise_first(self) -> tuple[TransactionListing, ...]:
        """Return the transactional ids. Raises the error of a node if one did not answer."""
        raise_first(self.errors)
        return self.transactions


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    """The id."""
    coordinator: int
    """The node id of its coordinator."""
    state: str
    """Kafka's name of the state, such as `Ongoing`."""
    producer_id: int
    """The id of its producer."""
    producer_epoch: int
    """The epoch of its producer; one with an older epoch is fenced."""
    timeout: float
    """Seconds after which the coordinator aborts an open transaction (`transaction.timeout.ms` of the producer)."""
    start_timestamp: int | None
    """When its last transaction began, in ms since 1970; None if it has had none."""
    partitions: tuple[TopicPartition, ...]
    """The partitions of the open transaction, sorted; while it ends, those whose marker is not written yet."""


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer that a partition knows."""

    producer_id: int
    """Its id."""
    producer_epoch: int
    """Its epoch."""
    last_sequence: int
    """The sequence number of its last record; -1 after a marker."""
    last_timestamp: int
    """The timestamp of its last batch, in ms since 1970."""
    coordinator_epoch: int | None
    """The epoch of the coordinator that wrote its last marker; None if there is no marker yet."""
    current_transaction_start_offset: int | None
    """The first offset of its open transaction in this partition; None if none is open."""


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction of a partition that its coordinator does not end; readers with read_committed wait at it."""

    partition: TopicPartition
    """The partition."""
    producer_id: int
    """The id of its producer."""
    producer_epoch: int
    """The epoch of its producer."""
    coordinator_epoch: int | None
    """See `ProducerDescription`."""
    start_offset: int
    """Its first offset, by which `abort_at` finds it."""
    last_timestamp: int
    """The timestamp of its last batch, in ms since 1970."""
    duration: float
    """Seconds since that timestamp."""
    transactional_id: str | None = None
    """The transactional id that has the producer id now; None if no coordinator knows one."""


@dataclass(frozen=True, slots=True)
class HangingTransactionsFound:
    """The hanging transactions of the partitions that were searched, and the errors of the others."""

    transactions: tuple[HangingTransaction, ...]
    """Sorted by partition and start offset."""
    errors: Mapping[TopicPartition, AsyncGroupError]
    """Of partitions whose producers could not be described."""

    def raise_first(self) -> tuple[HangingTransaction, ...]:
        """Return the transactions. Raises the error of a partition if one could not be searched."""
        raise_first(self.errors)
        return self.transactions

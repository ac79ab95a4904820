"""What keeps the cluster's metadata beyond the life of the process, if anything does: `storage.DataDirectory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from asyncgroup.broker.topics import Partition, Topic
from asyncgroup.broker.transactions.metadata import TransactionMetadata

__all__ = ["Journal", "NoJournal"]


class Journal(Protocol):
    """Told of every change. Those of topics, producer ids and transactions are told before they count and raise
    StorageError where they can't be kept; the others have happened, and what can't be kept is kept with the next change.
    """

    def topic_changed(self, topic: Topic) -> None:
        """The topic is about to be there, or has other settings or more partitions; their logs get their stores."""

    def topic_deleted(self, topic: Topic) -> None:
        """The topic is about to be gone, with its records."""

    def partition_changed(self, partition: Partition) -> None:
        """The partition has another leader, leader epoch or replicas."""

    def producer_id_given(self, producer_id: int) -> None:
        """A producer id was given out; the next ones are higher. Raises StorageError."""

    def transaction_changed(self, transaction: TransactionMetadata) -> None:
        """A transactional id is about to have another state. Raises StorageError."""

    def transaction_deleted(self, transactional_id: str) -> None:
        """A transactional id is no more."""

    def resource_changed(
        self, kind: str, name: Sequence[str | int], values: Mapping[str, Any] | None
    ) -> None:
        """Settings, a user or a quota are about to be these, or gone (None). Raises StorageError."""


class NoJournal:
    """A cluster in memory."""

    def topic_changed(self, topic: Topic) -> None:
        """Nothing to do."""

    def topic_deleted(self, topic: Topic) -> None:
        """Nothing to do."""

    def partition_changed(self, partition: Partition) -> None:
        """Nothing to do."""

    def producer_id_given(self, producer_id: int) -> None:
        """Nothing to do."""

    def transaction_changed(self, transaction: TransactionMetadata) -> None:
        """Nothing to do."""

    def transaction_deleted(self, transactional_id: str) -> None:
        """Nothing to do."""

    def resource_changed(
        self, kind: str, name: Sequence[str | int], values: Mapping[str, Any] | None
    ) -> None:
        """Nothing to do."""

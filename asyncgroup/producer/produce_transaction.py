"""What the sender needs to know of the transaction that its batches belong to; `TransactionClient` implements it."""

from __future__ import annotations

from typing import Protocol

from asyncgroup.model import TopicPartition

__all__ = ["ProduceTransaction"]


class ProduceTransaction(Protocol):
    """The transaction that batches belong to, as the sender sees it."""

    @property
    def transactional_id(self) -> str:
        """The producer's name, which the requests carry."""

    @property
    def is_v2(self) -> bool:
        """Whether Produce adds partitions to the transaction (KIP-890)."""

    def admit(self, tp: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent now."""

    def on_record_failed(self, error: Exception) -> None:
        """An accepted record is lost."""

    def is_fencing(self, code: int) -> bool:
        """Return whether an error code means that the producer is fenced."""

    def on_fenced(self) -> None:
        """A broker refused the producer's epoch; this fails all records."""

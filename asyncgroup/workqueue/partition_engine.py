"""PartitionEngine and DeliveryGuard: the engine's side of one partition of a work queue; `engine` describes the seam."""

from __future__ import annotations

from typing import Protocol

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery_result import AckOutcome

__all__ = ["DeliveryGuard", "PartitionEngine"]


class PartitionEngine:
    """The engine's side of one partition; the methods of this base class do nothing."""

    group_id = ""
    """The consumer group, or what the engine has in its place; empty if it has none."""
    has_copies = False
    """Whether the records are copies in a retry topic: `earlier_attempts` and `skips` are asked for each of them."""

    def on_ack(self, record: Record) -> None:
        """A record is acknowledged: the window has it."""

    def on_change(self) -> None:
        """The window has changed in another way: numbers of failed deliveries, offsets without a record."""

    def on_capacity(self) -> None:
        """More records may be added, see `PartitionWork.refill_at` and `refill_bytes`."""

    def on_drain(self) -> None:
        """A delivery of a closed partition, or a handler of it, has ended."""

    def comes_again(self, record: Record, attempts: int) -> bool:  # noqa: ARG002
        """Whether the broker gives a record again, perhaps to another consumer: then the queue forgets it.

        Asked for a record whose delivery has failed, was given back, or has no copy; `attempts` is the number of its deliveries
        that have failed.
        """
        return False

    def gives_back(self, record: Record, attempts: int) -> bool:  # noqa: ARG002
        """Whether the broker is asked for a failed record whose time has come: then the queue forgets it, and any consumer may get it.

        `attempts` is the number of its deliveries that have failed.
        """
        return False

    async def commit(self) -> AckOutcome:
        """Make the acknowledgements durable now. Raises CommitFailedError."""
        return AckOutcome.ACKED

    def earlier_attempts(self, record: Record) -> int:  # noqa: ARG002
        """Return the number of deliveries that led to this copy."""
        return 0

    def skips(self, record: Record) -> bool:  # noqa: ARG002
        """Whether a copy counts as done on arrival, because it is for another subscription."""
        return False


class DeliveryGuard(Protocol):
    """Lets records of a partition begin one by one, while the engine has a reason for it."""

    def may_begin(self, record: Record) -> bool:
        """Whether the record may be delivered now; after a False, the partition has to be queued again (`QueueCore.requeue`)."""
        ...

    def is_counted(self, offset: int) -> bool:
        """Whether the number of deliveries in the window includes the next one of this record."""
        ...

    def ended(self, offset: int) -> None:
        """The delivery of a record has ended with an outcome."""
        ...

    def released(self, offset: int | None) -> None:
        """The delivery of a record (None: of all) was neither done nor failed: it does not count."""
        ...

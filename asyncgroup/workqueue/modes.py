"""Mode: how the records of a work queue are distributed among its consumers, as Pulsar's subscription types."""

from __future__ import annotations

from enum import Enum

__all__ = ["Mode"]


class Mode(Enum):
    """Pulsar's subscription types (`SubscriptionType`), on the partitions that the group assigns to this member."""

    EXCLUSIVE = "exclusive"
    """One consumer for all partitions, in offset order; a second one raises ConsumerBusy."""
    FAILOVER = "failover"
    """One active consumer for each partition, in offset order; the others take over when it leaves."""
    SHARED = "shared"
    """Records of a partition are handled concurrently, in no order."""
    KEY_SHARED = "key_shared"
    """Records of a partition are handled concurrently, those with the same ordering key one after another."""

    @property
    def in_order(self) -> bool:
        """Whether the records of a partition are delivered in offset order, and a nack repeats all that follow."""
        return self in (Mode.EXCLUSIVE, Mode.FAILOVER)

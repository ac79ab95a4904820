"""What a node hears of the cluster's metadata."""

from __future__ import annotations

from typing import Protocol

from asyncgroup.broker.topics import Partition

__all__ = ["Listener"]


class Listener(Protocol):
    """What a node hears of the controller."""

    def partition_changed(self, partition: Partition) -> None:
        """The partition has another leader, or is gone."""

    def coordinator_elected(self, offsets_partition: int) -> None:
        """The node now leads this partition of `__consumer_offsets` and coordinates its groups."""

    def coordinator_resigned(self, offsets_partition: int) -> None:
        """The node, still alive, no longer coordinates them."""

"""Notifications from the controller to the nodes."""

from __future__ import annotations

from typing import Protocol

from asyncgroup.broker.metadata.topics import Partition

__all__ = ["MetadataListener"]


class MetadataListener(Protocol):
    """What the controller calls on every live node when metadata changes; implemented by `Node`."""

    def partition_changed(self, partition: Partition) -> None:
        """The partition has a new leader, or was deleted."""

    def coordinator_elected(self, offsets_partition: int) -> None:
        """The node became leader of this partition of `__consumer_offsets` and coordinator of its groups."""

    def coordinator_resigned(self, offsets_partition: int) -> None:
        """The node is no longer the coordinator of these groups; it is still alive."""

"""Where the controller sends metadata changes: the journal (`storage.data_directory` for a cluster on disk) and the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from asyncgroup.broker.metadata.topics import Partition, Topic

__all__ = ["Journal", "MetadataListener"]


class Journal:
    """Receives every metadata change. This one, of a cluster in memory, stores nothing.

    Changes that can fail are written before they take effect; those methods raise KafkaStorageError if the write fails.
    The others are called after the change and do not raise: a failed write is repeated with the next change.
    """

    def topic_changed(self, topic: Topic) -> None:
        """Store a topic before it is created or gets new configs or partitions; attach stores to the logs.

        Raise KafkaStorageError.
        """

    def topic_deleted(self, topic: Topic) -> None:
        """Delete a topic and its records, before it is removed. Raise KafkaStorageError."""

    def partition_changed(self, partition: Partition) -> None:
        """Store a partition's new leader, leader epoch or replicas."""

    def producer_id_allocated(self, producer_id: int) -> None:
        """Store that producer ids up to this one are used, before it is returned. Raise KafkaStorageError."""

    def resource_changed(
        self, kind: str, name: Sequence[str | int], values: Mapping[str, Any] | None
    ) -> None:
        """Store new configs, a user, a quota or a transactional id (None: deleted), before the change takes effect.

        Raise KafkaStorageError.
        """

    def resource_expired(self, kind: str, name: Sequence[str | int]) -> None:
        """Delete it from the journal after it has expired."""


class MetadataListener(Protocol):
    """What the controller calls on every live node when metadata changes; implemented by `Node`."""

    def partition_changed(self, partition: Partition) -> None:
        """The partition has a new leader, or was deleted."""

    def coordinator_elected(self, offsets_partition: int) -> None:
        """The node became leader of this partition of `__consumer_offsets` and coordinator of its groups."""

    def coordinator_resigned(self, offsets_partition: int) -> None:
        """The node is no longer the coordinator of these groups; it is still alive."""

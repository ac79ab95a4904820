"""Choice of a consumer's preferred read replica (KIP-392; Kafka's `RackAwareReplicaSelector`). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from asyncgroup.broker.metadata.topics import Partition

__all__ = ["preferred_replica"]


def preferred_replica(
    partition: Partition, rack: str, racks: Mapping[int, str | None], alive: Collection[int]
) -> int:
    """Return the replica in the reader's rack to fetch from instead of the leader, -1 for the leader.

    Replicas share one log, so every live replica is in sync and has all offsets of the leader.
    """
    near = [node for node in partition.replicas if node in alive and racks.get(node) == rack]
    return -1 if not near or partition.leader in near else near[0]

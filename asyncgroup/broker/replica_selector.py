"""Which replica a consumer should read from (KIP-392; Kafka's `RackAwareReplicaSelector`). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from asyncgroup.broker.topics import Partition

__all__ = ["preferred_replica"]


def preferred_replica(
    partition: Partition, rack: str, racks: Mapping[int, str | None], alive: Collection[int]
) -> int:
    """The replica in the reader's rack that it should ask instead of the leader; -1 for the leader itself.

    Replicas share one log, so each that is alive is in sync and has every offset that the leader has.
    """
    near = [node for node in partition.replicas if node in alive and racks.get(node) == rack]
    return -1 if not near or partition.leader in near else near[0]

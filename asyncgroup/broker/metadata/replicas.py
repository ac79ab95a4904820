"""Placement of new partitions' replicas (Kafka's `StripedReplicaPlacer`, without racks), and the choice of the one to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.metadata.topics import Partition
from asyncgroup.error_codes import ErrorCode

__all__ = ["MAX_PARTITIONS", "ReplicaPlacer", "check_partition_count", "preferred_replica"]

MAX_PARTITIONS: Final = 10_000
"""Largest number of partitions created at once, which limits memory
(`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`).
"""


class ReplicaPlacer:
    """Assigns replicas round-robin over the live nodes.

    `alive` is the controller's set of live nodes, `placed` the number of partitions placed so far.
    """

    def __init__(self, alive: Collection[int]) -> None:
        self._alive = alive
        self.placed = 0

    def __repr__(self) -> str:
        return f"<ReplicaPlacer of {self.placed} partitions over nodes {sorted(self._alive)}>"

    def replicas(self, count: int, factor: int, assignments: Sequence[Sequence[int]] = ()) -> list[list[int]]:
        """Return the replicas of `count` partitions: `assignments` if given, else `factor` nodes for each."""
        return [list(nodes) for nodes in assignments] or [self._next(factor) for _ in range(count)]

    def _next(self, factor: int) -> list[int]:
        nodes = sorted(self._alive)
        first = self.placed
        self.placed += 1
        return [nodes[(first + i) % len(nodes)] for i in range(factor)]

    def check_numbers(self, partitions: int, factor: int) -> None:
        """Raise Refused for a number of partitions or replicas that cannot be placed.

        INVALID_REPLICATION_FACTOR below 1, then INVALID_PARTITIONS, then INVALID_REPLICATION_FACTOR for more than the
        live nodes: the order of `ReplicationControlManager.createTopic`.
        """
        problem = f"replication factor {factor}: {len(self._alive)} nodes are running"
        if factor < 1:
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, problem)
        if partitions < 1:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; at least 1 is required")
        if factor > len(self._alive):
            raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, problem)

    def check_assignments(self, assignments: Sequence[Sequence[int]]) -> None:
        """Raise Refused(INVALID_REPLICA_ASSIGNMENT) unless each assignment consists of distinct live nodes."""
        for nodes in assignments:
            if not nodes or len(set(nodes)) != len(nodes) or not set(self._alive).issuperset(nodes):
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"replicas {list(nodes)} must be distinct live nodes; the live nodes are {sorted(self._alive)}",
                )


def check_partition_count(topic: str, partitions: int) -> None:
    """Raise Refused(POLICY_VIOLATION) for more than `MAX_PARTITIONS`."""
    if partitions > MAX_PARTITIONS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"topic {topic!r}: {partitions} partitions; at most {MAX_PARTITIONS} can be created at once",
        )


def preferred_replica(
    partition: Partition, rack: str, racks: Mapping[int, str | None], alive: Collection[int]
) -> int:
    """Return the replica in the reader's rack to fetch from instead of the leader, -1 for the leader.

    Replicas share one log, so every live replica is in sync and has all offsets of the leader.
    """
    near = [node for node in partition.replicas if node in alive and racks.get(node) == rack]
    return -1 if not near or partition.leader in near else near[0]

"""Where the replicas of new partitions go (Kafka's `StripedReplicaPlacer`, without racks)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from asyncgroup.broker.errors import Refused
from asyncgroup.error_codes import ErrorCode

__all__ = ["MAX_PARTITIONS", "Placement", "check_number"]

MAX_PARTITIONS: Final = 10_000
"""More are not created at once, as in Kafka (`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`): they fill the memory."""


class Placement:
    """Hands out replicas, node after node round the cluster; `alive` are the nodes of this moment, `placed` counts the
    partitions that got theirs.
    """

    def __init__(self, alive: Collection[int]) -> None:
        self._alive = alive
        self.placed = 0

    def __repr__(self) -> str:
        return f"<Placement of {self.placed} partitions over nodes {sorted(self._alive)}>"

    def replicas(self, count: int, factor: int, assignments: Sequence[Sequence[int]] = ()) -> list[list[int]]:
        """The replicas of `count` partitions: what `assignments` says, else `factor` nodes for each."""
        return [list(nodes) for nodes in assignments] or [self._next(factor) for _ in range(count)]

    def _next(self, factor: int) -> list[int]:
        nodes = sorted(self._alive)
        first = self.placed
        self.placed += 1
        return [nodes[(first + i) % len(nodes)] for i in range(factor)]

    def check_factor(self, factor: int) -> None:
        """Raises Refused(INVALID_REPLICATION_FACTOR)."""
        if not 1 <= factor <= len(self._alive):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor}: {len(self._alive)} nodes are running",
            )

    def check(self, assignments: Sequence[Sequence[int]]) -> None:
        """Raises Refused(INVALID_REPLICA_ASSIGNMENT) unless each names live nodes, each once."""
        for nodes in assignments:
            if not nodes or len(set(nodes)) != len(nodes) or not set(self._alive).issuperset(nodes):
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"replicas {list(nodes)} are not live nodes, each once",
                )


def check_number(topic: str, partitions: int) -> None:
    """Raises Refused(POLICY_VIOLATION) for more than `MAX_PARTITIONS`."""
    if partitions > MAX_PARTITIONS:
        raise Refused(
            ErrorCode.POLICY_VIOLATION,
            f"topic {topic!r}: {partitions} partitions; at most {MAX_PARTITIONS} are created at once",
        )

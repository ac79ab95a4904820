"""The states of a group with the classic protocol (Kafka's `ClassicGroupState`)."""

from __future__ import annotations

from enum import Enum

__all__ = ["ClassicGroupState"]


class ClassicGroupState(Enum):
    """The states of a group, and how requests are answered in each:

    | state               | join                     | sync               | heartbeat          | commit             |
    |---------------------|--------------------------|--------------------|--------------------|--------------------|
    | EMPTY               | starts a rebalance       | UNKNOWN_MEMBER_ID  | UNKNOWN_MEMBER_ID  | generation -1 only |
    | PREPARING_REBALANCE | parked                   | REBALANCE_IN_PROG. | REBALANCE_IN_PROG. | old generation ok  |
    | COMPLETING_REBALANCE| same metadata: at once   | parked             | ok                 | REBALANCE_IN_PROG. |
    | STABLE              | leader or change: parked | at once            | ok                 | ok                 |
    | DEAD                | COORDINATOR_NOT_AVAILABLE everywhere; the group is gone from this coordinator         |
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    @property
    def predecessors(self) -> frozenset[ClassicGroupState]:
        """The states from which this one may be entered."""
        return _PREDECESSORS[self]

    def __str__(self) -> str:
        return self.value


_PREDECESSORS: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.EMPTY}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.COMPLETING_REBALANCE}),
    ClassicGroupState.DEAD: frozenset(ClassicGroupState),
}

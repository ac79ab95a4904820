"""A member of a consumer group with its assignment (Kafka's `ConsumerGroupMember`), an immutable value."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

__all__ = [
    "LEAVE_GROUP_STATIC_EPOCH",
    "AssignedPartitions",
    "ClassicProtocols",
    "ConsumerGroupMember",
    "ReconciliationState",
    "TargetAssignment",
    "TopicIdPartition",
    "by_topic",
]

LEAVE_GROUP_STATIC_EPOCH: Final = -2
"""The epoch with which a static member leaves for a while; its assignment is kept for its group instance id."""


class TopicIdPartition(NamedTuple):
    """A partition of the topic with this id."""

    topic_id: UUID
    partition: int


TargetAssignment: TypeAlias = frozenset[TopicIdPartition]
"""The partitions that a member shall have."""

AssignedPartitions: TypeAlias = Mapping[TopicIdPartition, int]
"""Partitions of a member, each with its assignment epoch: the member's epoch when it was assigned (KIP-1251)."""


class ReconciliationState(Enum):
    """How far a member is with its target assignment; the values are those of Kafka's `MemberState`."""

    STABLE = 0
    """It has the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It still owns partitions that it was asked to revoke."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members still own."""
    UNKNOWN = 127
    """Written by a later version of the broker: the member has to rejoin."""


class ClassicProtocols(NamedTuple):
    """What a member with the classic protocol sent with its JoinGroup (`ClassicMemberMetadata`)."""

    session_timeout: float
    """In seconds."""
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) pairs in the member's order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A member. `rebalance_timeout` is in seconds, the time that it has to revoke partitions."""

    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: ReconciliationState = ReconciliationState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: float = -1.0
    server_assignor: str | None = None
    topics: frozenset[str] = frozenset()
    """The names of the topics that it subscribes to."""
    regex: str = ""
    """The regular expression that it subscribes to; empty: none."""
    assigned: AssignedPartitions = field(default_factory=dict)
    revoking: AssignedPartitions = field(default_factory=dict)
    """Partitions that it was asked to revoke and has not reported as revoked (`partitionsPendingRevocation`)."""
    classic: ClassicProtocols | None = None
    """Set if the member uses the classic protocol: it sends JoinGroup, SyncGroup and Heartbeat."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has all of the target assignment with this epoch."""
        return self.state is ReconciliationState.STABLE and self.epoch == epoch

    def at_epoch(self, epoch: int, **changes: object) -> ConsumerGroupMember:
        """Return the member in this epoch and with these changes; the epoch that it leaves is kept as previous one."""
        return dataclasses.replace(self, previous_epoch=self.epoch, epoch=epoch, **changes)  # type: ignore[arg-type]

    def assignment_epoch(self, partition: TopicIdPartition) -> int | None:
        """Return the assignment epoch of a partition that the member has or is about to revoke, None for others."""
        epoch = self.assigned.get(partition)
        return self.revoking.get(partition) if epoch is None else epoch


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """Return the partitions grouped by topic, both sorted."""
    found: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return found

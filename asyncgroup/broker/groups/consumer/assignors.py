"""What an assignor of the server works with (Kafka's package `coordinator.group.assignor`).

An assignor is a pure function: members with their subscriptions and present targets, and the number of partitions of
each topic, give each member's next target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from asyncgroup.broker.groups.consumer.consumer_group_member import TargetAssignment

__all__ = ["Assignor", "MemberSpec"]


class MemberSpec(NamedTuple):
    """What an assignor knows of a member."""

    instance_id: str | None
    topics: frozenset[UUID]
    """The topics that it subscribes to, those that exist."""
    target: TargetAssignment = frozenset()
    """Its present target assignment."""


Assignor: TypeAlias = Callable[[Mapping[str, MemberSpec], Mapping[UUID, int]], dict[str, TargetAssignment]]
"""Takes the members by id and the number of partitions by topic id; returns the target of every member."""

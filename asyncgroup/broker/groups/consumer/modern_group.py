"""A group with the consumer protocol (Kafka's `ConsumerGroup`), an immutable value.

Three epochs tell how far a rebalance is: the group epoch grows with every change of members, subscriptions or topics,
the assignment epoch is that of the last computed target, and each member has its own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from asyncgroup.broker.groups.consumer.consumer_group_member import (
    ConsumerGroupMember,
    TargetAssignment,
    TopicIdPartition,
)

__all__ = ["ConsumerGroupState", "ModernGroup", "ResolvedRegex"]


class ConsumerGroupState(Enum):
    """The states of a group, by Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target has not been computed for the group epoch yet."""
    RECONCILING = "Reconciling"
    """Members have not reached their targets yet."""
    STABLE = "Stable"

    def __str__(self) -> str:
        return self.value


class ResolvedRegex(NamedTuple):
    """The topics that matched a regular expression when it was last resolved, at `timestamp` (ms since 1970)."""

    topics: frozenset[str]
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class ModernGroup:
    """A group. `assignment_timestamp` is in ms since 1970, 0 if no target has been computed."""

    group_id: str
    epoch: int = 1
    metadata_hash: int = 0
    """Stands for the ids and partitions of the subscribed topics at the last change of the epoch."""
    assignment_epoch: int = 0
    assignment_timestamp: int = 0
    members: Mapping[str, ConsumerGroupMember] = field(default_factory=dict)
    """By id, in the order in which they joined."""
    targets: Mapping[str, TargetAssignment] = field(default_factory=dict)
    """By member id."""
    regexes: Mapping[str, ResolvedRegex] = field(default_factory=dict)
    """The members' regular expressions that have been resolved."""

    @cached_property
    def state(self) -> ConsumerGroupState:
        """The group's state."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        reconciled = all(m.is_reconciled_to(self.assignment_epoch) for m in self.members.values())
        return ConsumerGroupState.STABLE if reconciled else ConsumerGroupState.RECONCILING

    @property
    def has_classic_members_only(self) -> bool:
        """Whether the group has members, and all of them use the classic protocol."""
        return bool(self.members) and all(m.classic is not None for m in self.members.values())

    @cached_property
    def static_members(self) -> Mapping[str, str]:
        """The member ids by group instance id."""
        return {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}

    @cached_property
    def owners(self) -> Mapping[TopicIdPartition, str]:
        """The member that each partition belongs to, until it has reported the partition as revoked."""
        return dict(self._owners())

    def _owners(self) -> Iterator[tuple[TopicIdPartition, str]]:
        for member in self.members.values():
            for tp in member.assigned:
                yield tp, member.member_id
            for tp in member.revoking:
                yield tp, member.member_id

    def is_free(self, partition: TopicIdPartition) -> bool:
        """Whether the partition belongs to no member."""
        return partition not in self.owners

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the names of the topics that the member subscribes to, by name or by regular expression."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    @cached_property
    def subscribed_topics(self) -> frozenset[str]:
        """The names of the topics that a member subscribes to."""
        return frozenset(name for member in self.members.values() for name in self.topics_of(member))

    def preferred_assignor(self) -> str | None:
        """Return the assignor that most members name, None if none names one."""
        named = Counter(m.server_assignor for m in self.members.values() if m.server_assignor is not None)
        return max(named, key=lambda name: named[name], default=None)

    def target(self, member: ConsumerGroupMember) -> TargetAssignment:
        """Return the member's target assignment, empty if none has been computed for it."""
        return self.targets.get(member.member_id, frozenset())

    # -- changes ---------------------------------------------------------------------------------------------

    def with_member(self, member: ConsumerGroupMember) -> ModernGroup:
        """Return the group with this member, added or replaced; the same group if the member has not changed."""
        if self.members.get(member.member_id) == member:
            return self
        return dataclasses.replace(self, members={**self.members, member.member_id: member})

    def without(self, member_ids: Collection[str]) -> ModernGroup:
        """Return the group without these members and their targets."""
        members = {key: member for key, member in self.members.items() if key not in member_ids}
        used = {member.regex for member in members.values()}
        return dataclasses.replace(
            self,
            members=members,
            targets={key: target for key, target in self.targets.items() if key not in member_ids},
            regexes={text: found for text, found in self.regexes.items() if text in used},
        )

    def replaced(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> ModernGroup:
        """Return the group with the static member `new` in the place of `old`, whose target it takes over."""
        group = self.without([old.member_id]).with_member(new)
        targets = {**group.targets, new.member_id: self.target(old)}
        return dataclasses.replace(group, targets=targets, regexes=self.regexes)

"""Rebalances that Kafka 4.3.1 forgets in groups with both protocols, and the embedded broker with it: the group waits for a join.

- A static member takes its place with the other protocol in a group that needs a rebalance: others have left, or topics have
  grown. As its subscription is the same, the consumer group has the generation of the classic one for its epoch, and keeps
  the assignment.
- A static member takes its place, and with it the group is a classic one, while others wait for partitions. The group is
  stable; these belong to the others, which are not told (`GroupMetadataManager.convertToClassicGroup`). No member has been
  told that it leads, either: partitions that are added are not noticed.
- The coordinator moves after a downgrade. The rebalance that it began is not in the log.
- A classic group is in its first rebalance, and all its members are static ones that have gone: it waits for them for five
  minutes (`classic.group.new.member.join.timeout.ms`), and refuses members of the consumer protocol until then.
- A consumer group has only classic members left, and may not become a classic one. A member leaves, or a topic grows: only
  joins, and the heartbeats of consumer members, compute a new assignment.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncgroup.broker import GroupView
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.coordinator import GroupCoordinator
from asyncgroup.broker.groups.shared.requests import LeavingMember

__all__ = ["LostRebalances"]


class LostRebalances:
    """What an observer has seen of the upgrades and downgrades of one group."""

    def __init__(self) -> None:
        self.assignments: Mapping[str, bytes] = {}
        """By member of the classic group: its assignment, when it was seen last."""
        self._generation = -1  # of the classic group
        self._upgraded = -1  # a generation that has become an epoch
        self._half_downgraded = -1
        self._downgraded = -1
        self._is_led = True  # after the last downgrade
        self._group: ClassicGroup | None = None  # since the last downgrade

    def saw_classic(self, group: ClassicGroup) -> None:
        """Note the present state of a classic group."""
        self.assignments = {member.member_id: member.assignment for member in group.members.values()}
        self._generation = group.generation_id

    def upgraded(self, group: ModernGroup) -> None:
        """A classic group became a consumer group."""
        self._upgraded = group.epoch if group.epoch == self._generation else -1

    def downgraded(self, before: ModernGroup, group: ClassicGroup) -> None:
        """A consumer group became a classic group."""
        self._group, self._downgraded = group, group.generation_id
        # with fewer members: the last one of the consumer protocol has left, and the group rebalances
        self._is_led = len(group.members) < len(before.members)
        classic = [member for member in before.members.values() if member.classic is not None]
        if any(before.target(member) != member.assigned.keys() for member in classic):
            self._half_downgraded = (
                group.generation_id
            )  # also after an upgrade and a downgrade that keep the generation

    @staticmethod
    def absent_members(group: ClassicGroup | None) -> list[LeavingMember]:
        """Return the static members that a group waits for in its first rebalance."""
        if (
            group is None
            or group.generation_id > 0
            or group.state is not ClassicGroupState.PREPARING_REBALANCE
        ):
            return []
        members = [one for one in group.members.values() if not one.is_awaiting_join]
        return [LeavingMember("", one.group_instance_id) for one in members if one.group_instance_id]

    def is_lost(self, coordinator: GroupCoordinator, view: GroupView, *, are_all_owned: bool) -> bool:
        """Return whether the group needs a rebalance that no member begins."""
        if view.state == "Stable" and view.generation == self._half_downgraded:
            return True
        if view.state not in ("Stable", "Assigning") or (view.state == "Stable" and are_all_owned):
            return False
        modern = coordinator.consumer_groups.get(view.group_id)
        if modern is not None and modern.has_classic_members_only:
            return not coordinator.consumer_groups.may_downgrade(len(modern.members))
        is_loaded = coordinator.groups.get(view.group_id) is not self._group
        forgotten = (self._upgraded, self._downgraded if is_loaded or not self._is_led else -1)
        return view.state == "Stable" and view.generation in forgotten

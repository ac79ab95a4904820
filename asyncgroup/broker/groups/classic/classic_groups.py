"""The groups of one coordinator with the classic protocol, in memory."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.broker.clock import Clock
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.shared.requests import GroupSnapshot

__all__ = ["ClassicGroups"]


class ClassicGroups:
    """Groups by id. `on_added` is called after a group is added; `clock` gives ms since 1970."""

    def __init__(self, clock: Clock, on_added: Callable[[], None]) -> None:
        self.by_id: dict[str, ClassicGroup] = {}
        self.clock = clock
        self._on_added = on_added

    def __repr__(self) -> str:
        return f"<ClassicGroups {len(self.by_id)}>"

    def get(self, group_id: str) -> ClassicGroup | None:
        """Return the group, None if there is none."""
        return self.by_id.get(group_id)

    def all(self) -> list[ClassicGroup]:
        """Return a list of all groups, which stays valid while groups are added or removed."""
        return list(self.by_id.values())

    def create(self, group_id: str) -> ClassicGroup:
        """Add a new, empty group."""
        return self.put(ClassicGroup(group_id, self.clock))

    def restore(self, snapshot: GroupSnapshot) -> ClassicGroup:
        """Add a group loaded from the log: STABLE with its members and assignments, or EMPTY."""
        group = ClassicGroup(snapshot.group_id, self.clock)
        for member in snapshot.members:
            group.add(
                GroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client=member.client,
                    timeouts=member.timeouts,
                    protocol_type=snapshot.protocol_type or "",
                    protocols=((snapshot.protocol_name or "", member.subscription),),
                    assignment=member.assignment,
                )
            )
        group.generation_id = snapshot.generation_id
        group.protocol_type = snapshot.protocol_type
        group.protocol_name = snapshot.protocol_name
        group.leader = snapshot.leader or group.leader
        group.compute_subscribed_topics()
        group.state = ClassicGroupState.STABLE if snapshot.members else ClassicGroupState.EMPTY
        group.current_state_timestamp = snapshot.current_state_timestamp
        return self.put(group)

    def put(self, group: ClassicGroup) -> ClassicGroup:
        """Add a group in the place of any other with its id."""
        self.by_id[group.group_id] = group
        self._on_added()
        return group

    def discard(self, group: ClassicGroup) -> None:
        """Remove the group, unless another group has taken its id since."""
        if self.by_id.get(group.group_id) is group:
            del self.by_id[group.group_id]

"""The groups that one coordinator has in memory."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.broker.coordinator.group import ClassicGroup
from asyncgroup.broker.coordinator.interfaces import Clock
from asyncgroup.broker.coordinator.member import GroupMember
from asyncgroup.broker.coordinator.requests import GroupSnapshot
from asyncgroup.broker.coordinator.state import ClassicGroupState

__all__ = ["Groups"]


class Groups:
    """Groups by id. `added` is told when one comes, `clock` dates their states."""

    def __init__(self, clock: Clock, added: Callable[[], None]) -> None:
        self.by_id: dict[str, ClassicGroup] = {}
        self.clock = clock
        self._added = added

    def __repr__(self) -> str:
        return f"<Groups {len(self.by_id)}>"

    def get(self, group_id: str) -> ClassicGroup | None:
        """The group, None if there is none."""
        return self.by_id.get(group_id)

    def all(self) -> list[ClassicGroup]:
        """The groups of this moment."""
        return list(self.by_id.values())

    def create(self, group_id: str) -> ClassicGroup:
        """A new group, EMPTY."""
        return self._add(ClassicGroup(group_id, self.clock))

    def restore(self, snapshot: GroupSnapshot) -> ClassicGroup:
        """A group as it is after loading: STABLE with its members and assignments, or EMPTY."""
        group = ClassicGroup(snapshot.group_id, self.clock)
        for kept in snapshot.members:
            group.add(
                GroupMember(
                    member_id=kept.member_id,
                    group_instance_id=kept.group_instance_id,
                    client_id=kept.client_id,
                    client_host=kept.client_host,
                    rebalance_timeout=kept.rebalance_timeout,
                    session_timeout=kept.session_timeout,
                    protocol_type=snapshot.protocol_type or "",
                    protocols=((snapshot.protocol_name or "", kept.subscription),),
                    assignment=kept.assignment,
                )
            )
        group.generation_id = snapshot.generation_id
        group.protocol_type, group.protocol_name = snapshot.protocol_type, snapshot.protocol_name
        group.leader = snapshot.leader or group.leader
        group.compute_subscribed_topics()
        group.state = ClassicGroupState.STABLE if snapshot.members else ClassicGroupState.EMPTY
        group.current_state_timestamp = snapshot.current_state_timestamp
        return self._add(group)

    def _add(self, group: ClassicGroup) -> ClassicGroup:
        self.by_id[group.group_id] = group
        self._added()
        return group

    def discard(self, group: ClassicGroup) -> None:
        """Forget the group, if it is not another one of this id by now."""
        if self.by_id.get(group.group_id) is group:
            del self.by_id[group.group_id]

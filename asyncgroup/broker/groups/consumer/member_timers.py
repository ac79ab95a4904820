"""The timers of members of consumer groups. A member is removed from the group when one of them expires."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from asyncgroup.broker.clock import Timers
from asyncgroup.broker.groups.consumer.consumer_group_member import ConsumerGroupMember, ReconciliationState
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup

__all__ = ["Fence", "MemberTimers"]

Fence: TypeAlias = Callable[[str, str, str], None]
"""Removes a member; takes the group id, the member id and the reason."""

_KINDS = ("session", "rebalance", "join", "sync")


class MemberTimers:
    """Session timers of all members; rebalance timers of members that are asked to revoke partitions.

    Members with the classic protocol have two others instead of the latter, unless they are loaded from the log: a join timer from the heartbeat that asks
    them to join again, and a sync timer after they have joined. All durations are in seconds.
    """

    def __init__(self, timers: Timers, fence: Fence) -> None:
        self._timers = timers
        self._fence = fence
        self._asked_to_join: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<MemberTimers {len(self._asked_to_join)} members asked to join>"

    def restart_session(self, group_id: str, member_id: str, timeout: float) -> None:
        """Restart the session timer."""
        self._schedule("session", group_id, member_id, timeout, "its session expired")

    def retry(self, group_id: str, member_id: str, delay: float, why: str) -> None:
        """Remove the member in `delay`, because the removal could not be written."""
        self._schedule("session", group_id, member_id, delay, why)

    def start_rebalance(self, member: ConsumerGroupMember, group: Callable[[], ModernGroup | None]) -> None:
        """Start the rebalance timer, which counts only while the member stays in its epoch; `group` returns the present one."""
        found = group()
        if found is None:
            return
        group_id, member_id, epoch = found.group_id, member.member_id, member.epoch

        def expire() -> None:
            now = group()
            if now is not None and member_id in now.members and now.members[member_id].epoch == epoch:
                self._fence(group_id, member_id, "it did not revoke partitions in time")

        key = ("consumer rebalance", group_id, member_id)
        self._timers.schedule(key, max(member.rebalance_timeout, 0.0), expire)

    def asked_to_join(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Start the join timer, unless it runs already."""
        key = (group_id, member.member_id)
        if key not in self._asked_to_join:
            self._asked_to_join.add(key)
            why = "it did not join again in time"
            self._schedule("join", group_id, member.member_id, member.rebalance_timeout, why)

    def joined(self, group_id: str, member_id: str, rebalance_timeout: float) -> None:
        """Stop the join timer and start the sync timer."""
        self.cancel(group_id, member_id, "join")
        self._schedule("sync", group_id, member_id, rebalance_timeout, "it did not sync in time")

    def synced(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Stop the sync timer and restart the session timer."""
        self.cancel(group_id, member.member_id, "sync")
        if member.classic is not None:
            self.restart_session(group_id, member.member_id, member.classic.session_timeout)

    def follow(
        self, before: ModernGroup, after: ModernGroup, group: Callable[[], ModernGroup | None]
    ) -> None:
        """Set the timers that depend on the states of members, cancel those of former members."""
        if before is after:
            return
        group_id = after.group_id
        for member_id in before.members:
            if member_id not in after.members:
                self.cancel(group_id, member_id)
        for member_id, member in after.members.items():
            known = before.members.get(member_id)
            if known is member:
                continue
            if member.classic is None and known is not None and known.classic is not None:
                self.cancel(group_id, member_id, "join", "sync")
            must_revoke = member.state is ReconciliationState.UNREVOKED_PARTITIONS and member.epoch >= 0
            if must_revoke and member.classic is None:
                self.start_rebalance(member, group)
            else:
                self.cancel(group_id, member_id, "rebalance")

    def cancel(self, group_id: str, member_id: str, *kinds: str) -> None:
        """Stop the member's timers of these kinds, by default all."""
        for kind in kinds or _KINDS:
            if kind == "join":
                self._asked_to_join.discard((group_id, member_id))
            self._timers.cancel((f"consumer {kind}", group_id, member_id))

    def _schedule(self, kind: str, group_id: str, member_id: str, delay: float, why: str) -> None:
        key = (f"consumer {kind}", group_id, member_id)
        self._timers.schedule(key, max(delay, 0.0), lambda: self._fence(group_id, member_id, why))

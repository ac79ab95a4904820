"""Handle JoinGroup, SyncGroup and Heartbeat of members with the classic protocol in consumer groups.

What they do to a group is decided in `classic_members`; here it is written, answered, and timed.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.consumer.classic_members import (
    Joined,
    check_join,
    classic_member,
    join,
    join_result,
    must_rejoin,
    sync,
)
from asyncgroup.broker.groups.consumer.consumer_group_member import ConsumerGroupMember
from asyncgroup.broker.groups.consumer.consumer_groups import ConsumerGroups
from asyncgroup.broker.groups.consumer.modern_group import ModernGroup
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig, WriteCallback
from asyncgroup.broker.groups.shared.requests import (
    JoinReply,
    JoinRequest,
    JoinResult,
    RequestMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from asyncgroup.error_codes import ErrorCode

__all__ = ["ClassicRequests"]


class ClassicRequests:
    """Handles the requests for groups of `groups` that have members; `after_writes` calls back after all earlier writes."""

    def __init__(
        self,
        config: CoordinatorConfig,
        groups: ConsumerGroups,
        after_writes: Callable[[str, WriteCallback], None],
    ) -> None:
        self._config = config
        self._groups = groups
        self._after_writes = after_writes

    def __repr__(self) -> str:
        return f"<ClassicRequests to {self._groups!r}>"

    def join(self, group: ModernGroup, request: JoinRequest, reply: JoinReply) -> None:
        """Handle JoinGroup. It is answered when the change is written: no member waits for others."""
        try:
            if self._config.group_consumer_migration_policy == "disabled":
                raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the migration of groups is disabled")
            check_join(group, request, self._config.group_consumer_max_size)
            member_id = request.member_id or self._groups.new_member_id()
            if (
                not request.member_id
                and request.group_instance_id is None
                and request.require_known_member_id
            ):
                reply(JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
                return
            context = self._groups.context(group.group_id)
            joined = join(group, request, member_id, context, self._groups.may_downgrade)
        except Refused as error:
            reply(JoinResult(error=error.code))
            return

        def written(error: ErrorCode) -> None:
            if not joined.becomes_classic:
                # Also if it could not be written in time: later changes may have built on the member. Kafka starts no timer
                # then, and keeps a member that does not come back until the coordinator moves.
                self._start_timers(group.group_id, joined.member)
            reply(JoinResult(error=error) if error else join_result(joined.member))

        if joined.becomes_classic:
            self._groups.downgrade(joined.group, _reason(joined), written)
        else:
            self._groups.put(joined.group, written)

    def _start_timers(self, group_id: str, member: ConsumerGroupMember) -> None:
        group = self._groups.get(group_id)
        if group is not None and member.member_id in group.members and member.classic is not None:
            timers = self._groups.timers
            timers.restart_session(group_id, member.member_id, member.classic.session_timeout)
            timers.joined(group_id, member.member_id, member.rebalance_timeout)

    def sync(self, group: ModernGroup, request: SyncRequest, reply: SyncReply) -> None:
        """Handle SyncGroup. It is answered when all earlier changes are written."""
        group_id, member_id = request.group_id, request.member.id
        try:
            member = classic_member(group, request.member)
            result = sync(group, member, request, self._groups.topics)
        except Refused as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._groups.timers.asked_to_join(group_id, group.members[member_id])
            reply(SyncResult(error=error.code))
            return

        def written(error: ErrorCode) -> None:
            if error:
                reply(SyncResult(error=error))
                return
            now = self._groups.get(group_id)
            if now is not None and member_id in now.members:
                self._groups.timers.synced(group_id, member)
            reply(result)

        self._after_writes(group_id, written)

    def heartbeat(self, group: ModernGroup, sender: RequestMember) -> ErrorCode:
        """Handle Heartbeat: REBALANCE_IN_PROGRESS if the member shall join again."""
        try:
            member = classic_member(group, sender)
        except Refused as error:
            return error.code
        if member.classic is not None:
            timeout = member.classic.session_timeout
            self._groups.timers.restart_session(group.group_id, sender.id, timeout)
        if not must_rejoin(group, member):
            return ErrorCode.NONE
        self._groups.timers.asked_to_join(group.group_id, member)
        return ErrorCode.REBALANCE_IN_PROGRESS


def _reason(joined: Joined) -> str | None:
    return "its assignment is older than its members" if joined.is_stale else None

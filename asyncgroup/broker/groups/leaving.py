"""Handle LeaveGroup of one or several members (Kafka's `GroupMetadataManager.classicGroupLeaveToClassicGroup`)."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.broker.groups.checks import check_member
from asyncgroup.broker.groups.group import ClassicGroup
from asyncgroup.broker.groups.rebalance import Rebalance
from asyncgroup.broker.groups.requests import JoinResult, LeaveResult, LeavingMember
from asyncgroup.broker.groups.state import ClassicGroupState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger

__all__ = ["Leaving"]

log = escaping_logger(__name__)


class Leaving:
    """Handles LeaveGroup requests for groups that exist on this coordinator."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance

    def leave(self, group: ClassicGroup, members: Iterable[LeavingMember]) -> LeaveResult:
        """Remove the members, each with its own result; the group rebalances once for all of them."""
        if group.state is ClassicGroupState.DEAD:
            return LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        results = tuple((leaving, self._leave_one(group, leaving)) for leaving in members)
        left = [m.member_id or m.group_instance_id or "" for m, error in results if not error]
        if left:
            reason = f"explicit LeaveGroup of {', '.join(left)}"
            if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
                self._rebalance.prepare_rebalance_or_complete_join(group, reason)
            else:
                self._rebalance.maybe_complete_join(group)
        return LeaveResult(members=results)

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id:  # an admin client removes a static member by its group instance id
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending_join and (
            error := check_member(group, member_id, leaving.group_instance_id)
        ):
            return error
        self._rebalance.cancel_session_timer(group, member_id)
        member = group.members.get(member_id)
        if member is not None:
            group.answer_join(member, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member_id)
        reason = leaving.reason or "not provided"
        log.info("group %s: member %s left; client reason: %s", group.group_id, member_id, reason)
        return ErrorCode.NONE

"""Handle JoinGroup and LeaveGroup, case by case (Kafka's `GroupMetadataManager.classicGroupJoin…`, `classicGroupLeave…`)."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Iterable

from asyncgroup.broker.groups.classic.classic_checks import check_member
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.classic.rebalance import Rebalance
from asyncgroup.broker.groups.shared.requests import (
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
)
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger

__all__ = ["GroupMembership"]

log = escaping_logger(__name__)

_MAX_PREFIX = 1000
"""Characters of the client id or the instance id that a member id starts with. With an id of maximum length the member id
would be too long for a response.
"""


class GroupMembership:
    """Handles JoinGroup and LeaveGroup for groups that exist on this coordinator; `rng` makes member ids."""

    def __init__(self, rebalance: Rebalance, rng: random.Random) -> None:
        self._rebalance = rebalance
        self._rng = rng

    def join(self, group: ClassicGroup, request: JoinRequest, reply: JoinReply) -> None:
        """Answer or park `request`."""
        if not self._accepts_joining_member(group, request.member_id):
            group.remove(request.member_id)
            self._rebalance.cancel_session_timer(group, request.member_id)
            reply(JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif group.state is ClassicGroupState.DEAD:
            reply(JoinResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id))
        elif not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
            reply(JoinResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id))
        elif not request.member_id:
            self._join_new(group, request, reply)
        elif request.member_id in group.pending_join:
            self._join_pending(group, request, reply)
        else:
            self._join_existing(group, request, reply)

    def _accepts_joining_member(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether `group.max.size` admits the member.

        From a group that is too large, those that rejoin last are removed (Kafka's `acceptJoiningMember`).
        """
        member = group.members.get(member_id)
        match group.state:
            case ClassicGroupState.EMPTY | ClassicGroupState.DEAD:
                return True
            case ClassicGroupState.PREPARING_REBALANCE:
                waiting = member is not None and member.is_awaiting_join
                return waiting or group.awaiting_join_count < self._rebalance.config.group_max_size
            case _:
                return member is not None or len(group.members) < self._rebalance.config.group_max_size

    # -- members without an id -------------------------------------------------------------------------------

    def _join_new(self, group: ClassicGroup, request: JoinRequest, reply: JoinReply) -> None:
        instance_id = request.group_instance_id
        prefix = request.client.id if instance_id is None else instance_id
        member_id = f"{prefix[:_MAX_PREFIX]}-{uuid.UUID(int=self._rng.getrandbits(128), version=4)}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(group, request, member_id, reply)
        elif instance_id is None and request.require_known_member_id:
            group.pending_join.add(member_id)
            self._rebalance.start_session_timer(group, member_id, request.timeouts.session)
            reply(JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(group, request, member_id, reply)

    def _join_pending(self, group: ClassicGroup, request: JoinRequest, reply: JoinReply) -> None:
        if request.group_instance_id is not None:  # only dynamic members are given ids
            reply(JoinResult(error=ErrorCode.UNKNOWN_SERVER_ERROR, member_id=request.member_id))
        else:
            self._add(group, request, request.member_id, reply)

    def _add(self, group: ClassicGroup, request: JoinRequest, member_id: str, reply: JoinReply) -> None:
        member = GroupMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client=request.client,
            timeouts=request.timeouts,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            is_new=True,
        )
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and group.previous_state is ClassicGroupState.EMPTY
        ):
            group.new_member_added = True
        group.add(member, reply)
        log.info(
            "group %s: member %s joined, client %r from %s; client reason: %s",
            group.group_id,
            member_id,
            request.client.id,
            request.client.host.removeprefix("/") or "unknown host",
            request.reason or "not provided",
        )
        # A member sends no heartbeats while its JoinGroup is parked, so a client that is gone would not be noticed. After
        # this time the member is removed, and a client that is still there gets UNKNOWN_MEMBER_ID and rejoins.
        self._rebalance.restart_session_timer(group, member, self._rebalance.config.new_member_join_timeout)
        self._rebalance.prepare_rebalance_or_complete_join(
            group, _rebalance_reason(request, f"new member {member_id}")
        )

    def _replace_static(
        self, group: ClassicGroup, request: JoinRequest, member_id: str, reply: JoinReply
    ) -> None:
        """Handle a static member that joins without its member id (KIP-345).

        It gets a new id and keeps its membership.
        """
        rebalance = self._rebalance
        old_leader = group.leader
        instance_id = request.group_instance_id or ""
        old_id = group.static_members[instance_id]
        rebalance.cancel_session_timer(group, old_id)
        member = group.replace_static(instance_id, member_id)
        rebalance.restart_session_timer(group, member)
        previous = dataclasses.replace(member, member_id=old_id)
        log.info(
            "group %s: static member %s rejoined with the new member id %s",
            group.group_id,
            instance_id,
            member_id,
        )
        group.update(member, request.protocols, request.timeouts, reply)
        if group.state is ClassicGroupState.STABLE:
            if group.protocol_name == group.select_protocol():
                self._store_replacement(group, request, member, old_leader, previous)
            else:
                rebalance.prepare_rebalance_or_complete_join(
                    group, _rebalance_reason(request, f"{member_id} changes the protocol")
                )
        elif group.state is ClassicGroupState.COMPLETING_REBALANCE:
            # The leader may already be computing an assignment for the old id; the new id would get nothing.
            rebalance.prepare_rebalance(
                group, _rebalance_reason(request, f"static member {request.group_instance_id} replaced")
            )
        else:
            rebalance.maybe_complete_join(group)

    def _store_replacement(
        self,
        group: ClassicGroup,
        request: JoinRequest,
        member: GroupMember,
        old_leader: str | None,
        previous: GroupMember,
    ) -> None:
        """Write the new id and answer with the current generation, without a rebalance.

        If the write fails, restore `previous`.
        """
        member_id, leads = member.member_id, group.is_leader(member.member_id)

        def written(error: ErrorCode) -> None:
            if member.member_id != member_id:
                return  # it was replaced again: this request was answered with FENCED_INSTANCE_ID
            if error:
                self._revert_replacement(group, member, previous, error)
                return
            # Before version 9 the response cannot ask a leader to skip the assignment, so it names the old leader.
            skips = request.supports_skipping_assignment
            group.answer_join(
                member,
                JoinResult(
                    member_id=member_id,
                    generation_id=group.generation_id,
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol_name,
                    leader=(group.leader if skips else old_leader) or "",
                    members=group.joined_members() if skips and leads else (),
                    skip_assignment=skips and leads,
                ),
            )

        assignments = {m.member_id: m.assignment for m in group.members.values()}
        self._rebalance.write_group(group.snapshot(assignments), written)

    def _revert_replacement(
        self, group: ClassicGroup, member: GroupMember, previous: GroupMember, error: ErrorCode
    ) -> None:
        """Restore the member's previous id, which is the one in the log, and answer its JoinGroup with `error`."""
        refused = JoinResult(
            error=error,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
        )
        group.answer_join(member, refused)
        if group.members.get(member.member_id) is not member or group.state is ClassicGroupState.DEAD:
            return  # the member has left, or the group was deleted or moved
        self._rebalance.cancel_session_timer(group, member.member_id)
        group.update(member, previous.protocols, previous.timeouts, None)
        group.replace_static(previous.group_instance_id or "", previous.member_id)
        self._rebalance.restart_session_timer(group, member)

    # -- members with an id ----------------------------------------------------------------------------------

    def _join_existing(self, group: ClassicGroup, request: JoinRequest, reply: JoinReply) -> None:
        member_id = request.member_id
        if error := check_member(group, member_id, request.group_instance_id):
            reply(JoinResult(error=error, member_id=member_id))
            return
        member, leads = group.members[member_id], group.is_leader(member_id)
        unchanged = member.protocols == request.protocols
        match group.state:
            case ClassicGroupState.COMPLETING_REBALANCE if unchanged:
                # It probably did not receive the response to its first JoinGroup.
                reply(group.join_result(member_id, with_members=leads))
            case ClassicGroupState.STABLE if unchanged and not leads:
                reply(group.join_result(member_id, with_members=False))
            case (
                ClassicGroupState.PREPARING_REBALANCE
                | ClassicGroupState.COMPLETING_REBALANCE
                | ClassicGroupState.STABLE
            ):
                # A leader that rejoins a stable group asks for a rebalance, for example because partitions were added.
                self._rejoin(group, member, request, reply)
            case _:
                reply(JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id))

    def _rejoin(
        self, group: ClassicGroup, member: GroupMember, request: JoinRequest, reply: JoinReply
    ) -> None:
        reason = _rebalance_reason(request, f"member {member.member_id} rejoins during {group.state}")
        group.update(member, request.protocols, request.timeouts, reply)
        self._rebalance.prepare_rebalance_or_complete_join(group, reason)

    # -- leave ----------------------------------------------------------------------------------------------

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


def _rebalance_reason(request: JoinRequest, what: str) -> str:
    return f"{what}; client reason: {request.reason or 'not provided'}"

"""The join and sync phases of a rebalance, with their timers.

Every method is one synchronous step: it changes the group, answers parked requests and sets timers. This is
the part of Kafka's `GroupMetadataManager` for the classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.broker.clock import Timers
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.group_member import GroupMember
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig, WriteGroup
from asyncgroup.broker.groups.shared.requests import JoinResult, SyncResult
from asyncgroup.counting import counted
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger

__all__ = ["Rebalance"]

log = escaping_logger(__name__)


def _ignore(_error: ErrorCode) -> None:
    """For the record of an empty generation: no member waits for the result."""


class Rebalance:
    """Takes groups from one generation to the next."""

    def __init__(self, config: CoordinatorConfig, timers: Timers, write_group: WriteGroup) -> None:
        self.config = config
        self._timers = timers
        self.write_group = write_group

    # -- sessions --------------------------------------------------------------------------------------------

    def restart_session_timer(
        self, group: ClassicGroup, member: GroupMember, timeout: float | None = None
    ) -> None:
        """Restart the member's session timer.

        It expires in `timeout` seconds, by default the member's session timeout.
        """
        self.start_session_timer(
            group, member.member_id, member.timeouts.session if timeout is None else timeout
        )

    def start_session_timer(self, group: ClassicGroup, member_id: str, timeout: float) -> None:
        """Start the session timer of `member_id`, a member or a pending id; it expires in `timeout` seconds."""
        key = ("heartbeat", group.group_id, member_id)
        self._timers.schedule(key, timeout, lambda: self.expire_session(group, member_id))

    def cancel_session_timer(self, group: ClassicGroup, member_id: str) -> None:
        """Cancel the session timer of `member_id`."""
        self._timers.cancel(("heartbeat", group.group_id, member_id))

    def expire_session(self, group: ClassicGroup, member_id: str) -> None:
        """Remove `member_id`, whose session timer expired, unless its request is parked."""
        if group.state is ClassicGroupState.DEAD:
            return
        if member_id in group.pending_join:
            log.info("group %s: pending member %s did not rejoin in time", group.group_id, member_id)
            self.remove_pending_member(group, member_id)
            return
        member = group.members.get(member_id)
        if member is not None and not member.has_satisfied_heartbeat:
            log.info("group %s: session of member %s expired", group.group_id, member_id)
            self.remove_member(group, member, f"removing member {member_id} on heartbeat expiration")

    def remove_member(self, group: ClassicGroup, member: GroupMember, reason: str) -> None:
        """Remove a failed member and rebalance without it. If it is still alive, UNKNOWN_MEMBER_ID makes it rejoin."""
        group.answer_join(member, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance_or_complete_join(group, reason)
        elif group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group)

    def remove_pending_member(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a pending id, and end the join phase if that waited only for this id."""
        group.remove(member_id)
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group)

    # -- join phase ------------------------------------------------------------------------------------------

    def prepare_rebalance_or_complete_join(self, group: ClassicGroup, reason: str) -> None:
        """Start a rebalance if the state allows one, else end the current join phase if it is complete."""
        if group.can_rebalance:
            self.prepare_rebalance(group, reason)
        else:
            self.maybe_complete_join(group)

    def prepare_rebalance(self, group: ClassicGroup, reason: str) -> None:
        """Enter PREPARING_REBALANCE. An empty group waits `initial_rebalance_delay` for more members."""
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            self._reset_assignments(group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        self._timers.cancel(("sync", group.group_id))
        initial = group.state is ClassicGroupState.EMPTY
        if initial:
            delay = self.config.initial_rebalance_delay
            remaining = max(group.rebalance_timeout - delay, 0.0)
            self._join_timer(
                group, delay, lambda: self._try_complete_initial_rebalance(group, delay, remaining)
            )
        group.transition_to(ClassicGroupState.PREPARING_REBALANCE)
        log.info("group %s: rebalance after generation %d: %s", group.group_id, group.generation_id, reason)
        if initial:
            return
        if group.has_all_members_joined:
            self.complete_join(group)
        else:
            self._join_timer(group, group.rebalance_timeout, lambda: self.complete_join(group))

    def maybe_complete_join(self, group: ClassicGroup) -> None:
        """End the join phase if all members have joined; the initial delay of an empty group is never cut short."""
        initial = group.previous_state is ClassicGroupState.EMPTY
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and not initial
            and group.has_all_members_joined
        ):
            self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> None:
        """End the join phase: remove absent dynamic members, start the next generation, answer the joins."""
        if group.state is ClassicGroupState.DEAD:
            return
        self._timers.cancel(("join", group.group_id))
        for absent in group.not_yet_rejoined_dynamic_members():
            log.info("group %s: member %s did not rejoin in time", group.group_id, absent.member_id)
            group.remove(absent.member_id)
            self.cancel_session_timer(group, absent.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has rejoined: wait for them, until their sessions expire.
            self._join_timer(group, group.rebalance_timeout, lambda: self.complete_join(group))
            return
        group.init_next_generation()
        if group.state is ClassicGroupState.EMPTY:
            log.info("group %s: generation %d is empty", group.group_id, group.generation_id)
            self.write_group(group.snapshot({}), _ignore)
        else:
            self._answer_joins(group)

    def _answer_joins(self, group: ClassicGroup) -> None:
        log.info(
            "group %s: generation %d has %s, leader %s, protocol %s",
            group.group_id,
            group.generation_id,
            counted(len(group.members), "member"),
            group.leader,
            group.protocol_name,
        )
        for member in group.members.values():
            leads = group.is_leader(member.member_id)
            group.answer_join(member, group.join_result(member.member_id, with_members=leads))
            self.restart_session_timer(group, member)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        generation = group.generation_id
        self._timers.schedule(
            ("sync", group.group_id),
            group.rebalance_timeout,
            lambda: self._expire_pending_sync(group, generation),
        )

    def _try_complete_initial_rebalance(self, group: ClassicGroup, delay: float, remaining: float) -> None:
        """End the initial delay, or extend it if a member joined during it and the rebalance timeout has not passed."""
        if group.new_member_added and remaining > 0:
            group.new_member_added = False
            next_delay = min(self.config.initial_rebalance_delay, remaining)
            next_remaining = max(remaining - delay, 0.0)
            self._join_timer(
                group,
                next_delay,
                lambda: self._try_complete_initial_rebalance(group, next_delay, next_remaining),
            )
        else:
            self.complete_join(group)

    def _join_timer(self, group: ClassicGroup, delay: float, action: Callable[[], None]) -> None:
        self._timers.schedule(("join", group.group_id), delay, action)

    # -- sync phase ------------------------------------------------------------------------------------------

    def store_assignment(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignment to the log, then send it to the members and become STABLE."""
        generation = group.generation_id
        assignment = {member_id: assignments.get(member_id, b"") for member_id in group.members}

        def written(error: ErrorCode) -> None:
            # The group must still wait for this assignment: during the write a member may have joined or left.
            if group.state is not ClassicGroupState.COMPLETING_REBALANCE or group.generation_id != generation:
                return
            if error:
                self._reset_assignments(group, error)
                self.prepare_rebalance_or_complete_join(group, f"{error.name} when storing the assignment")
                return
            for member in group.members.values():
                member.assignment = assignment.get(member.member_id, b"")
            self._answer_syncs(group, ErrorCode.NONE)
            group.transition_to(ClassicGroupState.STABLE)

        self.write_group(group.snapshot(assignment), written)

    def remove_pending_sync(self, group: ClassicGroup, member_id: str) -> None:
        """Record that `member_id` has sent its SyncGroup."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._timers.cancel(("sync", group.group_id))

    def _expire_pending_sync(self, group: ClassicGroup, generation: int) -> None:
        """Remove the members that have not sent a SyncGroup in time."""
        after_join = (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE)
        if generation != group.generation_id or group.state not in after_join or not group.pending_sync:
            return
        late = sorted(group.pending_sync)
        for member_id in late:
            group.remove(member_id)
            self.cancel_session_timer(group, member_id)
        self.prepare_rebalance(group, f"removing {', '.join(late)}, which did not sync in time")

    def _reset_assignments(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
        self._answer_syncs(group, error)

    def _answer_syncs(self, group: ClassicGroup, error: ErrorCode) -> None:
        for member in group.members.values():
            if group.answer_sync(member, sync_result(group, member, error)):
                # The session timer may have expired while the SyncGroup was parked; that was ignored.
                self.restart_session_timer(group, member)

    # -- end -------------------------------------------------------------------------------------------------

    def answer_all(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Answer the parked requests of all members with `error`."""
        for member in group.members.values():
            group.answer_join(member, JoinResult(error=error, member_id=member.member_id))
            group.answer_sync(member, SyncResult(error=error))

    def transition_to_dead(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Enter DEAD: cancel all timers, answer parked requests with `error`."""
        group.transition_to(ClassicGroupState.DEAD)
        self._timers.cancel(("join", group.group_id))
        self._timers.cancel(("sync", group.group_id))
        self.answer_all(group, error)
        for member in group.members.values():
            self.cancel_session_timer(group, member.member_id)
        for member_id in group.pending_join:
            self.cancel_session_timer(group, member_id)


def sync_result(group: ClassicGroup, member: GroupMember, error: ErrorCode = ErrorCode.NONE) -> SyncResult:
    """Return the result of a SyncGroup of `member`."""
    if error:
        return SyncResult(error=error)
    return SyncResult(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )

"""The two phases of a rebalance, join and sync, with their timers (the classic half of Kafka's
`GroupMetadataManager`).

Every method is a synchronous step: it changes the group, answers parked requests and sets timers, nothing
waits.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.broker.coordinator.group import ClassicGroup
from asyncgroup.broker.coordinator.interfaces import CoordinatorConfig, OffsetStore, Timers
from asyncgroup.broker.coordinator.member import GroupMember
from asyncgroup.broker.coordinator.requests import JoinResult, SyncResult
from asyncgroup.broker.coordinator.state import ClassicGroupState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.escaping import escaping_logger

__all__ = ["Rebalance"]

log = escaping_logger(__name__)


def _ignore(_error: ErrorCode) -> None:
    """For writes whose failure changes nothing: an empty generation has nobody to tell."""


class Rebalance:
    """Drives groups from one generation to the next."""

    def __init__(self, config: CoordinatorConfig, timers: Timers, store: OffsetStore) -> None:
        self.config = config
        self._timers = timers
        self.store = store

    # -- sessions --------------------------------------------------------------------------------------------

    def restart_session_timer(
        self, group: ClassicGroup, member: GroupMember, timeout: float | None = None
    ) -> None:
        """The member showed life: its session ends `timeout` (else its session timeout) seconds from now."""
        self.start_session_timer(
            group, member.member_id, member.session_timeout if timeout is None else timeout
        )

    def start_session_timer(self, group: ClassicGroup, member_id: str, timeout: float) -> None:
        """Expire `member_id`, a member or an id that was given out, `timeout` seconds from now."""
        key = ("heartbeat", group.group_id, member_id)
        self._timers.schedule(key, timeout, lambda: self.expire_session(group, member_id))

    def cancel_session_timer(self, group: ClassicGroup, member_id: str) -> None:
        """Stop the session timer of `member_id`."""
        self._timers.cancel(("heartbeat", group.group_id, member_id))

    def expire_session(self, group: ClassicGroup, member_id: str) -> None:
        """The session timer of `member_id` ran out."""
        if group.state is ClassicGroupState.DEAD:
            return
        if member_id in group.pending_join:
            log.info("group %s: pending member %s did not come back", group.group_id, member_id)
            self.remove_pending_member(group, member_id)
            return
        member = group.members.get(member_id)
        if member is not None and not member.has_satisfied_heartbeat:
            log.info("group %s: member %s failed (no heartbeat)", group.group_id, member_id)
            self.remove_member(group, member, f"removing member {member_id} on heartbeat expiration")

    def remove_member(self, group: ClassicGroup, member: GroupMember, reason: str) -> None:
        """Drop a failed member and rebalance without it. If it is alive after all, its join is to be
        repeated.
        """
        group.answer_join(member, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance_or_complete_join(group, reason)
        elif group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group)

    def remove_pending_member(self, group: ClassicGroup, member_id: str) -> None:
        """Forget an id that was given out; the join phase may have waited for it only."""
        group.remove(member_id)
        if group.state is ClassicGroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group)

    # -- join phase ------------------------------------------------------------------------------------------

    def prepare_rebalance_or_complete_join(self, group: ClassicGroup, reason: str) -> None:
        """Start a rebalance where the state allows one, else see whether the running join phase is complete."""
        if group.can_rebalance:
            self.prepare_rebalance(group, reason)
        else:
            self.maybe_complete_join(group)

    def prepare_rebalance(self, group: ClassicGroup, reason: str) -> None:
        """Enter PREPARING_REBALANCE. A new group waits for `initial_rebalance_delay`, so that members gather."""
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
        """End the join phase once all are in; never early in a new group, which waits for its delay."""
        initial = group.previous_state is ClassicGroupState.EMPTY
        if (
            group.state is ClassicGroupState.PREPARING_REBALANCE
            and not initial
            and group.has_all_members_joined
        ):
            self.complete_join(group)

    def complete_join(self, group: ClassicGroup) -> None:
        """End the join phase: drop dynamic members that did not come, start the next generation, answer the
        joins.
        """
        if group.state is ClassicGroupState.DEAD:
            return
        self._timers.cancel(("join", group.group_id))
        for absent in group.not_yet_rejoined_dynamic_members():
            log.info("group %s: member %s did not rejoin in time", group.group_id, absent.member_id)
            group.remove(absent.member_id)
            self.cancel_session_timer(group, absent.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has come back: wait on until their sessions end.
            self._join_timer(group, group.rebalance_timeout, lambda: self.complete_join(group))
            return
        group.init_next_generation()
        if group.state is ClassicGroupState.EMPTY:
            log.info("group %s: generation %d is empty", group.group_id, group.generation_id)
            self.store.write_group(group.snapshot({}), _ignore)
        else:
            self._answer_joins(group)

    def _answer_joins(self, group: ClassicGroup) -> None:
        log.info(
            "group %s: generation %d has %d members, leader %s, protocol %s",
            group.group_id,
            group.generation_id,
            len(group.members),
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
        """The initial delay ran out: wait once more if a member came meanwhile and there is time left."""
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
        """The leader's plan arrived: write it, then hand it out and become STABLE."""
        generation = group.generation_id
        plan = {member_id: assignments.get(member_id, b"") for member_id in group.members}

        def written(error: ErrorCode) -> None:
            # A member may have joined or left while the write was under way; then this plan is void.
            if group.state is not ClassicGroupState.COMPLETING_REBALANCE or group.generation_id != generation:
                return
            if error:
                self._reset_assignments(group, error)
                self.prepare_rebalance_or_complete_join(group, f"{error.name} when storing the assignment")
                return
            for member in group.members.values():
                member.assignment = plan.get(member.member_id, b"")
            self._answer_syncs(group, ErrorCode.NONE)
            group.transition_to(ClassicGroupState.STABLE)

        self.store.write_group(group.snapshot(plan), written)

    def remove_pending_sync(self, group: ClassicGroup, member_id: str) -> None:
        """`member_id` sent its SyncGroup."""
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._timers.cancel(("sync", group.group_id))

    def _expire_pending_sync(self, group: ClassicGroup, generation: int) -> None:
        """The time for SyncGroup ran out: members that have not sent one are dropped."""
        settled = (ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE)
        if generation != group.generation_id or group.state not in settled or not group.pending_sync:
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
                # A session that ran out while the SyncGroup was parked was overlooked, so its timer is gone.
                self.restart_session_timer(group, member)

    # -- end -------------------------------------------------------------------------------------------------

    def transition_to_dead(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Enter DEAD: timers stop, parked requests are answered with `error`."""
        group.transition_to(ClassicGroupState.DEAD)
        self._timers.cancel(("join", group.group_id))
        self._timers.cancel(("sync", group.group_id))
        for member in group.members.values():
            self.cancel_session_timer(group, member.member_id)
            group.answer_join(member, JoinResult(error=error, member_id=member.member_id))
            group.answer_sync(member, SyncResult(error=error))
        for member_id in group.pending_join:
            self.cancel_session_timer(group, member_id)


def sync_result(group: ClassicGroup, member: GroupMember, error: ErrorCode = ErrorCode.NONE) -> SyncResult:
    """The answer to a SyncGroup of `member`."""
    if error:
        return SyncResult(error=error)
    return SyncResult(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )

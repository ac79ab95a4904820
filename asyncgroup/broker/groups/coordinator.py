"""The group coordinator of one node, with one method per API (Kafka's `GroupCoordinatorService`).

A coordinator serves the groups whose partition of `__consumer_offsets` its node leads. `load` and `unload` are called
when the leader changes: everything in the store survives this, a rebalance in progress does not, as in Kafka. The APIs
for offsets are methods of its `offsets`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping

from asyncgroup.broker.clock import Clock, Timers
from asyncgroup.broker.errors import Refused
from asyncgroup.broker.groups.classic.classic_checks import check_heartbeat, check_sync
from asyncgroup.broker.groups.classic.classic_group import ClassicGroup, ClassicGroupState
from asyncgroup.broker.groups.classic.classic_groups import ClassicGroups
from asyncgroup.broker.groups.classic.membership import GroupMembership
from asyncgroup.broker.groups.classic.rebalance import Rebalance, sync_result
from asyncgroup.broker.groups.consumer.classic_requests import ClassicRequests
from asyncgroup.broker.groups.consumer.consumer_checks import check_heartbeat as check_consumer_heartbeat
from asyncgroup.broker.groups.consumer.consumer_groups import ConsumerGroups
from asyncgroup.broker.groups.consumer.heartbeat_messages import (
    MemberHeartbeat,
    MemberHeartbeatReply,
    MemberHeartbeatResult,
)
from asyncgroup.broker.groups.consumer.topics import NO_TOPICS, TopicsImage
from asyncgroup.broker.groups.migration import GroupMigration
from asyncgroup.broker.groups.offsets import OffsetMetadataManager
from asyncgroup.broker.groups.shared.interfaces import CoordinatorConfig, WriteCallback
from asyncgroup.broker.groups.shared.requests import (
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    RequestMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from asyncgroup.broker.groups.store.offset_store import OffsetStore
from asyncgroup.error_codes import ErrorCode

__all__ = ["GroupCoordinator"]


def _no_configs(_group_id: str) -> Mapping[str, str]:
    return {}


class GroupCoordinator:
    """Serves the groups of one node. All methods are synchronous; delayed results are passed to a callback.

    `partition_of` maps a group id to its partition of `__consumer_offsets`; `clock` returns the Unix time in ms.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        timers: Timers,
        store: OffsetStore,
        partition_of: Callable[[str], int],
        *,
        rng: random.Random,
        clock: Clock,
        topics: TopicsImage = NO_TOPICS,
        group_configs: Callable[[str], Mapping[str, str]] = _no_configs,
    ) -> None:
        self.config = config
        self.partitions: set[int] = set()  # partitions of `__consumer_offsets` that are loaded
        self.loading: set[int] = set()  # partitions that wait for `offsets_load_delay`
        self._timers = timers
        self._store = store
        self._partition_of = partition_of
        self._expiry_scheduled = False
        self._groups = ClassicGroups(clock, self._schedule_expiry)
        self._rebalance = Rebalance(config, timers, store.write_group)
        self._membership = GroupMembership(self._rebalance, rng)
        self._migration = GroupMigration(self._groups, self._rebalance, store, topics)
        self.consumer_groups = ConsumerGroups(
            config,
            timers,
            store.write_records,
            topics,
            group_configs,
            rng=rng,
            clock=clock,
            on_added=self._schedule_expiry,
            to_classic=self._migration.downgrade,
        )
        """The groups with the consumer protocol (KIP-848); all others are in `groups`."""
        self._classic_requests = ClassicRequests(config, self.consumer_groups, store.after_writes)
        self.offsets = OffsetMetadataManager(
            self._groups, self.consumer_groups, self._rebalance, store, self.error_for
        )
        """Handles the requests for offsets."""

    def __repr__(self) -> str:
        return f"<GroupCoordinator partitions={len(self.partitions)} groups={len(self.groups)}>"

    @property
    def groups(self) -> Mapping[str, ClassicGroup]:
        """The groups of all loaded partitions with the classic protocol, by id."""
        return self._groups.by_id

    # -- leadership ------------------------------------------------------------------------------------------

    def load(self, partition: int) -> None:
        """Become the coordinator of the groups of `partition`, after `offsets_load_delay` if it is set."""
        delay = self.config.offsets_load_delay
        # without the topic there is nothing to load
        if delay > 0 and self._store.exists():
            self.loading.add(partition)
            self._timers.schedule(("load", partition), delay, lambda: self._load(partition))
        else:
            self._load(partition)

    def _load(self, partition: int) -> None:
        """Load the groups; each member gets a full session timeout to send its first heartbeat."""
        self.loading.discard(partition)
        self.partitions.add(partition)
        for snapshot in self._store.load(partition):
            group = self._groups.restore(snapshot)
            for member in group.members.values():
                self._rebalance.restart_session_timer(group, member)
            # the limit may have been higher before the restart
            if len(group.members) > self.config.group_max_size:
                self._rebalance.prepare_rebalance(
                    group, f"{len(group.members)} members exceed group.max.size"
                )
        self.consumer_groups.restore(self._store.consumer_groups(partition))

    def unload(self, partition: int) -> None:
        """Stop being the coordinator of the groups of `partition`; parked requests get NOT_COORDINATOR."""
        self._timers.cancel(("load", partition))
        self.loading.discard(partition)
        self.partitions.discard(partition)
        for group in self._groups.all():
            if self._partition_of(group.group_id) == partition:
                self._groups.discard(group)
                self._rebalance.transition_to_dead(group, ErrorCode.NOT_COORDINATOR)
        for consumer_group in self.consumer_groups.all():
            if self._partition_of(consumer_group.group_id) == partition:
                self.consumer_groups.discard(consumer_group.group_id)
        self._store.unload(partition)

    def on_high_watermark_updated(self, partition: int) -> None:
        """Complete the writes below the high watermark of `partition`, which may have advanced."""
        self._store.on_high_watermark_updated(partition)

    def after_writes(self, group_id: str, done: WriteCallback) -> None:
        """Call `done` once all earlier writes to the group's partition are complete; immediately if there are none.

        Call `error_for` first.
        """
        self._store.after_writes(group_id, done)

    def error_for(self, group_id: str | None) -> ErrorCode:
        """Return why this node cannot serve `group_id`, or NONE.

        Either the id is missing, or its partition is still loading, or another node is its coordinator.
        """
        if group_id is None:
            return ErrorCode.INVALID_GROUP_ID
        partition = self._partition_of(group_id)
        if partition in self.partitions:
            return ErrorCode.NONE
        is_loading = partition in self.loading
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NOT_COORDINATOR

    # -- membership ------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """Handle JoinGroup. A group that does not exist is created only for a member without an id."""
        if error := self._join_error(request):
            reply(JoinResult(error=error, member_id=request.member_id))
            return
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None and consumer_group.members:
            self._classic_requests.join(consumer_group, request, reply)
            return
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                reply(JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id))
                return
            group = self._create(request.group_id)
        self._membership.join(group, request, reply)

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if (
            not self.config.group_min_session_timeout
            <= request.timeouts.session
            <= self.config.group_max_session_timeout
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return self.error_for(request.group_id)

    def _create(self, group_id: str) -> ClassicGroup:
        """Add a classic group, in the place of a consumer group without members if there is one; its offsets stay."""
        if self.consumer_groups.get(group_id) is not None:
            return self._migration.replace_empty(self.consumer_groups.taken_out(group_id))
        group = self._groups.create(group_id)

        def written(error: ErrorCode) -> None:
            # after an error the log has no record of it
            if error and self.groups.get(group_id) is group:
                self._groups.discard(group)
                self._rebalance.transition_to_dead(group, error)

        self._store.write_group(group.snapshot({}), written)
        return group

    def sync(self, request: SyncRequest, reply: SyncReply) -> None:
        """Handle SyncGroup. Followers are parked until the leader's assignment is stored."""
        error = self.error_for(request.group_id or None)
        consumer_group = self.consumer_groups.get(request.group_id)
        if not error and consumer_group is not None:
            self._classic_requests.sync(consumer_group, request, reply)
            return
        group = self.groups.get(request.group_id)
        if not error:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else check_sync(group, request)
        if error or group is None:
            reply(SyncResult(error=error))
            return
        member = group.members[request.member.id]
        # its assignment was stored while this member was on its way
        if group.state is ClassicGroupState.STABLE:
            self._rebalance.remove_pending_sync(group, member.member_id)
            reply(sync_result(group, member))
            return
        # the leader waits as well: storing the assignment answers all that wait
        member.awaiting_sync = reply
        self._rebalance.remove_pending_sync(group, member.member_id)
        if group.is_leader(member.member_id):
            self._rebalance.store_assignment(group, request.assignments)

    def heartbeat(self, group_id: str, member: RequestMember) -> ErrorCode:
        """Handle Heartbeat. While the group is being loaded the answer is NONE, so that members keep running."""
        if error := self.error_for(group_id or None):
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None:
            return self._classic_requests.heartbeat(consumer_group, member)
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if error := check_heartbeat(group, member):
            return error
        self._rebalance.restart_session_timer(group, group.members[member.id])
        preparing = group.state is ClassicGroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def leave(self, group_id: str, members: Iterable[LeavingMember]) -> LeaveResult:
        """Handle LeaveGroup of one or several members; the group rebalances once for all of them."""
        if error := self.error_for(group_id or None):
            return LeaveResult(error)
        if self.consumer_groups.get(group_id) is not None:
            return LeaveResult(members=self.consumer_groups.remove_members(group_id, members))
        group = self.groups.get(group_id)
        if group is None:
            return LeaveResult(members=tuple((m, ErrorCode.UNKNOWN_MEMBER_ID) for m in members))
        return self._membership.leave(group, members)

    # -- consumer protocol -----------------------------------------------------------------------------------

    def consumer_heartbeat(self, request: MemberHeartbeat, version: int, reply: MemberHeartbeatReply) -> None:
        """Handle ConsumerGroupHeartbeat (KIP-848). A member that joins a classic group makes it a consumer group."""
        problem = check_consumer_heartbeat(request, version=version)
        if problem is not None:
            reply(MemberHeartbeatResult(error=problem.code, error_message=str(problem)))
            return
        if error := self.error_for(request.group_id):
            reply(MemberHeartbeatResult(error=error))
            return
        classic = self.groups.get(request.group_id)
        if classic is None:
            self.consumer_groups.heartbeat(request, reply)
            return
        try:
            if request.member_epoch != 0:
                text = f"Group {request.group_id} is not a consumer group."
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)
            upgrade = self._migration.upgrade(classic)
        except Refused as refused:
            reply(MemberHeartbeatResult(error=refused.code, error_message=str(refused)))
            return
        self.consumer_groups.heartbeat(request, reply, upgrade)

    # -- offsets ---------------------------------------------------------------------------------------------

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """Commit or drop the producer's pending offsets in `partition`, where its transaction marker was appended."""
        self._store.end_transaction(producer_id, partition, commit=commit)

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic."""
        self._store.remove_topic(topic)

    def _schedule_expiry(self) -> None:
        """Schedule the next check for expired offsets; `_expire` schedules another one while there are groups."""
        if not self._expiry_scheduled:
            self._expiry_scheduled = True
            interval = self.config.offsets_retention_check_interval
            self._timers.schedule(("expiry",), interval, self._expire)

    def _expire(self) -> None:
        self._expiry_scheduled = False
        try:
            self.offsets.expire()
        finally:
            if self.groups or self.consumer_groups.all():
                self._schedule_expiry()

"""The group coordinator of one node: groups by id, and what is answered to each API (Kafka's
`GroupCoordinatorService`).

A coordinator serves the groups of those partitions of `__consumer_offsets` that its node leads. `load` and
`unload` follow the leadership: what was written to the store survives, a rebalance under way does not, as in
Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping

from asyncgroup.broker.coordinator.calls import (
    CommitRequest,
    CommittedOffset,
    GroupSnapshot,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from asyncgroup.broker.coordinator.group import ClassicGroup
from asyncgroup.broker.coordinator.joining import Joining
from asyncgroup.broker.coordinator.member import GroupMember
from asyncgroup.broker.coordinator.ports import CoordinatorConfig, OffsetStore, Timers
from asyncgroup.broker.coordinator.rebalance import Rebalance, sync_result
from asyncgroup.broker.coordinator.state import GroupState
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["GroupCoordinator"]

CommitReply = Callable[[ErrorCode | dict[TopicPartition, ErrorCode]], None]
"""Takes one error for all partitions of a commit, or one for each."""


class GroupCoordinator:
    """Answers for the groups that live on one node. All methods are synchronous; parked answers come by
    callback.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        timers: Timers,
        store: OffsetStore,
        partition_of: Callable[[str], int],
        *,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.partitions: set[int] = set()
        self._store = store
        self._partition_of = partition_of
        self._rebalance = Rebalance(config, timers, store)
        self._joining = Joining(self._rebalance, rng)

    def __repr__(self) -> str:
        return f"<GroupCoordinator partitions={len(self.partitions)} groups={len(self.groups)}>"

    # -- leadership ------------------------------------------------------------------------------------------

    def load(self, partition: int) -> None:
        """Become coordinator of the groups of `partition`: members get a whole session timeout to show up."""
        self.partitions.add(partition)
        for snapshot in self._store.groups(partition):
            group = _group_from(snapshot)
            self.groups[group.group_id] = group
            for member in group.members.values():
                self._rebalance.touch(group, member)
            if len(group.members) > self.config.max_size:
                self._rebalance.prepare(group, f"{len(group.members)} members are over group.max.size")

    def unload(self, partition: int) -> None:
        """Stop being coordinator of `partition`: parked requests are answered NOT_COORDINATOR."""
        self.partitions.discard(partition)
        for group_id in [g for g in self.groups if self._partition_of(g) == partition]:
            self._rebalance.kill(self.groups.pop(group_id), ErrorCode.NOT_COORDINATOR)

    def error_for(self, group_id: str | None) -> ErrorCode:
        """Why this coordinator cannot serve `group_id`: it is not its own, or no id at all; NONE if it can."""
        if group_id is None:
            return ErrorCode.INVALID_GROUP_ID
        if self._partition_of(group_id) not in self.partitions:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def _error_for_member_call(self, group_id: str) -> ErrorCode:
        return self.error_for(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # -- membership ------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """JoinGroup. A group that does not exist is made for a member without an id only."""
        if error := self._join_error(request):
            reply(JoinResult(error=error, member_id=request.member_id))
            return
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                reply(JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id))
                return
            group = self._create(request.group_id)
        self._joining.join(group, request, reply)

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self.config.min_session_timeout <= request.session_timeout <= self.config.max_session_timeout:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return self.error_for(request.group_id)

    def _create(self, group_id: str) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id)
        self._store.write_group(group.snapshot({}), lambda _error: None)
        return group

    def sync(self, request: SyncRequest, reply: SyncReply) -> None:
        """SyncGroup. Followers are parked until the leader's assignment is stored."""
        error = self._error_for_member_call(request.group_id)
        group = self.groups.get(request.group_id)
        if not error:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _sync_error(group, request)
        if error or group is None:
            reply(SyncResult(error=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.STABLE:
            self._rebalance.synced(group, member.member_id)
            reply(sync_result(group, member))
            return
        member.awaiting_sync = reply
        self._rebalance.synced(group, member.member_id)
        if group.is_leader(member.member_id):
            self._rebalance.store_assignment(group, request.assignments)

    def heartbeat(
        self, group_id: str, member_id: str, generation_id: int, group_instance_id: str | None = None
    ) -> ErrorCode:
        """Heartbeat: NONE, or what the member has to do."""
        if error := self._error_for_member_call(group_id):
            return error
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error := group.check_member(member_id, group_instance_id):
            return error
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalance.touch(group, group.members[member_id])
        preparing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def leave(self, group_id: str, members: Iterable[LeavingMember]) -> LeaveResult:
        """LeaveGroup of one or several members; the group rebalances once for all of them."""
        if error := self._error_for_member_call(group_id):
            return LeaveResult(error)
        group = self.groups.get(group_id)
        if group is None:
            return LeaveResult(members=tuple((m, ErrorCode.UNKNOWN_MEMBER_ID) for m in members))
        if group.state is GroupState.DEAD:
            return LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        results = tuple((leaving, self._leave_one(group, leaving)) for leaving in members)
        left = [m.member_id or m.group_instance_id or "" for m, error in results if not error]
        if left:
            reason = f"explicit LeaveGroup of {', '.join(left)}"
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalance.prepare_or_complete(group, reason)
            else:
                self._rebalance.maybe_complete_join(group)
        return LeaveResult(members=results)

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id:  # an admin client removes a static member by its instance id
            member_id = group.static_members.get(leaving.group_instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending_join and (
            error := group.check_member(member_id, leaving.group_instance_id)
        ):
            return error
        self._rebalance.unwatch(group, member_id)
        member = group.members.get(member_id)
        if member is not None:
            group.answer_join(member, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member_id)
        return ErrorCode.NONE

    # -- offsets ---------------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, reply: CommitReply) -> None:
        """OffsetCommit. A valid commit keeps the member's session alive."""
        error = self.error_for(request.group_id)
        group = self.groups.get(request.group_id)
        if not error and group is None:
            if request.generation_id >= 0:
                newer = request.api_version >= 9
                error = ErrorCode.GROUP_ID_NOT_FOUND if newer else ErrorCode.ILLEGAL_GENERATION
            else:  # a consumer without group management, or an admin client
                group = self.groups[request.group_id] = ClassicGroup(request.group_id)
        if not error and group is not None:
            error = group.check_commit(request.member_id, request.group_instance_id, request.generation_id)
        if error or group is None:
            reply(error)
            return
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalance.touch(group, group.members[request.member_id])
        self._write_offsets(request, reply)

    def commit_transactional(self, request: CommitRequest, reply: CommitReply) -> None:
        """TxnOffsetCommit: the offsets count when the producer's transaction is committed."""
        error = self.error_for(request.group_id)
        group = self.groups.get(request.group_id)
        if not error and group is None:
            if request.generation_id >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
            else:
                group = self.groups[request.group_id] = ClassicGroup(request.group_id)
        if not error and group is not None:
            error = group.check_commit(
                request.member_id, request.group_instance_id, request.generation_id, transactional=True
            )
        if error:
            reply(error)
        else:
            self._write_offsets(request, reply)

    def _write_offsets(self, request: CommitRequest, reply: CommitReply) -> None:
        limit = self.config.offset_metadata_max_size
        results: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        for partition, offset in request.offsets.items():
            if len(offset.metadata) > limit:
                results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                results[partition] = ErrorCode.NONE
                accepted[partition] = offset

        def written(error: ErrorCode) -> None:
            reply(error or results)

        if request.producer_id is None:
            self._store.write_offsets(request.group_id, accepted, written)
        else:
            self._store.write_pending_offsets(request.group_id, request.producer_id, accepted, written)

    def pending(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions of a group whose offsets are not stable (KIP-447)."""
        return self._store.pending(group_id)

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The committed offsets of a group; empty for an unknown one. Ask `error_for` first."""
        group = self.groups.get(group_id)
        return {} if group is None or group.state is GroupState.DEAD else self._store.offsets(group_id)

    def delete(self, group_id: str) -> ErrorCode:
        """DeleteGroups: only a group without members, with its offsets."""
        if error := self.error_for(group_id):
            return error
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if error := group.check_delete():
            return error
        self._rebalance.kill(self.groups.pop(group_id), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._store.remove_group(group_id)
        return ErrorCode.NONE


def _sync_error(group: ClassicGroup, request: SyncRequest) -> ErrorCode:
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error := group.check_member(request.member_id, request.group_instance_id):
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _differs(said: str | None, known: str | None) -> bool:
    """A protocol type or name that a member stated, and wrongly (older versions state none)."""
    return said is not None and known is not None and said != known


def _group_from(snapshot: GroupSnapshot) -> ClassicGroup:
    """A group as it is after loading: STABLE with its members and assignments, or EMPTY."""
    group = ClassicGroup(snapshot.group_id)
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
    group.leader = snapshot.leader
    group.state = GroupState.STABLE if snapshot.members else GroupState.EMPTY
    return group

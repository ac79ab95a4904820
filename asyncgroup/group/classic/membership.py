"""Membership by the classic group protocol: join, sync, heartbeats, leave. One object per group object.

If all assignors are cooperative, the member keeps its claims while it joins again (`cooperative_stay`), else a rebalance
ends the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClaimStuck,
    ErrorCode,
    EventLoopBlocked,
    MemberLost,
    Rebalanced,
    SessionEnd,
    TransportError,
)
from asyncgroup.escaping import escaping_logger
from asyncgroup.group.assignors import Assignment, Assignor
from asyncgroup.group.assignors.racks import PartitionRacks, replica_racks
from asyncgroup.group.classic.cooperative_stay import CooperativeStay, WithheldPartitions, check_kept
from asyncgroup.group.classic.group_members import describe_current_assignment
from asyncgroup.group.classic.heartbeats import HEARTBEAT_RESULTS, ClassicHeartbeats
from asyncgroup.group.classic.join_requests import (
    JoinAction,
    JoinProtocols,
    SyncProtocolChanged,
    build_join,
    build_sync,
    decode_assignment,
    decode_members,
    ends_membership,
    has_missed_generation,
    join_action,
    join_reason,
    join_refusal,
    shorten,
)
from asyncgroup.group.classic.parked_requests import ParkedRequests
from asyncgroup.group.health.member_health import MemberHealth, MemberState
from asyncgroup.group.leaving import LeaveResult, build_leave, leave_group, leave_result
from asyncgroup.group.liveness.silence import unless_silent
from asyncgroup.group.membership import RETRY_BACKOFF_SHARE, Assignable, HeartbeatResult, JoinedGroup
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern, check_classic
from asyncgroup.group.topics.topics import count_partitions
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition, by_topic
from asyncgroup.offsets import MemberIdentity
from asyncgroup.wire import messages as m

__all__ = ["JOIN_LANE", "ClassicMembership"]

_log = escaping_logger("asyncgroup.group")

JOIN_LANE: Final = "join"
"""Prefix of the connection purposes for JoinGroup and SyncGroup, whose responses wait for the whole group: `join-1`."""

_LANES = count(1)

SYNC_GRACE: Final = 1.0
"""Seconds for which the response to SyncGroup may come later than that to a heartbeat which says the same."""

REFUSED_SYNC: Final = (HeartbeatResult.LOST, HeartbeatResult.FATAL)
"""Results of heartbeats after which the response to SyncGroup cannot be an assignment any more, or has been sent."""


class ClassicMembership:
    """The identity of a group member, and the requests that change it."""

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        config: ConsumerConfig,
        member_health: MemberHealth,
        *,
        assignors: list[Assignor],
    ) -> None:
        self._member_health = member_health
        self._cluster = cluster
        self._group_id = group_id
        self._config = config
        self._protocols = JoinProtocols(group_id, assignors, config.user_data)
        self.identity = MemberIdentity(group_instance_id=config.group_instance_id)
        self.heartbeats = ClassicHeartbeats(cluster, group_id, config)
        self.withheld = WithheldPartitions(
            group_id, config.rebalance_timeout, config.effective_heartbeat_interval
        )
        # a connection per member: a broker processes the requests of a connection in order and parks JoinGroup until
        # all members have sent theirs, so two members on one connection would wait for each other
        self._lane = f"{JOIN_LANE}-{next(_LANES)}"
        self.lanes = (self._lane,)
        """See `Membership`: for JoinGroup and SyncGroup."""
        self._parked = ParkedRequests(cluster, group_id, config, self._lane)
        self._confirmed_id = ""
        """The member id for which the next refusal counts: it was refused once before, or JoinGroup has just accepted it."""
        self._last_end: SessionEnd | None = None  # cause of the last session's end, until the next join
        self._last_topics: list[str] | None = None  # of the last join
        self._stay: CooperativeStay | None = None  # between two joins, if the protocol is cooperative

    def __repr__(self) -> str:
        member = self.identity.member_id or "no member"
        return f"<ClassicMembership {self._group_id!r}: {member}, generation {self.identity.generation_id}>"

    def forget_member(self) -> None:
        """Make the next join one of a new member."""
        self.identity = MemberIdentity(group_instance_id=self._config.group_instance_id)
        self.heartbeats.handover.snapshot = None

    def is_fatal(self, code: int) -> bool:
        """As for the response to a heartbeat."""
        return HEARTBEAT_RESULTS.get(code) is HeartbeatResult.FATAL

    def after_session(self, cause: SessionEnd | None) -> None:
        """Take note of the cause of a session's end, which becomes the reason of the next join.

        After UNKNOWN_MEMBER_ID the next join is one of a new member; after ILLEGAL_GENERATION it keeps its id, as in
        Java. After a rebalance the group waits for the member, which stays published for a heartbeat thread until it has joined.
        """
        self._last_end = cause
        if not isinstance(cause, Rebalanced):
            self.heartbeats.handover.snapshot = self.heartbeats.handover.report = None
        error = cause.__cause__ if isinstance(cause, MemberLost) else None
        if isinstance(error, ClaimStuck | EventLoopBlocked) and self.identity.group_instance_id is None:
            self.forget_member()  # it has left
        if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget_member()

    async def join(self, topics: Iterable[str] | SubscriptionPattern) -> JoinedGroup:
        """Join and sync until the member has an assignment.

        Attempts are separated by a backoff of at most `rejoin_backoff`; after `rejoin_retry_max` retries the error is
        raised. Errors of a regular rebalance (it restarted, the coordinator is loading) are not counted. Raises
        BrokerError, TransportError, AssignmentError, ConfigError for a pattern that brokers match.
        """
        wanted = check_classic(topics)
        reason = join_reason(self._last_end, self._last_topics, wanted)
        former, joined = self.identity.member_id, await self._join(wanted, reason, None)
        left_because = self.heartbeats.take_report()
        if left_because is not None and self.identity.member_id == former:
            # the event loop was blocked for too long, and others may have its partitions; the leave may arrive later
            await self.leave(str(left_because), None, self.heartbeats.session_timeout)
            joined = await self._join(wanted, reason, None)
        self._last_end = None
        self.heartbeats = ClassicHeartbeats(self._cluster, self._group_id, self._config)
        self.heartbeats.publish(joined.identity)
        return joined

    async def join_again(self, topics: list[str], reason: str, owned: list[TopicPartition]) -> JoinedGroup:
        """Join while these partitions are kept, for as long as any broker responds within the session timeout.

        Raises the error if it is not retriable, or if the member's id or generation is refused.
        """

        def last_response_at() -> float:
            report = (
                self.heartbeats.handover.report
            )  # by the heartbeat thread, while the event loop was blocked
            return max(
                self._cluster.last_response_at, float("-inf") if report is None else report.accepted_at
            )

        join = self._join(topics, reason, owned)
        what = f"join of group {self._group_id!r}"
        return await unless_silent(join, what, self._config.effective_session_timeout, last_response_at)

    def repeat_join(self) -> None:
        """Send a JoinGroup or SyncGroup that waits for its response again, as the response may be lost."""
        self._parked.repeat()

    async def _join(self, topics: list[str], reason: str, owned: list[TopicPartition] | None) -> JoinedGroup:
        try:
            return await self._join_with_retries(topics, reason, owned)
        except BaseException:
            self.heartbeats.handover.snapshot = None
            raise

    async def _join_with_retries(
        self, topics: list[str], reason: str, owned: list[TopicPartition] | None
    ) -> JoinedGroup:
        longest = self._config.rejoin_backoff
        if owned is not None:  # the pauses must not look like silent brokers
            longest = min(longest, RETRY_BACKOFF_SHARE * self._config.effective_session_timeout)
        retry = self._cluster.retry(retries=self._config.rejoin_retry_max, longest=longest)
        former = self.identity.generation_id
        while True:
            is_new = not self.identity.member_id
            try:
                joined = await self._join_and_sync(topics, reason, owned or [], former)
            except (BrokerError, TransportError) as error:
                action = self._handle_error(error)
                if action is JoinAction.FAIL or (owned is not None and ends_membership(error, action)):
                    raise
                # without backoff only for the first id, in case a coordinator demands another one each time
                if action is JoinAction.REJOIN_WITH_GIVEN_ID and is_new and self.identity.member_id:
                    continue
                is_failure = action is not JoinAction.REJOIN or isinstance(error, SyncProtocolChanged)
                self._member_health.report_attempt(error, is_failure=is_failure)
                # a coordinator that fails over takes longer than the retries, and gives no partition away
                if not retry.failed(counted=is_failure and (owned is None or not error.retriable)):
                    raise
                _log.info("group %s: join failed, retrying: %s", self._group_id, error)
                reason = shorten(f"retry after: {error}")
                await retry.wait()
            else:
                self._last_topics, self._confirmed_id = topics, ""
                return joined

    async def stay(self, joined: JoinedGroup, member: Assignable) -> None:
        """Send heartbeats. If a rebalance is reported as such it ends the session, which revokes all claims."""
        if self._protocols.are_cooperative:
            self._stay = CooperativeStay(self, member)
            try:
                await self._stay.run(joined)
            finally:
                self._stay = None
            return

        def end_session(_reason: str) -> bool:
            if member.ended:
                return False
            member.on_heartbeat(HeartbeatResult.REBALANCE, None)
            return True

        # other members may be cooperative, as in a rolling upgrade
        with self.withheld.watched(joined.synced_at, end_session):
            await self.heartbeats.run(joined.identity, member.on_heartbeat, joined.synced_at)

    def rejoin(self, cause: SessionEnd) -> bool:
        """Join again if the protocol is cooperative and the member stays in its group."""
        if self._stay is None:
            return False
        self._stay.rejoin(join_reason(cause, None, []))
        return True

    def _handle_error(self, error: BrokerError | TransportError) -> JoinAction:
        """Update the state after a failed attempt, and return the action."""
        action = join_action(error)
        if isinstance(error, TransportError):
            return action
        if action is JoinAction.REJOIN_AS_NEW_MEMBER and self._may_be_former_coordinator:
            self._confirmed_id = self.identity.member_id
            self._cluster.coordinators.mark_stale(self._group_id)
            return JoinAction.FIND_COORDINATOR
        if action is JoinAction.REJOIN_AS_NEW_MEMBER:
            self.forget_member()
        elif action is JoinAction.FIND_COORDINATOR:
            self._cluster.coordinators.mark_unknown(self._group_id)
        return action

    @property
    def _may_be_former_coordinator(self) -> bool:
        """Whether a member id that was in a generation is refused for the first time.

        The broker may be a former coordinator that was suspended. The current coordinator then still has the member,
        and the rebalance would wait for it if it joined with another id.
        """
        return self.identity.generation_id >= 0 and self._confirmed_id != self.identity.member_id

    async def _join_and_sync(
        self, topics: list[str], reason: str, owned: list[TopicPartition], former: int
    ) -> JoinedGroup:
        # for a heartbeat thread, as no own heartbeats are sent until the response to JoinGroup
        self.heartbeats.publish(self.identity, joins=True)
        self._member_health.transition_to(MemberState.LOOKING_UP_COORDINATOR)
        await self._cluster.coordinators.find(self._group_id)
        self._member_health.transition_to(MemberState.JOINING)
        joined = await self._join_group(topics, reason, owned)
        self.heartbeats.publish(self.identity)
        self._member_health.transition_to(MemberState.SYNCING)
        # the session timeout runs from here on, and the assignment or the SyncGroup may take longer than that
        refused: asyncio.Future[AsyncGroupError] = asyncio.get_running_loop().create_future()
        heartbeats = start_task(
            ClassicHeartbeats(self._cluster, self._group_id, self._config).run(
                self.identity, partial(self._on_heartbeat, refused)
            ),
            name=f"{self._group_id}: heartbeats until the session begins",
        )
        syncing = start_task(self._sync(joined), name=f"{self._group_id}: sync")
        try:
            first: list[asyncio.Future[Any]] = [syncing, refused]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not syncing.done():
                await asyncio.wait([syncing], timeout=SYNC_GRACE)
            if not syncing.done():
                raise refused.result()
            synced = syncing.result()
        finally:
            await cancel_and_wait(syncing, heartbeats)
        if not joined.leader:  # of a consumer group
            check_kept(self._group_id, former, owned, synced, self._cluster.view.topics)
        return synced

    def _on_heartbeat(
        self, refused: asyncio.Future[AsyncGroupError], result: HeartbeatResult, error: AsyncGroupError | None
    ) -> None:
        """Count the error for `health()`. The response to SyncGroup has the same error as a refusal, unless it is lost."""
        if error is None:
            return
        self._member_health.count_error(error)
        if result in REFUSED_SYNC and not refused.done():
            refused.set_result(error)
        elif result is HeartbeatResult.REBALANCE:
            # the response is lost, or the broker says so also while it waits for the leader's plan (before KAFKA-10134)
            self._parked.repeat()

    async def _sync(self, joined: m.JoinGroupResponse) -> JoinedGroup:
        assignments: dict[str, Assignment] = {}
        withheld: frozenset[TopicPartition] = frozenset()
        is_leader = joined.leader == joined.member_id
        partition_counts: Mapping[str, int] = {}
        racks: PartitionRacks | None = None
        protocol = joined.protocol_name or ""
        if is_leader:
            members = decode_members(joined)
            topics = {topic for member in members for topic in member.topics}
            partition_counts = await count_partitions(self._cluster, topics)
            racks = self._replica_racks(partition_counts)
            # a static leader that rejoins keeps the current assignment, but still has to watch its topics (KIP-814)
            if not joined.skip_assignment:
                assignments = self._protocols.assign(protocol, members, partition_counts, racks)
                withheld = self._protocols.withheld(protocol, members, assignments, partition_counts)
        request = build_sync(self._group_id, self.identity, protocol, assignments)
        response = await self._parked.send(request, repeats=True)
        if response.error_code:
            is_changed = response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            refusal = SyncProtocolChanged if is_changed else BrokerError
            raise refusal(response.error_code, f"sync of group {self._group_id!r}")
        synced_at = asyncio.get_running_loop().time()
        assignment = decode_assignment(response.assignment)
        self._protocols.on_assignment(protocol, assignment, joined.generation_id)
        self._cluster.hooks.emit(
            "on_join", self._group_id, self.identity.member_id, joined.generation_id, is_leader
        )
        _log.info(
            "group %s: member %s has joined generation %d",
            self._group_id,
            self.identity.member_id,
            joined.generation_id,
            extra=log_fields("joined", group=self._group_id, generation=joined.generation_id),
        )
        if joined.skip_assignment:
            current = await describe_current_assignment(
                self._cluster, self._group_id, partition_counts, lane=self._lane
            )
            partition_counts = current.partition_counts
            withheld = current.unassigned if self._protocols.assigns_all(protocol) else withheld
        self.withheld.replace(withheld)
        claims = by_topic(assignment.partitions)
        return JoinedGroup(
            self.identity, claims, is_leader, partition_counts, assignment.user_data, synced_at, racks
        )

    async def _join_group(
        self, topics: list[str], reason: str, owned: list[TopicPartition]
    ) -> m.JoinGroupResponse:
        user_data = self._protocols.subscription_user_data(topics)
        request = build_join(self._group_id, self.identity, self._config, user_data, topics, reason, owned)
        response = await self._parked.send(request, repeats=False)
        if response.member_id:
            # also with MEMBER_ID_REQUIRED, which assigns the id to this member
            self.identity = self.identity._replace(member_id=response.member_id)
        if response.error_code:
            raise join_refusal(response.error_code, self._group_id, self._protocols.names)
        former, self.identity = self.identity, self.identity._replace(generation_id=response.generation_id)
        self._confirmed_id = self.identity.member_id
        if owned and response.leader and has_missed_generation(former, response.generation_id):
            detail = f"others may have got its partitions in a generation after {former.generation_id}"
            raise BrokerError(ErrorCode.ILLEGAL_GENERATION, f"join of group {self._group_id!r}", detail)
        return response

    def _replica_racks(self, topics: Iterable[str]) -> PartitionRacks | None:
        """Return the racks of all replicas; None if the group does not balance by rack."""
        return replica_racks(self._cluster.view, topics) if self._config.balance_by_rack else None

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        """Send LeaveGroup for a dynamic member; a static member stays (KIP-345).

        `leaves` overrides that for either kind (KIP-1092): True leaves, False does not. See `leave_group` for retries.
        """
        self.heartbeats.handover.snapshot = None
        identity = self.identity
        should_leave = identity.group_instance_id is None if leaves is None else leaves
        if not identity.member_id or not should_leave:
            return
        self.forget_member()

        async def send(lane: str, seconds: float) -> LeaveResult:
            response = await self._cluster.coordinators.request_versioned(
                self._group_id,
                m.LeaveGroupRequest,
                lambda version: build_leave(self._group_id, identity, reason, version),
                lane=lane,
                timeout=seconds,
            )
            return leave_result(response)

        await leave_group(
            self._cluster,
            self._group_id,
            send,
            timeout=timeout,
            attempt_timeout=self.heartbeats.timeout,
        )

"""Membership by the classic protocol: join, sync, leave. One object lives as long as its group object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple, TypeVar

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.coordinators import CoordinatorMoved
from asyncgroup.cluster.lanes import CONTROL
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    MemberLost,
    RequestTimedOut,
    SessionEnd,
    TransportError,
)
from asyncgroup.group.assignors import Assignment, Assignor, MemberSubscription
from asyncgroup.group.heartbeats import HeartbeatResult, Heartbeats
from asyncgroup.group.join_protocols import JoinProtocols
from asyncgroup.group.join_requests import (
    JOIN_ACTIONS,
    JOIN_GRACE,
    JoinAction,
    build_join,
    build_sync,
    decode_assignment,
    decode_members,
)
from asyncgroup.group.member_health import MemberHealth, MemberState, ProblemSource
from asyncgroup.group.reasons import join_reason, shorten
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import by_topic
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message, Request

__all__ = ["JOIN_LANE", "ClassicMembership", "JoinResult"]

_log = logging.getLogger("asyncgroup.group")

JOIN_LANE: Final = "join"
"""The lane of JoinGroup and SyncGroup, which a coordinator parks until the whole group is there."""

LEAVE_RETRY_BACKOFF_MAX: Final = 1.0
"""Seconds between two tries to leave, at most."""

_LANES = count(1)

R = TypeVar("R", bound=Message)


class JoinResult(NamedTuple):
    """The outcome of a join: who we are, what we got, and, for the leader, the counts that the plan was made for."""

    identity: MemberIdentity
    assignment: dict[str, list[int]]
    is_leader: bool
    partition_counts: Mapping[str, int]
    user_data: bytes | None = None
    synced_at: float | None = None
    """Loop time of the SyncGroup's answer, which all members get at one moment."""


class ClassicMembership:
    """A member of a group: its id and generation, and the requests that change them."""

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        config: ConsumerConfig,
        assignors: list[Assignor],
        member_health: MemberHealth | None = None,
    ) -> None:
        self._member_health = member_health or MemberHealth()
        self._cluster, self._group_id, self._config = cluster, group_id, config
        self._protocols = JoinProtocols(group_id, assignors, config.user_data)
        self.identity = MemberIdentity(group_instance_id=config.group_instance_id)
        # two members of a group that share a Cluster would wait for each other: one's JoinGroup is parked until the
        # other's has come, and the broker serves a connection's requests one after another
        self._lane = f"{JOIN_LANE}-{next(_LANES)}"
        self._confirmed_id = ""
        """The member id whose refusal counts: it was refused before, or its JoinGroup was just accepted."""
        self._last_end: SessionEnd | None = None
        self._last_topics: list[str] | None = None

    def __repr__(self) -> str:
        member = self.identity.member_id or "no member"
        return f"<ClassicMembership {self._group_id!r}: {member}, generation {self.identity.generation_id}>"

    @property
    def lane(self) -> str:
        """The lane of this member's JoinGroup and SyncGroup."""
        return self._lane

    def forget_member(self) -> None:
        """Join as a new member next time."""
        self.identity = MemberIdentity(group_instance_id=self._config.group_instance_id)

    def after_session(self, cause: SessionEnd | None) -> None:
        """A session has ended, which the next join gives as its reason.

        If it was lost, an unknown member needs a new id; an old generation keeps its id, as in Java.
        """
        self._last_end = cause
        error = cause.__cause__ if isinstance(cause, MemberLost) else None
        if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.forget_member()

    async def join(self, topics: Iterable[str]) -> JoinResult:
        """Join and sync until an assignment is there.

        Tries are paused with backoff, for at most `rejoin_backoff`; the failure after `rejoin_retry_max` further tries
        is raised. What a waiting member sees in the ordinary course (a rebalance that starts anew, a coordinator that
        loads) doesn't count. Raises BrokerError, TransportError, AssignmentError.
        """
        backoff = self._cluster.backoff()
        wanted = sorted(topics)
        reason = join_reason(self._last_end, self._last_topics, wanted)
        failures = 0
        while True:
            is_new = not self.identity.member_id
            try:
                joined = await self._join_and_sync(wanted, reason)
            except (BrokerError, TransportError) as error:
                action = self._handle_error(error)
                if action is JoinAction.FAIL:
                    raise
                # only the first id is taken at once: a coordinator that always wants another is not run over
                if action is JoinAction.REJOIN_WITH_GIVEN_ID and is_new and self.identity.member_id:
                    continue
                failures += action is not JoinAction.REJOIN
                self._member_health.count_error(error)
                if action is not JoinAction.REJOIN:
                    self._member_health.report(ProblemSource.JOIN, error)
                if failures > self._config.rejoin_retry_max:
                    raise
                _log.info("group %s: join failed, trying again: %s", self._group_id, error)
                reason = shorten(f"trying again after: {error}")
                await asyncio.sleep(min(backoff.next(), self._config.rejoin_backoff))
            else:
                self._last_end, self._last_topics, self._confirmed_id = None, wanted, ""
                return joined

    def _handle_error(self, error: BrokerError | TransportError) -> JoinAction:
        """Take the consequences of a failed try that are a matter of state; returns what else is to be done."""
        if isinstance(error, CoordinatorMoved):
            return JoinAction.REJOIN
        if isinstance(error, TransportError):
            return JoinAction.FIND_COORDINATOR
        action = JOIN_ACTIONS.get(error.code, JoinAction.REJOIN if error.retriable else JoinAction.FAIL)
        if action is JoinAction.REJOIN_AS_NEW_MEMBER and self._may_be_former_coordinator:
            self._confirmed_id = self.identity.member_id
            self._cluster.coordinators.doubt(self._group_id)
            return JoinAction.FIND_COORDINATOR
        if action is JoinAction.REJOIN_AS_NEW_MEMBER:
            self.forget_member()
        elif action is JoinAction.FIND_COORDINATOR:
            self._cluster.coordinators.forget(self._group_id)
        return action

    @property
    def _may_be_former_coordinator(self) -> bool:
        """Whether a member id that was in a generation is refused for the first time.

        The refusing broker may be a former coordinator that was stopped. The coordinator still has the member then, and
        would wait for it if it joined under another id.
        """
        return self.identity.generation_id >= 0 and self._confirmed_id != self.identity.member_id

    async def _join_and_sync(self, topics: list[str], reason: str) -> JoinResult:
        self._member_health.transition_to(MemberState.LOOKING_UP_COORDINATOR)
        await self._cluster.coordinators.find(self._group_id)
        self._member_health.transition_to(MemberState.JOINING)
        joined = await self._join_group(topics, reason)
        self._member_health.transition_to(MemberState.SYNCING)
        # from here on the coordinator counts the session's time, and a plan or its handing out may take longer
        heartbeats = asyncio.create_task(
            Heartbeats(self._cluster, self._group_id, self._config).run(self.identity, self._on_heartbeat),
            name=f"{self._group_id}: heartbeats until the session begins",
        )
        try:
            return await self._sync(joined)
        finally:
            await cancel_and_wait(heartbeats)

    def _on_heartbeat(self, _result: HeartbeatResult, error: AsyncGroupError | None) -> None:
        """The SyncGroup is told the same; this is for `health()` only."""
        if error is not None:
            self._member_health.count_error(error)

    async def _sync(self, joined: m.JoinGroupResponse) -> JoinResult:
        plan: dict[str, Assignment] = {}
        is_leader = joined.leader == joined.member_id
        partition_counts: Mapping[str, int] = {}
        protocol = joined.protocol_name or ""
        if is_leader:
            members = decode_members(joined)
            partition_counts = await self._count_partitions(members)
            # a static leader that came back finds its old plan in force; it watches over it all the same (KIP-814)
            if not joined.skip_assignment:
                plan = self._protocols.assign(protocol, members, partition_counts)
        request = build_sync(self._group_id, self.identity, protocol, plan)
        response = await self._request_parked(request)
        if response.error_code:
            raise BrokerError(response.error_code, f"sync of group {self._group_id!r}")
        synced_at = asyncio.get_running_loop().time()
        assignment = decode_assignment(response.assignment)
        self._protocols.on_assignment(protocol, assignment, joined.generation_id)
        self._cluster.hooks.emit(
            "on_join", self._group_id, self.identity.member_id, joined.generation_id, is_leader
        )
        if joined.skip_assignment:
            partition_counts = await self._counts_of_current_assignment(partition_counts)
        claims = by_topic(assignment.partitions)
        return JoinResult(self.identity, claims, is_leader, partition_counts, assignment.user_data, synced_at)

    async def _join_group(self, topics: list[str], reason: str) -> m.JoinGroupResponse:
        user_data = self._protocols.subscription_user_data(topics)
        request = build_join(self._group_id, self.identity, self._config, user_data, topics, reason)
        response = await self._request_parked(request)
        if response.member_id:
            # also with MEMBER_ID_REQUIRED: the id is ours from now on
            self.identity = self.identity._replace(member_id=response.member_id)
        if response.error_code:
            raise BrokerError(response.error_code, f"join of group {self._group_id!r}")
        self.identity = self.identity._replace(generation_id=response.generation_id)
        self._confirmed_id = self.identity.member_id
        return response

    async def _request_parked(self, request: Request[R]) -> R:
        """A request that the coordinator parks until the whole group is there.

        If nobody waits for it any more its connection is closed: the next request would be served after it.
        """
        timeout = self._config.rebalance_timeout + JOIN_GRACE
        try:
            return await self._cluster.coordinators.request(
                self._group_id, request, lane=self._lane, timeout=timeout
            )
        except asyncio.CancelledError:
            self._cluster.close_lane(self._lane)
            raise

    async def _count_partitions(self, members: Iterable[MemberSubscription]) -> dict[str, int]:
        """How many partitions all the members' topics have, looked up afresh; 0 for one that does not exist (yet).

        A second look decides about those that seem to have none: a broker that has just restarted may not know every
        topic yet, and everybody's partitions would be revoked.
        """
        topics = sorted({topic for member in members for topic in member.topics})
        self._cluster.track(topics)
        try:
            await self._cluster.refresh()
            partition_counts = self._cluster.view.counts(topics)
            if any(not partition_counts.get(topic) for topic in topics):
                await asyncio.sleep(self._cluster.backoff().next())
                await self._cluster.refresh()
                again = self._cluster.view.counts(topics)
                partition_counts = {
                    topic: partition_counts.get(topic) or again.get(topic, 0) for topic in topics
                }
        finally:
            self._cluster.untrack(topics)
        return dict.fromkeys(topics, 0) | partition_counts

    async def _counts_of_current_assignment(self, partition_counts: Mapping[str, int]) -> Mapping[str, int]:
        """How many partitions of these topics the plan in force gives out, as DescribeGroups tells.

        A static leader that came back did not make that plan. Partitions that were added while it was away belong to
        nobody, and nobody but the leader watches; Java's compares with the counts of its return, and overlooks them.
        `partition_counts`, those of now, are the answer where none is to be had.
        """
        request = m.DescribeGroupsRequest(groups=[self._group_id])
        try:
            response = await self._cluster.coordinators.request(self._group_id, request, lane=self._lane)
            (group,) = response.groups
            if group.error_code or not group.members:
                return partition_counts
            plans = [decode_assignment(member.member_assignment) for member in group.members]
        except (AsyncGroupError, ValueError) as error:
            _log.debug("group %s: the plan in force is not known: %s", self._group_id, error)
            return partition_counts
        found = {tp for plan in plans for tp in plan.partitions}
        return {
            topic: max((tp.partition + 1 for tp in found if tp.topic == topic), default=0)
            for topic in partition_counts
        }

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        """Tell the coordinator that the member is gone; a static member stays, as its place is kept (KIP-345).

        `leaves` decides otherwise, for both kinds of members (KIP-1092): True leaves, False says nothing. Errors that
        pass are retried with backoff for `timeout` seconds, and logged at the end: the session timeout does the same
        later.
        """
        identity = self.identity
        should_leave = identity.group_instance_id is None if leaves is None else leaves
        if not identity.member_id or not should_leave:
            return
        self.forget_member()
        time, backoff = asyncio.get_running_loop().time, self._cluster.backoff()
        deadline = time() + timeout
        last: AsyncGroupError | None = None
        while (error := await self._try_to_leave(identity, reason, deadline)) is not None:
            pause = min(backoff.next(), LEAVE_RETRY_BACKOFF_MAX)
            if not error.retriable or time() + pause >= deadline:
                # that the last try had too little time says less than what became of the one before
                text = last if isinstance(error, RequestTimedOut) and last is not None else error
                _log.warning(
                    "group %s: could not leave, the session timeout will do it: %s", self._group_id, text
                )
                return
            last = error
            _log.info("group %s: could not leave, trying again: %s", self._group_id, error)
            await asyncio.sleep(pause)

    async def _try_to_leave(
        self, identity: MemberIdentity, reason: str, deadline: float
    ) -> AsyncGroupError | None:
        """One try; returns why it failed.

        Nobody else asks the coordinator any more, so a try finds out by itself that it is not answered, as a heartbeat.
        """
        left = deadline - asyncio.get_running_loop().time()
        limit = min(left, max(self._config.heartbeat_interval, self._config.session_timeout / 3))
        try:
            async with asyncio.timeout(limit):
                code = await self._leave(identity, reason, limit)
        except TimeoutError:
            self._cluster.coordinators.forget(self._group_id)
            return RequestTimedOut(
                f"no answer to the LeaveGroup of group {self._group_id!r} within {limit:.3g} s"
            )
        except AsyncGroupError as error:
            return error
        if JOIN_ACTIONS.get(code) is JoinAction.FIND_COORDINATOR:
            self._cluster.coordinators.forget(self._group_id)
        return None if code in _LEFT_CODES else BrokerError(code, f"leaving group {self._group_id!r}")

    async def _leave(self, identity: MemberIdentity, reason: str, timeout: float) -> int:
        """One LeaveGroup; the error code of the request or of the member.

        A commit that its broker doesn't answer would hold it up: it goes past it then.
        """
        node_id = await self._cluster.coordinators.find(self._group_id)
        is_busy = self._cluster.in_flight(node_id, GROUP_LANE) > 0
        response = await self._cluster.coordinators.request_built(
            self._group_id,
            m.LeaveGroupRequest,
            lambda version: _leave_request(self._group_id, identity, reason, version),
            lane=CONTROL if is_busy else GROUP_LANE,
            timeout=timeout,
        )
        codes = [response.error_code, *(member.error_code for member in response.members)]
        return max(codes, key=bool)


_LEFT_CODES: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)
_BATCH_LEAVE_VERSION: Final = 3
"""The LeaveGroup version from which several members can leave at once."""


def _leave_request(group_id: str, identity: MemberIdentity, reason: str, version: int) -> m.LeaveGroupRequest:
    if version < _BATCH_LEAVE_VERSION:
        return m.LeaveGroupRequest(group_id=group_id, member_id=identity.member_id)
    member = m.LeaveGroupRequest.MemberIdentity(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, reason=reason
    )
    return m.LeaveGroupRequest(group_id=group_id, members=[member])

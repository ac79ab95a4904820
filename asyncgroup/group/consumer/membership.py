"""Membership by KIP-848: the coordinator assigns, and the member reconciles while its session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID, uuid4

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.configs import GROUP, ConfigResource, describe_configs
from asyncgroup.cluster.requests.repeat import retry_errors
from asyncgroup.cluster.requests.results import IncompleteResponse
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ErrorCode,
    SessionEnd,
    TransportError,
)
from asyncgroup.escaping import escaping_logger
from asyncgroup.group.consumer.heartbeat_errors import CONSUMER_HEARTBEAT_ACTIONS, HeartbeatAction
from asyncgroup.group.consumer.heartbeats import EARLY_INTERVAL, ConsumerHeartbeats
from asyncgroup.group.consumer.member_state import JOIN_EPOCH, ConsumerMemberState, Reconciliation
from asyncgroup.group.health.member_health import MemberHealth, MemberState
from asyncgroup.group.health.problems import ProblemKind
from asyncgroup.group.leaving import LeaveResult, leave_group
from asyncgroup.group.membership import Assignable, JoinedGroup
from asyncgroup.group.topics.names import TopicNames
from asyncgroup.group.topics.subscription_pattern import SubscriptionPattern
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.log_events import log_fields
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.offsets import GROUP_LANE, MemberIdentity
from asyncgroup.wire import messages as m

__all__ = ["ConsumerMembership"]

_log = escaping_logger("asyncgroup.group")

NAMELESS_LOOKUPS: Final = 5
"""After this many metadata refreshes that lack the ids of assigned topics a warning is logged."""

FIRST_GENERATION_PAUSES: Final = (4.0, 30.0)
"""Seconds of the first pause and of the longest one while a classic group is in its first rebalance.

Each attempt makes Kafka answer the JoinGroup requests that wait there, so that its members join again; static ones that have
not done so when the rebalance would end delay it by a rebalance timeout. With pauses that are longer than the brokers'
`group.initial.rebalance.delay.ms`, by default 3 s, the members are there."""

FIRST_GENERATION_TIMEOUT: Final = 300.0
"""Seconds that the first rebalance of a classic group may take: Java's default rebalance timeout (`max.poll.interval.ms`)."""

SESSION_TIMEOUT_KEY: Final = "consumer.session.timeout.ms"


class ConsumerMembership:
    """One member of a group, from its first join until it leaves. Its id is kept for the life of the object.

    A session that ends while the member is in the group does not leave it: the next one reports that it owns nothing, and
    gets the assignment again.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        config: ConsumerConfig,
        member_health: MemberHealth,
        make_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._config = config
        self._member_health = member_health
        self._state = ConsumerMemberState(
            group_id,
            rebalance_timeout=config.rebalance_timeout,
            group_instance_id=config.group_instance_id,
            rack_id=config.rack_id,
            assignor=config.remote_assignor,
            make_id=make_id,
        )
        self.heartbeats = ConsumerHeartbeats(cluster, group_id, config, self._state)
        self.lanes = ()  # no request of this protocol waits at the coordinator: joins share the group's connection
        self._news = asyncio.Event()
        self._is_staying = False
        self._topics_changed = False  # until the heartbeats have the new topics
        self._looked_for: frozenset[UUID] = frozenset()  # topics whose names were looked up last
        self._session_timeout_found = False
        self._first: Reconciliation | None = None
        self._topic_names = TopicNames(cluster)

    def __repr__(self) -> str:
        return f"<ConsumerMembership {self._state!r}>"

    @property
    def identity(self) -> MemberIdentity:
        """The member with its epoch; without a member id while it is not in the group."""
        return self._state.identity

    def is_fatal(self, code: int) -> bool:
        """Return whether a code is fatal in the response to a heartbeat, except for a group that was removed with its members."""
        is_fatal = CONSUMER_HEARTBEAT_ACTIONS.get(code) is HeartbeatAction.FAIL
        return is_fatal and code != ErrorCode.GROUP_ID_NOT_FOUND

    def rejoin(self, cause: SessionEnd) -> bool:  # noqa: ARG002  heartbeats have no reason
        """Send the present topics with the next heartbeat; False while the member is not in its group."""
        self._topics_changed = self._is_staying
        self._news.set()
        return self._is_staying

    def after_session(self, cause: SessionEnd | None) -> None:
        """Do nothing: the heartbeat that found the loss has decided how the member joins again."""

    # --- join -----------------------------------------------------------------------------------------------------

    async def join(self, topics: Iterable[str] | SubscriptionPattern) -> JoinedGroup:
        """Send heartbeats with all fields until one is answered with an assignment, which may be empty.

        Attempts are separated by a backoff of at most `rejoin_backoff`; after `rejoin_retry_max` retries the error is
        raised; a coordinator that is loading is not counted. The first rebalance of a classic group is waited for during
        FIRST_GENERATION_TIMEOUT. Raises BrokerError, TransportError, ProtocolError.
        """
        self._state.begin(topics)
        retry = self._cluster.retry(
            retries=self._config.rejoin_retry_max, longest=self._config.rejoin_backoff
        )
        first_generation = RetryLoop(
            RetryBackoff(*FIRST_GENERATION_PAUSES, self._cluster.random), timeout=FIRST_GENERATION_TIMEOUT
        )
        while True:
            failed = await self._attempt(retry, first_generation)
            if failed is not None:
                await failed.wait()
                continue
            if self._state.has_assignment:
                break
            self._state.on_lost_response()
            await asyncio.sleep(EARLY_INTERVAL)
        if self._state.regex and self._state.topic_ids - self._names().keys():
            await self._refresh(self._state.topic_ids)
        first = self._first = self._state.begin_reconciliation(self._names())
        assert first is not None
        self._cluster.hooks.emit("on_join", self._group_id, self._state.member_id, self._state.epoch, False)
        _log.info(
            "group %s: member %s has joined at epoch %d",
            self._group_id,
            self._state.member_id,
            self._state.epoch,
            extra=log_fields("joined", group=self._group_id, generation=self._state.epoch),
        )
        return _joined(first)

    async def _attempt(self, retry: RetryLoop, first_generation: RetryLoop) -> RetryLoop | None:
        """Send one heartbeat; return None if it was accepted, else the loop whose pause is next.

        `first_generation` waits for that of a classic group. Raises the error if it is fatal, or the attempt the last.
        """
        self._member_health.transition_to(MemberState.LOOKING_UP_COORDINATOR)
        failure: AsyncGroupError | None
        try:
            await self._cluster.coordinators.find(self._group_id)
        except (BrokerError, TransportError) as error:
            if not error.retriable:
                raise
            action, failure = HeartbeatAction.FIND_COORDINATOR, error
        else:
            self._member_health.transition_to(MemberState.JOINING)
            former = self._state.member_id
            outcome = await self.heartbeats.send()
            action, failure = outcome.action, outcome.error
            if failure is None:
                return None
            if action is HeartbeatAction.REJOIN_WITH_NEW_ID and _is_fenced(failure):
                await self._drop(former)
        self._member_health.count_error(failure)
        self._member_health.report(ProblemKind.JOIN, failure)
        loop = first_generation if action is HeartbeatAction.WAIT_FOR_GENERATION else retry
        if action is HeartbeatAction.FAIL or not loop.failed(counted=action is not HeartbeatAction.RETRY):
            raise failure
        _log.info("group %s: join failed, retrying: %s", self._group_id, failure)
        return loop

    async def _drop(self, member_id: str) -> None:
        """Remove the member of a former id, whose epoch was refused: else its partitions wait for its session timeout."""
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=self._group_id, member_id=member_id, member_epoch=-1
        )
        try:
            async with asyncio.timeout(self.heartbeats.timeout):
                await self._cluster.coordinators.request(self._group_id, request, lane=GROUP_LANE)
        except (AsyncGroupError, TimeoutError) as error:
            _log.info("group %s: could not remove the former member: %s", self._group_id, error)

    def _names(self) -> Mapping[UUID, str]:
        return self._topic_names.of(self._state.topic_ids)

    # --- stay -----------------------------------------------------------------------------------------------------

    async def stay(self, joined: JoinedGroup, member: Assignable) -> None:
        """Send heartbeats, and apply each assignment that they bring, one after the other; return when lost."""
        self._news.clear()
        self._is_staying, self._topics_changed = True, False
        self._topic_names.release()
        # the session applies it before the response to the first heartbeat
        if self._first is not None and self._first.identity == joined.identity:
            self._state.reconciled(self._first)

        def on_news() -> None:
            member.on_epoch(self._state.identity)
            self._news.set()

        heartbeats = start_task(self.heartbeats.run(member.on_heartbeat, on_news))
        heartbeats.add_done_callback(lambda _: self._news.set())
        session_timeout = start_task(self._find_session_timeout())
        self.heartbeats.send_now()
        try:
            await self._reconcile(member, heartbeats)
        finally:
            self._is_staying = False
            self._topic_names.release()
            await cancel_and_wait(session_timeout)
            await cancel_and_wait(heartbeats)

    async def _reconcile(self, member: Assignable, heartbeats: asyncio.Future[None]) -> None:
        retry = self._cluster.retry()
        while not heartbeats.done():
            self._news.clear()
            if self._topics_changed and not member.ended:
                await self._subscribe(member)
            step = None if member.ended else self._state.begin_reconciliation(self._names())
            if step is not None:
                await self._apply(step, member)
                self._topic_names.release()
                retry.reset()
            elif member.ended or not (unresolved := self._state.unresolved):
                await self._news.wait()
            else:
                await self._look_for(unresolved, retry)
        heartbeats.result()

    async def _look_for(self, unresolved: frozenset[UUID], retry: RetryLoop) -> None:
        """Refresh the metadata, again after a pause, unless news comes before; warn once of topics that it goes on to lack."""
        by_names = self._topic_names.were_looked_up(unresolved) if self._state.regex else True
        is_new = not (by_names and self._looked_for.issuperset(unresolved))
        self._looked_for = unresolved
        if not is_new and await retry.wait(self._news):
            return
        await self._refresh(unresolved)
        if retry.failures == NAMELESS_LOOKUPS and not is_new:
            text = "group %s: assigned topics are not consumed, as the metadata lacks their ids: %s"
            _log.warning(text, self._group_id, ", ".join(map(str, sorted(unresolved))))

    async def _subscribe(self, member: Assignable) -> None:
        self._topics_changed = False
        topics = await member.prepare_join()
        if topics is not None:
            self._state.subscribe(topics)
            self.heartbeats.send_now()

    async def _apply(self, step: Reconciliation, member: Assignable) -> None:
        """Apply an assignment, then report what is owned: only now may the coordinator give away what was revoked."""
        self.heartbeats.is_reconciling = True
        try:
            await member.assign(_joined(step))
        finally:
            self.heartbeats.is_reconciling = False
        # a session that ends has not applied it, and still owns what it had
        if not member.ended and step.identity.member_id == self._state.identity.member_id:
            self._state.reconciled(step)
            if self._state.has_news:
                self.heartbeats.send_now()

    async def _refresh(self, topic_ids: frozenset[UUID]) -> None:
        """Refresh the metadata, which does not know these ids of assigned topics yet."""
        try:
            async with asyncio.timeout(self.heartbeats.timeout):
                if self._state.regex:
                    await self._topic_names.look_up(topic_ids)
                else:
                    await self._cluster.refresh()
        except (AsyncGroupError, TimeoutError) as error:
            _log.debug("group %s: metadata refresh failed: %r", self._group_id, error)

    async def _find_session_timeout(self) -> None:
        """Ask for the group's session timeout until a broker answers; until then, and without a value, the default counts."""
        if self._session_timeout_found:
            return
        try:
            found = await retry_errors(
                lambda: find_session_timeout(self._cluster, self._group_id),
                self._cluster.retry(),
                on_error=self._report_unknown_timeout,
            )
        except AsyncGroupError as error:
            self._report_unknown_timeout(error)
            return
        self._session_timeout_found = True
        if found is not None:
            self.heartbeats.set_session_timeout(found)

    def _report_unknown_timeout(self, error: AsyncGroupError) -> None:
        _log.debug("group %s: its session timeout is unknown: %s", self._group_id, error)

    # --- leave ----------------------------------------------------------------------------------------------------

    async def leave(self, reason: str, leaves: bool | None, timeout: float) -> None:
        """Leave: a dynamic member for good, a static one so that its partitions wait for it.

        `leaves` overrides that (KIP-1092): with True a static member leaves for good, with False a dynamic one sends
        nothing. See `leave_group` for retries.
        """
        self._topic_names.release()
        is_static = self._state.group_instance_id is not None
        if not self._state.may_be_known or (leaves is False and not is_static):
            return
        _log.debug("group %s: leaving: %s", self._group_id, reason)
        request = self._state.leave_request(is_static_leave=is_static and leaves is not True)
        # A join that arrives after the leave would make the member join nevertheless; other heartbeats are refused then.
        # A classic group refuses a JoinGroup with a member id that it does not know, so LeaveGroup need not wait for it.
        follows = m.ConsumerGroupHeartbeatRequest if self._state.epoch == JOIN_EPOCH else None
        self._state.rejoin()
        self._state.may_be_known = False

        async def send(lane: str, seconds: float) -> LeaveResult:
            response = await self._cluster.coordinators.request(
                self._group_id, request, lane=lane, timeout=seconds
            )
            return response.error_code, response.error_message

        await leave_group(
            self._cluster,
            self._group_id,
            send,
            timeout=timeout,
            attempt_timeout=self.heartbeats.timeout,
            follows=follows,
        )


def _joined(step: Reconciliation) -> JoinedGroup:
    return JoinedGroup(step.identity, step.assignment, is_leader=False, partition_counts={})


def _is_fenced(error: AsyncGroupError | None) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.FENCED_MEMBER_EPOCH


async def find_session_timeout(cluster: ClusterClient, group_id: str) -> float | None:
    """Return the group's session timeout in seconds; None if the broker does not describe it.

    Makes no retries. Raises BrokerError, for example without authorization, TransportError, ProtocolError.
    """
    group = ConfigResource(GROUP, group_id)
    try:
        configs = (await describe_configs(cluster, [group], [SESSION_TIMEOUT_KEY])).require()[group]
        milliseconds = int(configs.get(SESSION_TIMEOUT_KEY) or 0)
    except (IncompleteResponse, ValueError):
        return None
    return milliseconds / 1000 if milliseconds > 0 else None

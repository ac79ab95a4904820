"""The engine of a ConsumerGroup, which `consumer_group.py` wraps in the public object."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from asyncgroup.checks import check_partitions
from asyncgroup.cluster import Cluster, as_cluster
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.cluster.requests.list_offsets import is_retriable_error
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.error_stream import ErrorReader, ErrorStream
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.errors import ClosedError, TopicsChanged, UsageError
from asyncgroup.group.assignors import Assignor
from asyncgroup.group.group_protocol import (
    MembershipFactory,
    current_protocol,
    epoch_identity,
    membership_factory,
)
from asyncgroup.group.health.health import Health
from asyncgroup.group.health.member_health import Liveness, MemberHealth, MemberState
from asyncgroup.group.member import Member
from asyncgroup.group.membership import CLOSED, HEARTBEAT_LANE, RETRY_BACKOFF_SHARE
from asyncgroup.group.records import GroupMarks, Records
from asyncgroup.group.sessions.claim_source import ClaimSource
from asyncgroup.group.sessions.handler import Handler, HandlerLike, as_handler
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.topics.topics import Subscription, Topics, check_topics
from asyncgroup.interceptor import ConsumeInterceptor
from asyncgroup.lifecycle import start_task, wait_shielded
from asyncgroup.model import Batch, Record
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.topic_partition import Partitions

__all__ = ["GroupEngine", "MembershipFactory"]

LANES: Final = (GROUP_LANE, HEARTBEAT_LANE)
"""The purposes of the connections that the groups of a cluster share."""


class GroupEngine:
    """One member of a group: its life, its subscription, and access to its session; see `ConsumerGroup`.

    `make_membership` is the group protocol, by default that of the configuration.
    """

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        group_id: str,
        config: ConsumerConfig,
        hooks: Iterable[object],
        interceptors: Iterable[ConsumeInterceptor],
        assignors: list[Assignor],
        make_membership: MembershipFactory | None = None,
    ) -> None:
        self.group_id = group_id
        self.config = config
        self.cluster, self._owns_cluster = as_cluster(bootstrap_servers, self.config, hooks)
        self._client = self.cluster._inner
        # a long reconnect backoff could outlast the session while the coordinator is back already
        self._client.pool.limit_reconnect_backoff(RETRY_BACKOFF_SHARE * self.config.effective_session_timeout)
        self._errors = ErrorStream(self.config.error_buffer)
        self._member_health = MemberHealth(self._errors.put)
        make_membership = make_membership or membership_factory(self.config, assignors)
        membership = make_membership(self._client, self.group_id, self.config, self._member_health)
        self._membership = membership
        self._source = ClaimSource(
            self.cluster,
            self.group_id,
            self.config,
            Interceptors(interceptors),
            lambda: epoch_identity(membership),
        )
        self._member = Member(self._source, self._membership, self._member_health)
        self._marks = GroupMarks(self.group_id, self._member_health)
        self._records: Records | None = None
        self._subscriptions: list[Subscription] = []
        self._close_requested = False
        self._holds_lane = False
        self._leaves: bool | None = None  # the `leave` of the first aclose()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call

    def __repr__(self) -> str:
        state = "closed" if self._member.closing.is_set() else "open" if self.cluster.is_open else "not open"
        return f"<ConsumerGroup {self.group_id!r}: {state}, {self.session or 'no session'}>"

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the cluster if it is the group's own."""
        self._check_loop()
        if self._owns_cluster:
            self._client.network.check_not_started(f"group {self.group_id!r}")
            await self.cluster.__aenter__()
        for lane in LANES:
            self._client.pool.acquire_lane(lane)
        self._holds_lane = True

    async def aclose(self, *, leave: bool | None = None, at_heartbeat: bool = False) -> None:
        """See `ConsumerGroup.aclose`."""
        self._check_loop()
        if not self._close_requested:
            self._close_requested, self._leaves = True, leave
        life = self._member.life
        # a handler that closes its group would wait for its own end: the session's end does the rest
        if life is not None and life.is_caller:
            self._member.close()
            return
        try:
            if at_heartbeat:
                await self._member.wait_for_heartbeat()
        finally:
            if self._records is not None:
                self._records._inner.clear_held()
            self._member.close()
            await wait_shielded(start_task(self._close()))

    async def _close(self) -> None:
        await self._member.leave(CLOSED, self._leaves)
        await self._member.stop_watching_loop()
        if self._records is not None:
            await self._records._inner.wait_closed()
        self._errors.close()
        self._client.pool.retire_lanes({*self._source.lanes, *self._membership.lanes})
        if self._holds_lane:
            self._holds_lane = False
            for lane in LANES:
                self._client.pool.release_lane(lane)
        if self._owns_cluster:
            await self.cluster.aclose()
        self._member_health.transition_to(MemberState.CLOSED)

    def _check_loop(self) -> None:
        """Bind to the event loop of the first call: locks and futures cannot be shared with another loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._member_health.state_since = loop.time()
        if self._loop is not loop:
            raise UsageError(
                f"group {self.group_id!r} belongs to another event loop, perhaps of another thread"
            )

    def _check_open(self) -> None:
        self._check_loop()
        if self._member.closing.is_set():
            raise ClosedError(f"group {self.group_id!r} was closed; create a new ConsumerGroup")
        if not self.cluster.is_open:
            # a shared Cluster may be closed while the group is open
            needed = "ConsumerGroup" if self._owns_cluster else "Cluster"
            raise ClosedError(f"group {self.group_id!r} is not open: use `async with {needed}(…)`")

    def _check_caller(self) -> None:
        life = self._member.life
        if life is not None and life.is_caller:
            raise UsageError(
                f"group {self.group_id!r}: called by a handler, it would wait for its own end; use set_topics()"
            )

    # --- consuming ----------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """See `ConsumerGroup.session`."""
        life = self._member.life
        return life.session if life is not None else None

    async def consume(self, topics: Topics, handler: HandlerLike) -> None:
        """See `ConsumerGroup.consume`."""
        subscription, handling = self._subscribe(topics), as_handler(handler)
        self._check_caller()
        self._check_no_records()
        with self._running(subscription, retries=True):
            self._check_open()
            life = await self._member.run_session(subscription, handling)
            if life is not None and life.state.failure is not None:
                if life.state.failed_by_handler:
                    self._member_health.liveness.note_failure(life.state.failure)
                raise life.state.failure

    async def run(self, topics: Topics, handler: HandlerLike) -> None:
        """See `ConsumerGroup.run`."""
        subscription, handling = self._subscribe(topics), as_handler(handler)
        self._check_caller()
        self._check_no_records()
        await self._run(subscription, handling)

    async def _run(self, subscription: Subscription, handler: Handler) -> None:
        with self._running(subscription):
            await self._member.run_sessions(subscription, handler, self._check_open)

    def _running(self, subscription: Subscription, *, retries: bool = False) -> _Call:
        """See `_Call`; `retries`: the caller retries after errors of brokers that are retriable, as around `consume()`."""
        return _Call(self._member_health.liveness, self._subscriptions, subscription, retries=retries)

    def _subscribe(self, topics: Topics) -> Subscription:
        return Subscription(topics, self.config.group_protocol)

    def _check_no_records(self) -> None:
        if self._records is not None and not self._records.closed:
            raise UsageError(
                f"group {self.group_id!r} is already consumed by records(): aclose() its iterator first"
            )

    def records(self, topics: Topics) -> Records:
        """See `ConsumerGroup.records`."""
        subscription = self._subscribe(topics)
        self._check_caller()
        self._check_open()
        if self._records is None or self._records.closed:
            self._records = Records(self.group_id, subscription, self._run)
        elif self._records._inner.subscription.wanted != subscription.wanted:
            self._check_no_records()
        return self._records

    # --- marks --------------------------------------------------------------------------------------------------

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """See `ConsumerGroup.mark`."""
        self._marks.mark(self.session, done, metadata)

    async def commit(self) -> None:
        """See `ConsumerGroup.commit`."""
        await self._marks.commit(self.session)

    # --- topics -------------------------------------------------------------------------------------------------

    @property
    def _subscription(self) -> Subscription | None:
        """The subscription of the newest call of `run()` or `consume()` that runs or waits, or None."""
        return self._subscriptions[-1] if self._subscriptions else None

    def set_topics(self, topics: Topics) -> None:
        """See `ConsumerGroup.set_topics`."""
        check_topics(topics, current_protocol(self._membership, self.config.group_protocol))
        self._check_open()
        if self._subscription is None:
            raise UsageError(
                f"group {self.group_id!r} consumes nothing: pass the topics to run() or consume()"
            )
        if self._subscription.change(topics) and self._member.life is not None:
            self._member.life.on_topics_changed(TopicsChanged("set_topics() was called"))

    # --- pauses, errors, health ---------------------------------------------------------------------------------

    def pause(self, partitions: Partitions) -> None:
        """See `ConsumerGroup.pause`."""
        # kept for partitions that are assigned later
        self._source.paused.update(check_partitions(partitions))
        self._apply_pauses()

    def resume(self, partitions: Partitions) -> None:
        """See `ConsumerGroup.resume`."""
        self._source.paused.difference_update(check_partitions(partitions))
        self._apply_pauses()

    def pause_all(self) -> None:
        """See `ConsumerGroup.pause_all`."""
        if self.session is not None:
            self.pause(claim.tp for claim in self.session.claims)

    def resume_all(self) -> None:
        """See `ConsumerGroup.resume_all`."""
        self._source.paused.clear()
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        if self.session is not None:
            self._source.apply_pauses(self.session.claims)

    def errors(self) -> ErrorReader:
        """See `ConsumerGroup.errors`."""
        return self._errors.reader()

    def report(self, error: Exception) -> None:
        """Give an error that is retried to the readers of `errors`."""
        self._errors.put(error)

    def make_optional(self, topic: str) -> None:
        """Let a topic of the subscription be absent, as all of them may be with `missing_topics="wait"`."""
        self._source.optional_topics.add(topic)

    def health(self) -> Health:
        """See `ConsumerGroup.health`."""
        names = self._subscription.names if self._subscription is not None else ()
        return self._member.health(names, self._loop.time() if self._loop is not None else 0.0)


class _Call:
    """A call of `run()` or `consume()`; what it raises is fatal for liveness probes until the next call.

    Not a `contextmanager`, which sets the traceback of what is raised: an exception that is a frozen dataclass refuses that.
    """

    __slots__ = ("_liveness", "_retries", "_subscription", "_subscriptions")

    def __init__(
        self,
        liveness: Liveness,
        subscriptions: list[Subscription],
        subscription: Subscription,
        *,
        retries: bool,
    ) -> None:
        self._liveness = liveness
        self._subscriptions = subscriptions
        self._subscription = subscription
        self._retries = retries

    def __enter__(self) -> None:
        self._liveness.failure = None
        self._subscriptions.append(self._subscription)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._subscriptions.remove(self._subscription)
        # the close was asked for
        if not isinstance(error, Exception) or isinstance(error, ClosedError):
            return
        if not (self._retries and is_retriable_error(error)):
            self._liveness.note_failure(error)

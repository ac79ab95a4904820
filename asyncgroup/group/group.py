"""ConsumerGroup: one member of a consumer group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Self

from asyncgroup.checks import check_group_id
from asyncgroup.cluster import Cluster, as_cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_fetcher import lanes_of
from asyncgroup.consumer.error_stream import ErrorReader, ErrorStream
from asyncgroup.consumer.interceptors import Interceptor, Interceptors
from asyncgroup.errors import ClosedError, TopicsChanged, UsageError
from asyncgroup.group.assignors import resolve_assignors
from asyncgroup.group.group_marks import GroupMarks
from asyncgroup.group.handler import Handler, HandlerLike, as_handler
from asyncgroup.group.health import Health
from asyncgroup.group.heartbeats import RETRY_BACKOFF_SHARE
from asyncgroup.group.known_topics import KnownTopics
from asyncgroup.group.member import Member
from asyncgroup.group.member_health import MemberHealth, MemberState
from asyncgroup.group.membership import ClassicMembership
from asyncgroup.group.paused_partitions import PausedPartitions
from asyncgroup.group.reasons import CLOSED
from asyncgroup.group.records import Records
from asyncgroup.group.run_loop import RunLoop
from asyncgroup.group.session import Session
from asyncgroup.group.session_start import GroupContext
from asyncgroup.group.topics import Subscription, Topics, check_topics
from asyncgroup.lifecycle import wait_shielded
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.offsets import GROUP_LANE

__all__ = ["ConsumerGroup"]

_MEMBER_NUMBERS = count(1)


class ConsumerGroup:
    """One member of the consumer group `group_id`.

        async with ConsumerGroup("localhost:9092", "orders") as group:
            await group.run("orders", handler)

    A Cluster may be passed instead of addresses; it stays open. Raises ConfigError for an invalid group id or
    configuration; entering raises NoBrokersError if no bootstrap server responds.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Cluster,
        group_id: str,
        config: ConsumerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.group_id = check_group_id(group_id)
        self.config = ConsumerConfig.of(config)
        self.cluster, self._owns_cluster = as_cluster(bootstrap_servers, self.config, hooks)
        # a long reconnect backoff could outlast the session while the coordinator is back already
        self.cluster.limit_reconnect_backoff(RETRY_BACKOFF_SHARE * self.config.session_timeout)
        assignors = resolve_assignors(self.config.assignors)
        self._member_health = MemberHealth()
        self._membership = ClassicMembership(
            self.cluster, self.group_id, self.config, assignors, self._member_health
        )
        self._errors = ErrorStream(self.config.error_buffer)
        self._pauses = PausedPartitions()
        self._context = GroupContext(
            self.cluster,
            self.group_id,
            self.config,
            self._errors,
            self._pauses,
            Interceptors(interceptors),
            self._member_health,
            KnownTopics(),
            {},
            f"-group-{next(_MEMBER_NUMBERS)}",
        )
        self._member = Member(self._context, self._membership)
        self._marks = GroupMarks(self._context)
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

    async def __aenter__(self) -> Self:
        self._check_loop()
        if self._owns_cluster:
            await self.cluster.__aenter__()
        self.cluster.acquire_lane(GROUP_LANE)
        self._holds_lane = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, leave: bool | None = None, at_heartbeat: bool = False) -> None:
        """End the session, commit the marks, leave the group, and close. Safe to call twice.

        All of this is limited to `close_timeout` seconds. Handlers are cancelled once, a fifth of that time (at most
        5 s) before the deadline; the rest is reserved for `cleanup`, the last commit and the LeaveGroup. A handler
        that swallows its cancellation is waited for without a limit, since it may be in a critical section; it is
        named in the log, and the phases after it still have a minimum of time each.

        The last commit and the LeaveGroup are retried while there is time, also if connections are refused.

        `leave` says whether to send LeaveGroup. By default a dynamic member leaves, and a static member stays until its
        session times out, so that it can come back (KIP-345). True makes a static member leave (sarama's
        RemoveMemberFromConsumerGroup), False lets a dynamic one stay (KIP-1092). The first call decides.

        With `at_heartbeat` the member consumes until just before the group's next heartbeat, up to `heartbeat_interval`
        longer. The other members learn at that heartbeat that it left, so its partitions are idle only for a moment
        instead of up to an interval. Members that synced together send their heartbeats at the same time.

        If a handler calls it, or a task that the handler started, it only ends the session and returns, since waiting
        for the handler to end could deadlock. Leaving and closing remain for the task that entered the group.
        """
        self._check_loop()
        if not self._close_requested:
            self._close_requested, self._leaves = True, leave
        run = self._member.session_run
        if run is not None and run.is_caller:
            self._member.close()
            return
        try:
            if at_heartbeat:
                await self._member.wait_for_heartbeat()
        finally:
            if self._records is not None:
                self._records.clear_in_hand()
            self._member.close()
            await wait_shielded(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        await self._member.leave(CLOSED, self._leaves)
        if self._records is not None:
            await self._records.wait_closed()
        self._errors.close()
        self.cluster.retire_lanes({*lanes_of(self._context.lane_suffix), self._membership.lane})
        if self._holds_lane:
            self._holds_lane = False
            self.cluster.release_lane(GROUP_LANE)
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
            raise ClosedError(f"group {self.group_id!r} is not open: use `async with ConsumerGroup(…)`")

    def _check_caller(self) -> None:
        run = self._member.session_run
        if run is not None and run.is_caller:
            raise UsageError(
                f"group {self.group_id!r}: called by a handler, it would wait for its own end; use set_topics()"
            )

    # --- consuming ----------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The current session, or None."""
        run = self._member.session_run
        return run.session if run is not None else None

    async def consume(self, topics: Topics, handler: HandlerLike) -> None:
        """Run one session: join, consume, and return when it ends, for example in a rebalance, as sarama's `Consume`.

        The next call may have other topics. A concurrent second call waits for the first; `aclose()` makes both return.
        Raises the handler's exception itself; ConfigError for no topics, an invalid name or handler; BrokerError for an
        unknown topic or if the group rejects the member; TransportError when no broker responds; ClosedError if the
        group is already closed.
        """
        subscription, handling = Subscription(topics), as_handler(handler)
        self._check_caller()
        self._check_no_records()
        self._subscriptions.append(subscription)
        try:
            self._check_open()
            run = await self._member.run_session(subscription, handling)
        finally:
            self._subscriptions.remove(subscription)
        if run is not None and run.causes.failure is not None:
            raise run.causes.failure

    async def run(self, topics: Topics, handler: HandlerLike) -> None:
        """Run one session after another, until cancelled or until the group closes; then it returns.

        It rejoins at once after a rebalance, with backoff after a lost membership or a failed join. Raises what is not
        retriable: the handler's exception, an unknown topic, a fenced instance id, missing authorization. A topic
        subscribed by name that is deleted is left out, so that the others continue, and is consumed again once it
        exists again; after `session_timeout` without it, UNKNOWN_TOPIC_OR_PARTITION is raised.
        """
        subscription, handling = Subscription(topics), as_handler(handler)
        self._check_caller()
        self._check_no_records()
        await self._run(subscription, handling)

    async def _run(self, subscription: Subscription, handler: Handler) -> None:
        self._subscriptions.append(subscription)
        try:
            await RunLoop(self._context, self._member, subscription, handler, self._check_open).run()
        finally:
            self._subscriptions.remove(subscription)

    def _check_no_records(self) -> None:
        if self._records is not None and not self._records.closed:
            raise UsageError(
                f"group {self.group_id!r} is already consumed by records(): aclose() its iterator first"
            )

    def records(self, topics: Topics) -> Records:
        """Return an iterator over the records of all partitions, instead of a handler:

            async for record in group.records("orders"):
                ...
                group.mark(record)

        It joins and rejoins as `run()` does; see `Records` for the order of the partitions, for revocations and for the
        end. In contrast to one task per claim, a slow record delays all partitions.

        The same topics return the same iterator until it is closed, so that a second loop continues at the next record.
        Raises ConfigError for no topics or an invalid name, UsageError for other topics while an iterator is open,
        ClosedError.
        """
        subscription = Subscription(topics)
        self._check_caller()
        self._check_open()
        if self._records is None or self._records.closed:
            self._records = Records(self.group_id, subscription, self._run)
        elif not self._records.is_subscribed_to(subscription):
            self._check_no_records()
        return self._records

    # --- marks --------------------------------------------------------------------------------------------------

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Mark everything up to and including this record or batch as done in its partition, to be committed.

        As `Claim.mark`, for code without a claim, such as a loop over `records()`. If the claim that returned the
        record has ended, the mark is dropped and reported as MarkDropped by `errors()` and in the log. Raises
        ConfigError if `done` is neither a Record nor a Batch, and for invalid metadata.
        """
        self._marks.mark(self.session, done, metadata)

    async def commit(self) -> None:
        """Commit all marks now, as `Session.commit`.

        Raises CommitFailedError with the partitions that failed, including those with a mark dropped since the last
        call. Without `auto_commit`, marks that are not committed before their partition is revoked are lost, and their
        records are delivered again.
        """
        await self._marks.commit(self.session)

    # --- topics -------------------------------------------------------------------------------------------------

    @property
    def _subscription(self) -> Subscription | None:
        """The subscription of the newest call of `run()` or `consume()` that runs or waits, or None."""
        return self._subscriptions[-1] if self._subscriptions else None

    def set_topics(self, topics: Topics) -> None:
        """Change the topics of a running `run()`, or of `consume()`, which then returns.

        The session ends with the cause TopicsChanged, as in a rebalance: handlers end, their marks are committed, and
        the member rejoins at once with the same member id. A join in progress is completed first. The same topics
        change nothing. If several calls of `run()` or `consume()` wait, the newest one is changed. `run()` raises the
        error of an unknown topic.

        Raises ConfigError for no topics or an invalid name, UsageError if neither runs, ClosedError.
        """
        check_topics(topics)
        self._check_open()
        if self._subscription is None:
            raise UsageError(
                f"group {self.group_id!r} consumes nothing: pass the topics to run() or consume()"
            )
        if self._subscription.change(topics) and self.session is not None:
            self.session.end(TopicsChanged("set_topics() was called"))

    # --- pauses, errors, health ---------------------------------------------------------------------------------

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Pause these partitions before their next record. One that is not assigned now is paused once it is."""
        self._pauses.add(partitions)
        self._apply_pauses()

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Resume these partitions."""
        self._pauses.discard(partitions)
        self._apply_pauses()

    def pause_all(self) -> None:
        """Pause all partitions that are assigned now."""
        if self.session is not None:
            self.pause(claim.tp for claim in self.session.claims)

    def resume_all(self) -> None:
        """Resume all partitions, also those that are not assigned now."""
        self._pauses.clear()
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        if self.session is not None:
            self._pauses.apply(self.session.claims)

    def errors(self) -> ErrorReader:
        """Return a new async iterator of the errors that are retried or recovered from.

        Each reader buffers up to `error_buffer` errors; beyond that the oldest are dropped and counted. A slow reader
        never delays the group.
        """
        return self._errors.reader()

    def health(self) -> Health:
        """Return the current health of this member: state, claims, what it waits for, and problems in words.

        It sends no request and never waits, so that a probe can call it at any time, also before entering and after
        closing, but only in the group's event loop.
        """
        names = self._subscription.names if self._subscription is not None else ()
        return self._member.health(names, self._loop.time() if self._loop is not None else 0.0)

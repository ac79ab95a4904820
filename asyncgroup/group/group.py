"""A member of a consumer group: sessions one after another, until closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Self

from asyncgroup.checks import check_group_id
from asyncgroup.cluster import Cluster, own_or_given
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

    An existing Cluster may be given instead of addresses; it is then left open. Raises ConfigError for a bad group id
    or configuration; entering raises NoBrokersError if no bootstrap address answers.
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
        self.cluster, self._owns_cluster = own_or_given(bootstrap_servers, self.config, hooks)
        # a coordinator that is back must not find the session expired because of the pauses between attempts to connect
        self.cluster.limit_reconnect_pauses(RETRY_BACKOFF_SHARE * self.config.session_timeout)
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
        self._leaves: bool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        state = "closed" if self._member.closing.is_set() else "open" if self.cluster.is_open else "not open"
        return f"<ConsumerGroup {self.group_id!r}: {state}, {self.session or 'no session'}>"

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_loop()
        if self._owns_cluster:
            await self.cluster.__aenter__()
        self.cluster.hold_lane(GROUP_LANE)
        self._holds_lane = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, leave: bool | None = None, at_heartbeat: bool = False) -> None:
        """End the session, commit what is done, leave the group, close. Safe to call twice.

        All of it together has `close_timeout` seconds: handlers are cancelled once, a fifth of that time (5 s at most)
        before its end, so that `cleanup`, the last commit and the leave have theirs. A handler that swallows its
        cancellation is waited for, however long it takes: it may be at something that must not be torn. The log names
        it, and what comes after it still has a moment each.

        The last commit and the leave are tried again while there is time, also if the coordinator refuses connections.

        `leave` decides whether the member gives its place up at once: by default a dynamic member does, and a static
        one stays until its session times out, for it may come back (KIP-345). True makes a static member go for good
        (sarama's RemoveMemberFromConsumerGroup), False lets a dynamic one stay (KIP-1092). A later call changes nothing.

        `at_heartbeat` lets the member work on until just before the group's next heartbeat, up to `heartbeat_interval`
        longer. The others hear at that heartbeat that it left, and its partitions stand still for a moment, not for up
        to an interval. Members that synced together beat together.

        Called by a handler, or by a task that it has started, it would have to wait for the handler's end, which may wait
        for it: it only ends the session then, and leaving and closing are left to the one who opened the group.
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
                self._records.let_go()
            self._member.close()
            await wait_shielded(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        await self._member.leave(CLOSED, self._leaves)
        if self._records is not None:
            await self._records.wait_closed()
        self._errors.close()
        self.cluster.close_lanes({*lanes_of(self._context.lanes), self._membership.lane})
        if self._holds_lane:
            self._holds_lane = False
            self.cluster.release_lane(GROUP_LANE)
        if self._owns_cluster:
            await self.cluster.aclose()
        self._member_health.transition_to(MemberState.CLOSED)

    def _check_loop(self) -> None:
        """The first caller's event loop is ours; another one would find our locks and futures bound, and wait for ever."""
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
            raise ClosedError(f"group {self.group_id!r} was closed; make a new ConsumerGroup")
        if not self.cluster.is_open:
            raise ClosedError(f"group {self.group_id!r} is not open: use `async with ConsumerGroup(…)`")

    def _check_caller(self) -> None:
        run = self._member.session_run
        if run is not None and run.is_caller:
            raise UsageError(
                f"group {self.group_id!r}: a handler would wait for its own end; set_topics() changes the topics"
            )

    # --- consuming ----------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session that lives now, if any."""
        run = self._member.session_run
        return run.session if run is not None else None

    async def consume(self, topics: Topics, handler: HandlerLike) -> None:
        """One session: join, consume, return when it ends (after a rebalance, for example), as sarama's `Consume`.

        The next call may name other topics. A second call waits for the first; `aclose()` makes both return. Raises
        what the handler raised, as itself; ConfigError for no topics, a bad name or handler; BrokerError for an unknown
        topic or a group that refuses us; TransportError when no broker answers; ClosedError if the group is closed
        already.
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
        """Session after session, until cancelled or closed (then it returns).

        Rejoins at once after a rebalance, with backoff after a loss or a failed join; raises what cannot heal: the
        handler's own exception, an unknown topic, a fenced instance id, missing authorization. A named topic that is
        deleted meanwhile is left out, so that the others go on, and taken in again when it is back; if it stays away
        for `session_timeout` its UNKNOWN_TOPIC_OR_PARTITION is raised.
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
                f"group {self.group_id!r} is read by records() already: aclose() what it returned first"
            )

    def records(self, topics: Topics) -> Records:
        """One loop over the records of all partitions, in place of a handler:

            async for record in group.records("orders"):
                ...
                group.mark(record)

        It joins, and joins again, as `run()` does; see `Records` for turns, ends and what is in hand when a partition
        is revoked. It gives up the isolation of slow partitions that a task for each claim has.

        The same topics give the same iterator until it is closed, so that a second loop goes on at the very next record.
        Raises ConfigError for no topics or a bad name, UsageError for other topics than those of an iterator that is
        still open; ClosedError.
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
        """Everything up to and including this record or batch is done in its partition, and may be committed.

        As `Claim.mark`, for code that has no claim at hand, as in a loop over `records()`. If the claim that the record
        was read by is gone, the mark is dropped, and reported as MarkDropped to `errors()` and the log. Raises
        ConfigError for what is no record or batch, and for bad metadata.
        """
        self._marks.mark(self.session, done, metadata)

    async def commit(self) -> None:
        """Commit all marks now, as `Session.commit`.

        Raises CommitFailedError with the partitions that failed; among them those of which a mark was dropped since the
        last call. Without `auto_commit` marks that are not committed when their partition is revoked are gone, and
        their records are delivered again.
        """
        await self._marks.commit(self.session)

    # --- topics -------------------------------------------------------------------------------------------------

    @property
    def _subscription(self) -> Subscription | None:
        """The newest of those that are under way or wait for their turn."""
        return self._subscriptions[-1] if self._subscriptions else None

    def set_topics(self, topics: Topics) -> None:
        """Subscribe to other topics in the middle of `run()` (or `consume()`, which returns then).

        The session ends with the cause TopicsChanged, as at a rebalance: handlers end, their work is committed, and
        the member joins again at once, under the same id. A join under way is finished first. The same topics once more
        change nothing. Where several calls wait for their turn the newest one is meant. An unknown topic is raised by
        `run()`.

        Raises ConfigError for no topics or a bad name, UsageError where nothing consumes, ClosedError.
        """
        check_topics(topics)
        self._check_open()
        if self._subscription is None:
            raise UsageError(
                f"group {self.group_id!r} consumes nothing: give the topics to run() or consume()"
            )
        if self._subscription.change(topics) and self.session is not None:
            self.session.end(TopicsChanged("set_topics() was called"))

    # --- pauses, errors, health ---------------------------------------------------------------------------------

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Hold these partitions before their next record, those that come later included: one that is not owned (any
        more, or yet) is paused when it comes."""
        self._pauses.add(partitions)
        self._apply_pauses()

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Undo `pause` for these partitions."""
        self._pauses.discard(partitions)
        self._apply_pauses()

    def pause_all(self) -> None:
        """Pause every partition that this member owns now."""
        if self.session is not None:
            self.pause(claim.tp for claim in self.session.claims)

    def resume_all(self) -> None:
        """Forget every pause."""
        self._pauses.clear()
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        if self.session is not None:
            self._pauses.apply(self.session.claims)

    def errors(self) -> ErrorReader:
        """A new async iterator of the errors that heal by themselves; each reader has a buffer of its own, of
        `error_buffer` errors: older ones are dropped and counted. It never holds the group up."""
        return self._errors.reader()

    def health(self) -> Health:
        """How this member is at this moment: a value that says in words what it waits for and what is wrong.

        It asks nobody and never waits, so a probe may call it at any time, before and after the group's life too, but
        on the group's event loop.
        """
        names = self._subscription.names if self._subscription is not None else ()
        return self._member.health(names, self._loop.time() if self._loop is not None else 0.0)

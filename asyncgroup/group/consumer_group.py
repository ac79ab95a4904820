"""ConsumerGroup: one member of a consumer group.

Importing this module loads little, and creating a ConsumerGroup only checks its arguments: the engine (`group.py`) is
imported on a thread when the group is entered, so that the event loop is not blocked for the time of the import. What
does that is imported by the constructor: entering imports nothing on the event loop's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Self

from asyncgroup.checks import check_group_id, parse_servers
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.group.foreign_names import GROUP
from asyncgroup.named_arguments import ClientArguments

if TYPE_CHECKING:
    from asyncgroup.cluster import Cluster
    from asyncgroup.cluster.bootstrap import BootstrapServers
    from asyncgroup.config import ConsumerConfig
    from asyncgroup.consumer.error_stream import ErrorReader
    from asyncgroup.group.group import GroupEngine, MembershipFactory
    from asyncgroup.group.health.health import Health
    from asyncgroup.group.records import Records
    from asyncgroup.group.sessions.handler import HandlerLike
    from asyncgroup.group.sessions.session import Session
    from asyncgroup.group.topics.topics import Topics
    from asyncgroup.interceptor import ConsumeInterceptor
    from asyncgroup.model import Batch, Record
    from asyncgroup.topic_partition import Partitions

__all__ = ["ConsumerGroup"]


class ConsumerGroup(ClientArguments):
    """One member of the consumer group `group_id`.

        async with ConsumerGroup("localhost:9092", "orders") as group:
            await group.run("orders", handler)

    A Cluster may be passed instead of addresses; it stays open. Raises ConfigError for an invalid group id or
    configuration; entering raises NoBrokersError if no bootstrap server responds.
    """

    _CONFIG = "ConsumerConfig"

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        group_id: str,
        config: ConsumerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
        interceptors: Iterable[ConsumeInterceptor] = (),
    ) -> None:
        from asyncgroup.config import ConsumerConfig
        from asyncgroup.group.assignors import resolve_assignors
        from asyncgroup.hooks import Hooks, check_hooks
        from asyncgroup.interceptor import CONSUMER_METHODS, check_interceptors
        from asyncgroup.off_loop import load_module

        self.group_id = check_group_id(group_id)
        self.config = ConsumerConfig.of(config)
        hooks = check_hooks(hooks)
        if isinstance(bootstrap_servers, Iterable):
            if not isinstance(bootstrap_servers, str | Mapping):
                bootstrap_servers = tuple(bootstrap_servers)
            parse_servers(bootstrap_servers)
            Hooks(hooks)
        else:  # a Cluster, so its room is imported already
            from asyncgroup.cluster import as_cluster

            as_cluster(bootstrap_servers, self.config, hooks)
        self._servers = bootstrap_servers
        self._hooks = hooks
        self._interceptors = check_interceptors(interceptors, CONSUMER_METHODS)
        self._assignors = resolve_assignors(self.config.effective_assignors)
        self._load_engine = partial(load_module, "asyncgroup.group.group")
        self._make_membership: MembershipFactory | None = None
        """None: that of `group_protocol`; tests set another."""
        self._created: GroupEngine | None = None

    @property
    def _inner(self) -> GroupEngine:
        """The engine, created at the first use: entering has imported it, an earlier use imports it here."""
        if self._created is None:
            from asyncgroup.group.group import GroupEngine

            self._created = GroupEngine(
                self._servers,
                self.group_id,
                self.config,
                self._hooks,
                self._interceptors,
                self._assignors,
                self._make_membership,
            )
        return self._created

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroup {self.group_id!r}: not open>" if self._created is None else repr(self._created)
        )

    @property
    def cluster(self) -> Cluster:
        """The Cluster that the group uses: the one that was passed, or its own."""
        return self._inner.cluster

    async def __aenter__(self) -> Self:
        await self._load_engine()
        await self._inner.open()
        self._inner.cluster.hooks.emit("on_open", self)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.aclose()

    async def aclose(self, *, leave: bool | None = None, at_heartbeat: bool = False) -> None:
        """End the session, commit the marks, leave the group, and close. Safe to call twice.

        All of this is limited to `close_timeout` seconds. Handlers are cancelled once, a fifth of that time (at most
        5 s) before the deadline; the rest is reserved for `cleanup`, the last commit and the LeaveGroup. A handler or a hook
        that swallows its cancellation is waited for without a limit, since it may be in a critical section; it is
        named by the log and `health()`, a hook by `errors()` (HookTimeout). The phases after it still have a minimum of
        time each.

        The last commit and the LeaveGroup are retried while there is time, also if connections are refused.

        `leave` says whether to send LeaveGroup. By default a dynamic member leaves, and a static member stays until its
        session times out, so that it can come back (KIP-345). True makes a static member leave (sarama's
        RemoveMemberFromConsumerGroup), False lets a dynamic one stay (KIP-1092). The first call decides.

        With `at_heartbeat` the member consumes until just before the group's next heartbeat, up to `heartbeat_interval`
        longer. The other members learn at that heartbeat that it left, so its partitions are idle only for a moment
        instead of up to an interval. Members that synced together send their heartbeats at the same time; with the consumer
        protocol they do not, and it has no effect.

        If a handler calls it, or a task that the handler started, it only ends the session and returns, since waiting
        for the handler to end could deadlock. Leaving and closing remain for the task that entered the group.
        """
        await self._inner.aclose(leave=leave, at_heartbeat=at_heartbeat)

    @property
    def session(self) -> Session | None:
        """The current session, or None."""
        return self._inner.session

    async def consume(self, topics: Topics, handler: HandlerLike) -> None:
        """Run one session: join, consume, and return when it ends, for example in an eager rebalance, as sarama's `Consume`.

        `topics` is a name, several names, a compiled pattern, or a SubscriptionPattern, which the broker matches and only the
        consumer protocol has. The next call may have other topics. A concurrent second call waits for the first; `aclose()`
        makes both return. Raises the handler's exception itself; ConfigError for no topics, an invalid name or handler, and
        for a SubscriptionPattern in a group of the classic protocol; BrokerError for an unknown topic (unless
        `missing_topics="wait"`) or if the group rejects the member; TransportError when no broker responds; ClosedError if
        the group is already closed.
        """
        await self._inner.consume(topics, handler)

    async def run(self, topics: Topics, handler: HandlerLike) -> None:
        """Run one session after another, until cancelled or until the group closes; then it returns.

        It rejoins at once after a rebalance, with backoff after a lost membership or a failed join. Raises what is not
        retriable: the handler's exception, an unknown topic (unless `missing_topics="wait"`), a fenced instance id, missing
        authorization. A topic subscribed by name that is deleted later is left out, so that the others continue, and is
        consumed again once it exists again.

        A group object has one session at a time: a concurrent second call waits until the session of the first one ends,
        and then they take turns. Use another object for another member. Raises UsageError while an iterator of
        `records()` is open.
        """
        await self._inner.run(topics, handler)

    def records(self, topics: Topics) -> Records:
        """Return an iterator over the records of all partitions, instead of a handler:

            async for record in group.records("orders"):
                ...
                group.mark(record)

        It joins and rejoins as `run()` does; see `Records` for the order of the partitions, for revocations and for the
        end. In contrast to one task per claim, a slow record delays all partitions. While `run()` or `consume()` has a
        session, the iterator waits until that session ends.

        The same topics return the same iterator until it is closed, so that a second loop continues at the next record.
        Raises ConfigError for no topics or an invalid name, UsageError for other topics while an iterator is open,
        ClosedError.
        """
        return self._inner.records(topics)

    def mark(self, done: Record | Batch, metadata: str = "") -> None:
        """Mark everything up to and including this record or batch as done in its partition, to be committed.

        As `Claim.mark`, for code without a claim, such as a loop over `records()`. If the claim that returned the
        record has ended, the mark is dropped and reported as MarkDropped by `errors()` and in the log. Raises
        ConfigError if `done` is neither a Record nor a Batch, and for invalid metadata.
        """
        self._inner.mark(done, metadata)

    async def commit(self) -> None:
        """Commit all marks now, as `Session.commit`.

        Raises CommitFailedError with the partitions that failed, including those with a mark dropped since the last
        call. Without `auto_commit`, marks that are not committed before their partition is revoked are lost, and their
        records are delivered again.
        """
        await self._inner.commit()

    def set_topics(self, topics: Topics) -> None:
        """Change the topics of a running `run()`, or of `consume()`, which then returns.

        The session ends with the cause TopicsChanged, as in a rebalance: handlers end, their marks are committed, and
        the member rejoins at once with the same member id. With cooperative assignors and with the consumer protocol the
        session goes on, and only claims of topics that are left out end. A join in progress is completed first. The same topics
        change nothing. If several calls of `run()` or `consume()` wait, the newest one is changed. `run()` raises the
        error of an unknown topic, unless `missing_topics="wait"`.

        Raises ConfigError for no topics, an invalid name, and a SubscriptionPattern while the member is in a group of the
        classic protocol; UsageError if neither runs; ClosedError.
        """
        self._inner.set_topics(topics)

    def pause(self, partitions: Partitions) -> None:
        """Pause one or several partitions before their next record. One that is not assigned now is paused once it is.

        Raises ConfigError for values that are not partitions, and for invalid topics, as `resume` does.
        """
        self._inner.pause(partitions)

    def resume(self, partitions: Partitions) -> None:
        """Resume one or several partitions."""
        self._inner.resume(partitions)

    def pause_all(self) -> None:
        """Pause all partitions that are assigned now."""
        self._inner.pause_all()

    def resume_all(self) -> None:
        """Resume all partitions, also those that are not assigned now."""
        self._inner.resume_all()

    def errors(self) -> ErrorReader:
        """Return a new async iterator of the errors that are retried or recovered from.

        Each reader buffers up to `error_buffer` errors; beyond that the oldest are dropped and counted. A slow reader
        never delays the group.
        """
        return self._inner.errors()

    def health(self) -> Health:
        """Return the current health of this member: state, claims, what it waits for, and problems in words.

        It sends no request and never waits, so that a probe can call it at any time, also before entering and after
        closing, but only in the group's event loop.
        """
        return self._inner.health()


add_foreign_names(ConsumerGroup, GROUP)

"""A member of a consumer group: sessions one after another, until closed."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Iterable
from itertools import count
from types import TracebackType
from typing import Any, Self

from asyncgroup.checks import check_group_id
from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.partition_consumer import Interceptor
from asyncgroup.errors import (
    BrokerError,
    CallerCancelled,
    ClosedError,
    ErrorCode,
    GroupClosed,
    MemberLost,
    PartitionsChanged,
    Rebalanced,
    TransportError,
    UsageError,
)
from asyncgroup.group.assignors import resolve_assignors
from asyncgroup.group.error_stream import ErrorReader, ErrorStream
from asyncgroup.group.handler import Handler, HandlerLike, as_handler
from asyncgroup.group.membership import ClassicMembership, Joined
from asyncgroup.group.session import Session
from asyncgroup.group.session_run import GroupContext, SessionRun
from asyncgroup.group.topics import Topics, check_topics, resolve_topics
from asyncgroup.hooks import refuse_hooks
from asyncgroup.lifecycle import finish, run_until, wait_within
from asyncgroup.model import TopicPartition

__all__ = ["ConsumerGroup"]

_log = logging.getLogger("asyncgroup.group")


_NUMBERS = count(1)


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
        self._owns_cluster = not isinstance(bootstrap_servers, Cluster)
        refuse_hooks(hooks, owns_cluster=self._owns_cluster)
        self.cluster = (
            bootstrap_servers
            if isinstance(bootstrap_servers, Cluster)
            else Cluster(bootstrap_servers, self.config, hooks=hooks)
        )
        assignors = resolve_assignors(self.config.assignors)
        self._membership = ClassicMembership(self.cluster, self.group_id, self.config, assignors)
        self._errors = ErrorStream()
        self._paused: set[TopicPartition] = set()
        self._context = GroupContext(
            self.cluster,
            self.group_id,
            self.config,
            self._errors,
            self._paused,
            tuple(interceptors),
            f"-group-{next(_NUMBERS)}",
        )
        self._turn = asyncio.Lock()
        self._closing = asyncio.Event()
        self._run: SessionRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closing.is_set() else "open"
        return (
            f"<ConsumerGroup {self.group_id!r}: {state}, {self._run.session if self._run else 'no session'}>"
        )

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_loop()
        if self._owns_cluster:
            await self.cluster.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session, commit what is done, leave the group (a static member stays), close. Safe to call twice.

        Handlers have `close_timeout` seconds to end; then they are cancelled once. Called by a handler, whose end it
        would have to wait for, it only ends the session: leaving and closing are left to the one who opened the group.
        """
        self._check_loop()
        self._closing.set()
        run = self._run
        if run is not None:
            run.session.end(GroupClosed(f"group {self.group_id!r} was closed"))
            if run.is_handler(asyncio.current_task()):
                return
        await finish(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        async with self._turn:
            await self._leave("the consumer was closed")
        self._errors.close()
        if self._owns_cluster:
            await self.cluster.aclose()

    async def _leave(self, reason: str) -> None:
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self._membership.leave(reason)
        except TimeoutError:
            _log.warning("group %s: leaving took too long; the session timeout will do it", self.group_id)

    def _check_loop(self) -> None:
        """The first caller's event loop is ours; another one would find our locks and futures bound, and wait for ever."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise UsageError(
                f"group {self.group_id!r} belongs to another event loop, perhaps of another thread"
            )

    def _check_open(self) -> None:
        self._check_loop()
        if self._closing.is_set():
            raise ClosedError(f"group {self.group_id!r} was closed; make a new ConsumerGroup")
        if not self.cluster.is_open:
            raise ClosedError(f"group {self.group_id!r} is not open: use `async with ConsumerGroup(…)`")

    # --- consuming ----------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session that lives now, if any."""
        return self._run.session if self._run is not None else None

    async def consume(self, topics: Topics, handler: HandlerLike) -> None:
        """One session: join, consume, return when it ends (after a rebalance, for example), as sarama's `Consume`.

        A second call waits for the first; `aclose()` makes both return. Raises what the handler raised, as itself;
        ConfigError for no topics, a bad name or handler; BrokerError for an unknown topic or a group that refuses us;
        TransportError when no broker answers; ClosedError if the group is closed already.
        """
        run = await self._session(topics, handler)
        if run is not None and run.failure is not None:
            raise run.failure

    async def run(self, topics: Topics, handler: HandlerLike) -> None:
        """Session after session, until cancelled or closed (then it returns).

        Rejoins at once after a rebalance, with backoff after a loss or a failed join; raises what cannot heal: the
        handler's own exception, an unknown topic, a fenced instance id, missing authorization.
        """
        backoff = self.cluster.backoff()
        while True:
            try:
                run = await self._session(topics, handler)
            except (BrokerError, TransportError) as error:
                self._heal_or_raise(error)
            else:
                if run is None:
                    return
                if run.failure is not None:
                    if run.failed_by_handler:
                        raise run.failure
                    self._heal_or_raise(run.failure)
                if self._closing.is_set():  # perhaps while the session ended for another reason
                    return
                if isinstance(run.session.cause, (Rebalanced, PartitionsChanged)):
                    backoff.reset()
                    continue
            if await wait_within(self._closing, backoff.next()):
                return

    def _heal_or_raise(self, error: BaseException) -> None:
        lasting = isinstance(error, BrokerError) and (
            error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if error.retriable
            else error.code != ErrorCode.UNKNOWN_MEMBER_ID  # the next join begins without an id
        )
        if lasting or not isinstance(error, (BrokerError, TransportError)):
            raise error
        _log.warning("group %s: %s", self.group_id, error)
        self._errors.put(error)

    async def _session(self, topics: Topics, handler: HandlerLike) -> SessionRun | None:
        """The session that was, or None if the group was closed before there was one."""
        wanted, handling = check_topics(topics), as_handler(handler)
        self._check_open()
        async with self._turn:
            if self._closing.is_set():
                return None
            try:
                joined = await self._or_closed(self._join(wanted))
                return None if joined is None else await self._live(joined, handling)
            except asyncio.CancelledError:
                await finish(asyncio.ensure_future(self._leave("the consumer was cancelled")))
                raise

    async def _join(self, wanted: list[str] | re.Pattern[str]) -> Joined:
        names = await resolve_topics(self.cluster, wanted)
        self.cluster.track(names)
        try:
            return await self._membership.join(names, "joining")
        finally:
            self.cluster.untrack(names)

    async def _live(self, joined: Joined, handler: Handler) -> SessionRun:
        run = self._run = SessionRun(self._context, joined, handler)
        task = asyncio.create_task(run.run(), name=f"session of {self.group_id}")
        if self._closing.is_set():
            run.session.end(GroupClosed(f"group {self.group_id!r} was closed"))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            run.session.end(CallerCancelled("the task that consumes was cancelled"))
            await finish(task)
            if run.failed_by_handler:
                # the caller gets its cancellation; what the handler raised meanwhile must not vanish
                _log.error("group %s: raised while cancelled", self.group_id, exc_info=run.failure)
            raise
        finally:
            self._run = None
            if isinstance(run.session.cause, MemberLost):
                self._membership.after_loss(run.session.cause.__cause__)
        return run

    async def _or_closed(self, work: Coroutine[Any, Any, Joined]) -> Joined | None:
        """Our own work, given up when the group closes; None then."""
        task = await run_until(self._closing.wait(), work, f"{self.group_id}: join")
        return None if task.cancelled() else task.result()

    # --- pauses and errors --------------------------------------------------------------------------------------

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Hold these partitions before their next record; remembered, so one that comes back later is paused still."""
        self._paused.update(TopicPartition(*tp) for tp in partitions)
        self._apply_pauses()

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Undo `pause` for these partitions."""
        self._paused.difference_update(TopicPartition(*tp) for tp in partitions)
        self._apply_pauses()

    def pause_all(self) -> None:
        """Pause every partition that this member owns now."""
        if self.session is not None:
            self.pause(claim.tp for claim in self.session.claims)

    def resume_all(self) -> None:
        """Forget every pause."""
        self._paused.clear()
        self._apply_pauses()

    def _apply_pauses(self) -> None:
        for claim in self.session.claims if self.session is not None else ():
            if claim.paused != (claim.tp in self._paused):
                (claim.consumer.pause if claim.tp in self._paused else claim.consumer.resume)()

    def errors(self) -> ErrorReader:
        """A new async iterator of the errors that heal by themselves; each reader has a buffer of its own."""
        return self._errors.reader()

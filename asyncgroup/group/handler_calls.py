"""Call a handler's methods for one session: in pairs, each in its own task and within its time limit (`EndLimits`).

The tasks are plain asyncio tasks that are cancelled at most once and always waited for. They never run inside a
cancelled anyio scope: such a scope cancels every later await again, so that the `finally` blocks of a handler could not
await anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import CallerCancelled, ClaimReturned, GroupClosed, Rebalanced, SessionEnd
from asyncgroup.group.claim import Claim
from asyncgroup.group.handler import Handler
from asyncgroup.group.member_health import RunningCalls
from asyncgroup.group.session import Session
from asyncgroup.lifecycle import add_note
from asyncgroup.model import TopicPartition

__all__ = ["MIN_RESERVE_SHARE", "REMINDER", "EndLimits", "HandlerCalls", "HandlerTasks", "reserve_for"]

_log = logging.getLogger("asyncgroup.group")

REMINDER: Final = 30.0
"""Seconds between log lines about a handler that is still running after its cancellation."""

Call: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_CALLER: Final = ContextVar[object]("asyncgroup: the session of a handler", default=None)
"""In a handler's tasks and in those that they start: the token of its HandlerCalls."""

CLAIM: Final = "claim "
"""Prefix of the names of `consume_claim` tasks."""
INF: Final = float("inf")


class HandlerCalls:
    """Calls the methods of `handler` for one session; `on_failure(error, what)` is called with what they raise.

    `limits` holds the deadlines that apply once the session ends.
    """

    def __init__(
        self,
        handler: Handler,
        session: Session,
        limits: EndLimits,
        on_failure: Callable[[BaseException, str], None],
    ) -> None:
        self._handler = handler
        self._session = session
        self._limits = limits
        self._on_failure = on_failure
        self._state = session._state
        # `consume_claim` of all claims that are not being revoked
        self._claims = HandlerTasks(session.group_id)
        # everything that `limit` has to find: these, claims that drain, and hooks
        self._waited_for = [self._claims]
        # on_assigned was called with them, and its counterpart was not yet
        self._assigned: set[TopicPartition] = set()
        self._begun: set[str] = set()  # names of the methods that have begun to run
        self._drained = False  # whether every consume_claim has ended
        self._waiting_since = 0.0  # loop time at which the current hook was started
        # a token instead of this object: timers and tasks that a handler starts keep their context beyond the session
        self._token = object()

    @property
    def is_caller(self) -> bool:
        """Whether the caller is a method of the handler, or a task or thread that one of them started."""
        return _CALLER.get() is self._token

    # --- time limits ------------------------------------------------------------------------------------------

    def limit(self, cause: SessionEnd) -> None:
        """Limit the running calls, because the session ends for `cause`.

        The most urgent of several causes counts. CallerCancelled cancels `consume_claim` at once, but not the hooks
        after the drain, which keep their time.
        """
        limits = self._limits
        limits.add_cause(cause)
        seconds = 0.0 if isinstance(cause, CallerCancelled) else limits.handler_seconds
        for tasks in self._waited_for:
            tasks.limit(limits.hook_seconds if tasks.is_after_drain else seconds)

    @property
    def running_calls(self) -> RunningCalls:
        """The calls that the session waits for: hooks while it begins or ends, `consume_claim` once it ends."""
        running = [name for tasks in self._waited_for for name in tasks.running]
        if not self._session.ended:
            return RunningCalls(
                [name for name in running if not name.startswith(CLAIM)], self._waiting_since, INF
            )
        labels = [
            f"handler of {name.removeprefix(CLAIM)}" if name.startswith(CLAIM) else name for name in running
        ]
        since = self._waiting_since if self._drained else self._limits.ending_since
        cancel_at = min((tasks.cancel_at for tasks in self._waited_for if tasks.running), default=INF)
        return RunningCalls(labels, since, cancel_at)

    # --- the calls ----------------------------------------------------------------------------------------------

    async def set_up(self) -> bool:
        """Call `setup`; False if it failed or the session has ended."""
        tasks = HandlerTasks(self._session.group_id)
        return await self._call(partial(self._handler.setup, self._session), "setup", tasks)

    async def assigned(self, partitions: list[TopicPartition]) -> bool:
        """Call `on_assigned`; False if it failed or the session has ended."""
        tasks = HandlerTasks(self._session.group_id)
        return await self._call(partial(self._on_assigned, partitions), "on_assigned", tasks)

    async def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._assigned.update(partitions)
        await self._handler.on_assigned(self._session, partitions)

    def start_claim(self, claim: Claim) -> None:
        """Call `consume_claim` in a task that `drain` waits for."""
        what = f"{CLAIM}{claim.tp}"
        call = partial(self._handler.consume_claim, self._session, claim)
        self._claims.start(self._begin(call, what), what, partial(self._on_claim_done, claim))

    async def drain_claims(self, claims: Iterable[Claim], limits: EndLimits) -> list[TopicPartition]:
        """Wait until the `consume_claim` of revoked claims has ended, while the session goes on with the others.

        Returns the partitions whose handlers still run when the time for the hooks begins to run out, although they
        were cancelled. The end of the session waits for them.
        """
        by_name = {f"{CLAIM}{claim.tp}": claim.tp for claim in claims}
        tasks = self._claims.split_off(by_name)
        tasks.limit(limits.handler_seconds)
        self._waited_for.append(tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.hook_seconds):
                await tasks.wait()
        stuck = [by_name[name] for name in tasks.running]
        if not stuck:
            self._waited_for.remove(tasks)
        return stuck

    async def revoked(self, partitions: list[TopicPartition], limits: EndLimits) -> None:
        """Call `on_revoked` or `on_lost` with those partitions that `on_assigned` was called with."""
        handler, session = self._handler, self._session
        if not (known := [tp for tp in partitions if tp in self._assigned]):
            return
        self._assigned.difference_update(known)
        is_lost = self._state.is_lost
        hook, what = (handler.on_lost, "on_lost") if is_lost else (handler.on_revoked, "on_revoked")
        await self._last_call(partial(hook, session, known), what, limits)

    async def drain(self) -> None:
        """Wait until every `consume_claim` has ended, and hooks for claims that were about to begin."""
        for tasks in list(self._waited_for):
            await tasks.wait()
        self._waited_for.remove(self._claims)
        self._drained = True

    async def end(self, partitions: list[TopicPartition]) -> None:
        """After `drain`: call `on_revoked` or `on_lost`, and `cleanup`, if their counterparts were called."""
        await self.revoked(partitions, self._limits)
        if "setup" in self._begun:
            await self._last_call(partial(self._handler.cleanup, self._session), "cleanup", self._limits)

    async def _begin(self, call: Call, what: str) -> None:
        """Run a method in its task. If the task is cancelled before its first step, the method has not begun.

        The method is called here, not by the session, so that a signature error fails like any other exception.
        """
        _CALLER.set(self._token)
        self._begun.add(what)
        await call()

    async def _last_call(self, call: Call, what: str, limits: EndLimits) -> None:
        """Call a hook after the drain of its claims, with time of its own that earlier calls cannot use up."""
        tasks = HandlerTasks(self._session.group_id, is_after_drain=True)
        tasks.limit(limits.hook_seconds)
        await self._call(call, what, tasks)

    async def _call(self, call: Call, what: str, tasks: HandlerTasks) -> bool:
        """Run a hook of the handler as one of `tasks`; False if it failed or the session has ended."""
        self._waiting_since = asyncio.get_running_loop().time()
        task = tasks.start(self._begin(call, what), what)
        await self._wait(tasks)
        if task.cancelled():
            if not self._session.ended:
                self._on_failure(asyncio.CancelledError(f"{what} was cancelled by its handler"), what)
        elif (error := task.exception()) is not None:
            name = type(self._handler).__name__
            add_note(error, f"raised by {what} of {name}, group {self._session.group_id!r}")
            self._on_failure(error, f"{what} raised")
        return not self._session.ended

    async def _wait(self, tasks: HandlerTasks) -> None:
        """Wait for tasks; `limit` finds them for so long."""
        self._waited_for.append(tasks)
        try:
            await tasks.wait()
        finally:
            self._waited_for.remove(tasks)

    def _on_claim_done(self, claim: Claim, task: asyncio.Task[None]) -> None:
        group_id = self._session.group_id
        if task.cancelled():
            if not claim.ended:
                error = asyncio.CancelledError(f"consume_claim of {claim.tp} was cancelled by its handler")
                self._on_failure(error, "consume_claim was cancelled")
        elif (raised := task.exception()) is not None:
            place = f"at offset {claim.next_mark}, the first not marked (next to read: {claim.position})"
            add_note(raised, f"raised by consume_claim of {claim.tp} {place}, group {group_id!r}")
            self._on_failure(raised, f"consume_claim of {claim.tp} raised {place}")
        elif not claim.ended:
            text = f"consume_claim of {claim.tp} returned although its claim is live"
            self._state.end(ClaimReturned(text))
            # after the end: a program's log filter that raises must not keep the session alive
            _log.warning("group %s: %s; the session ends for all its claims", group_id, text)


# --- time limits ------------------------------------------------------------------------------------------------------

RESERVE_SHARE: Final = 0.2
"""Share of the shutdown time that is reserved for the phases after the handlers."""
RESERVE_MAX: Final = 5.0
"""Most seconds of the reserve."""
MIN_RESERVE_SHARE: Final = 1 / 6
"""Least share of the reserve for each phase, even if a handler that swallowed its cancellation made it late."""
MIN_HANDLER_SHARE: Final = 0.25
"""Least share of `rebalance_timeout` until the deadline, if the last successful heartbeat is too long ago."""


def reserve_for(timeout: float) -> float:
    """Return the seconds of a time limit reserved for the hooks, the last commit, and the LeaveGroup or JoinGroup."""
    return min(timeout * RESERVE_SHARE, RESERVE_MAX)


class EndLimits:
    """The deadline of a session's shutdown, brought forward by every more urgent cause.

    - Rebalanced: the coordinator waits for `rebalance_timeout` from the start of the rebalance, which was after the
      last successful heartbeat was sent (`last_stable_sent_at()`). The deadline counts from that heartbeat, so that
      the member rejoins before the coordinator removes it.
    - GroupClosed, CallerCancelled: `close_timeout` from now, for handlers, hooks, commit and LeaveGroup together.
    - any other cause: `rebalance_timeout` from now.

    Handlers must end before the deadline by the reserve (a fifth of the time, at most 5 s). Half of the reserve is for
    the hooks, a quarter for the commit, the rest for what follows.

    A revocation while the session goes on has limits of its own, `within` those of the session: if it ends in that
    time, the smaller of both count.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        last_stable_sent_at: Callable[[], float],
        within: EndLimits | None = None,
    ) -> None:
        self._config = config
        self._last_stable_sent_at = last_stable_sent_at
        self._within = within
        self.ending_since = float("inf")
        """Loop time of the first cause."""
        self.deadline = float("inf")
        """Loop time at which the shutdown should be complete."""
        self._reserve = 0.0  # seconds

    def add_cause(self, cause: SessionEnd) -> None:
        """Bring the deadline forward for this cause, the first or a further one."""
        config, now = self._config, asyncio.get_running_loop().time()
        total = config.rebalance_timeout
        if isinstance(cause, (GroupClosed, CallerCancelled)):
            total = config.close_timeout
            deadline = now + total
        elif isinstance(cause, Rebalanced):
            deadline = max(self._last_stable_sent_at() + total, now + total * MIN_HANDLER_SHARE)
        else:
            deadline = now + total
        self.ending_since = min(self.ending_since, now)
        if deadline < self.deadline:
            self.deadline, self._reserve = deadline, reserve_for(total)

    @property
    def handler_seconds(self) -> float:
        """Seconds from now until handlers are cancelled; at once if 0 or less."""
        left = self.deadline - self._reserve - asyncio.get_running_loop().time()
        return left if self._within is None else min(left, self._within.handler_seconds)

    @property
    def hook_seconds(self) -> float:
        """Seconds for `on_revoked`, `on_lost` and `cleanup` if they begin now."""
        return self._left(1 / 2)

    @property
    def commit_seconds(self) -> float:
        """Seconds for the last commit if it begins now."""
        return self._left(1 / 4)

    def _left(self, kept: float) -> float:
        now = asyncio.get_running_loop().time()
        left = max(self.deadline - self._reserve * kept - now, self._reserve * MIN_RESERVE_SHARE)
        return left if self._within is None else min(left, self._within._left(kept))


class HandlerTasks:
    """Tasks that are cancelled once each at a common deadline."""

    def __init__(self, group_id: str, *, is_after_drain: bool = False) -> None:
        self._group_id = group_id
        self.is_after_drain = is_after_drain
        """Whether they are hooks after the drain of their claims, so that their deadline is a later one."""
        self._tasks: dict[asyncio.Task[None], str] = {}  # with their names, in order of start
        self._timer: asyncio.TimerHandle | None = None  # for the deadline
        self._expired = False  # whether the deadline has passed
        self.cancel_at = float("inf")
        """Loop time of the cancellation; infinity without a limit."""

    @property
    def running(self) -> list[str]:
        """The names of the tasks that have not ended, oldest first."""
        return [name for task, name in self._tasks.items() if not task.done()]

    def start(
        self,
        call: Coroutine[Any, Any, None],
        name: str,
        on_done: Callable[[asyncio.Task[None]], None] | None = None,
    ) -> asyncio.Task[None]:
        """Run a coroutine in a task, which is cancelled at once if the deadline has passed."""
        task = asyncio.create_task(call, name=f"{self._group_id}: {name}")
        self._tasks[task] = name
        if on_done is not None:
            task.add_done_callback(on_done)
        if self._expired:
            task.cancel()
        return task

    def split_off(self, names: Collection[str]) -> HandlerTasks:
        """Move the tasks with these names to a new object, with a deadline of its own from now on."""
        others = HandlerTasks(self._group_id)
        for task in [task for task, name in self._tasks.items() if name in names]:
            others._tasks[task] = self._tasks.pop(task)
        return others

    def limit(self, seconds: float) -> None:
        """Cancel the tasks that still run in `seconds`. A later call can only bring the deadline forward.

        With 0 they are cancelled before this returns: a handler whose iterator ends in the same step must receive its
        one cancellation in the iterator, not afterwards in its `finally`.
        """
        if self._expired:
            return
        if seconds <= 0:
            self._expire()
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self.cancel_at = when
            self._timer = loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self.cancel_at = min(self.cancel_at, asyncio.get_running_loop().time())
        for task in self._tasks:
            if not task.done():
                task.cancel()

    async def wait(self) -> None:
        """Wait until every task has ended. A task that goes on after its cancellation is named in the log."""
        while pending := {task for task in self._tasks if not task.done()}:
            await asyncio.wait(pending, timeout=REMINDER)
            if self._expired:
                for task in pending:
                    if not task.done():
                        # a program's log filter that raises must not end the wait: the partitions are still in use
                        with contextlib.suppress(Exception):
                            _log.warning("%s was cancelled, but is still running", task.get_name())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

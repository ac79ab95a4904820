"""Call a handler's methods for one session: in pairs, each in its own task and within its time limit (`EndLimits`).

The tasks are plain asyncio tasks that are cancelled at most once and always waited for. They never run inside a
cancelled anyio scope: such a scope cancels every later await again, so that the `finally` blocks of a handler could not
await anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

from asyncgroup.errors import (
    CallerCancelled,
    ClaimReturned,
    HandlerCancelled,
    HookTimeout,
    SessionEnd,
    SessionFailed,
)
from asyncgroup.group.claim import Claim
from asyncgroup.group.end_limits import EndLimits
from asyncgroup.group.handler import Handler
from asyncgroup.group.handler_tasks import HandlerTasks
from asyncgroup.group.member_health import RunningCalls
from asyncgroup.group.session import Session
from asyncgroup.lifecycle import add_note
from asyncgroup.model import TopicPartition

__all__ = ["HandlerCalls"]

_log = logging.getLogger("asyncgroup.group")

Call: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_CALLER: Final = ContextVar[object]("asyncgroup: the session of a handler", default=None)
"""In a handler's tasks and in those that they start: the token of its HandlerCalls."""

CLAIM: Final = "claim "
"""Prefix of the names of `consume_claim` tasks."""
INF: Final = float("inf")


class HandlerCalls:
    """Calls the methods of `handler` for one session; `on_failure(error, what)` is called with what they raise.

    `limits` holds the deadlines that apply once the session ends; `on_timeout(error)` is called for a hook that was cancelled
    at its deadline.
    """

    def __init__(
        self,
        handler: Handler,
        session: Session,
        limits: EndLimits,
        on_failure: Callable[[BaseException, str], None],
        on_timeout: Callable[[HookTimeout], None],
    ) -> None:
        self._handler = handler
        self._session = session
        self._limits = limits
        self._on_failure = on_failure
        self._on_timeout = on_timeout
        self._state = session._state
        # `consume_claim` of all claims that are not being revoked
        self._claims = HandlerTasks(session.group_id)
        # everything that `limit` has to find: these, claims that drain, and hooks
        self._waited_for = [self._claims]
        # `setup` or `on_assigned` while it runs
        self._starting: HandlerTasks | None = None
        self._revocation: EndLimits | None = None  # of a revocation that waits for it
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
        running = [(name, tasks) for tasks in self._waited_for for name in tasks.running]
        if not self._session.ended:
            running = [(name, tasks) for name, tasks in running if not name.startswith(CLAIM)]
        cancel_at = min((tasks.cancel_at for _, tasks in running), default=INF)
        names = [name for name, _ in running]
        if not self._session.ended:
            return RunningCalls(names, self._waiting_since, cancel_at)
        labels = [
            f"handler of {name.removeprefix(CLAIM)}" if name.startswith(CLAIM) else name for name in names
        ]
        since = self._waiting_since if self._drained else self._limits.ending_since
        return RunningCalls(labels, since, cancel_at)

    # --- the calls ----------------------------------------------------------------------------------------------

    async def set_up(self) -> bool:
        """Call `setup`; False if it failed or the session has ended."""
        return await self._first_call(partial(self._handler.setup, self._session), "setup")

    async def assigned(self, partitions: list[TopicPartition]) -> bool:
        """Call `on_assigned`; False if it failed or the session has ended."""
        return await self._first_call(partial(self._on_assigned, partitions), "on_assigned")

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

    @contextlib.contextmanager
    def limited_start(self, limits: EndLimits) -> Iterator[None]:
        """Limit `setup` and `on_assigned` during a revocation, which has to wait for them."""
        self._revocation = limits
        if self._starting is not None:
            self._starting.limit(limits.hook_seconds)  # handlers may have used up their own time
        try:
            yield
        finally:
            self._revocation = None

    async def revoked(self, partitions: list[TopicPartition], limits: EndLimits) -> bool:
        """Call `on_revoked` or `on_lost` with those partitions that `on_assigned` was called with.

        While the session goes on, a hook that ignores its cancellation is not waited for; the end of the session waits for
        it. Returns whether one was called, has succeeded, and the session goes on.
        """
        handler, session = self._handler, self._session
        if not (known := [tp for tp in partitions if tp in self._assigned]):
            return False
        self._assigned.difference_update(known)
        is_lost = self._state.is_lost
        hook, what = (handler.on_lost, "on_lost") if is_lost else (handler.on_revoked, "on_revoked")
        return await self._last_call(partial(hook, session, known), what, limits)

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

    async def _first_call(self, call: Call, what: str) -> bool:
        """Call a hook before claims start; False if it failed or the session has ended.

        It has a limit only while a revocation or the end of the session waits for it. If it does not end in time, the session
        ends: the handler of the other partitions may rely on what the hook has not done.
        """
        tasks = self._starting = HandlerTasks(self._session.group_id)
        if self._revocation is not None:
            tasks.limit(self._revocation.hook_seconds)
        seconds, group_id = self._limits.rebalance_timeout, self._session.group_id
        text = "group %s: %s has been running for %g s; claims wait for it"
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, _log.warning, text, group_id, what, seconds)
        try:
            return await self._call(call, what, tasks)
        finally:
            timer.cancel()
            self._starting = None

    async def _last_call(self, call: Call, what: str, limits: EndLimits) -> bool:
        """Call a hook after the drain of its claims, with time of its own that earlier calls cannot use up."""
        tasks = HandlerTasks(self._session.group_id, is_after_drain=True)
        tasks.limit(limits.hook_seconds)
        limit = None if self._session.ended else limits.commit_seconds
        return await self._call(call, what, tasks, limit)

    async def _call(self, call: Call, what: str, tasks: HandlerTasks, limit: float | None = None) -> bool:
        """Run a hook of the handler as one of `tasks`; False if it failed or the session has ended.

        If it still runs after `limit` seconds, `drain` waits for it instead.
        """
        self._waiting_since = began = asyncio.get_running_loop().time()
        task = tasks.start(self._begin(call, what), what)
        self._waited_for.append(tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await tasks.wait()
        if task.done():
            self._waited_for.remove(tasks)
        else:
            task.add_done_callback(partial(self._on_late_end, tasks, what))
        if tasks.is_expired and (not task.done() or task.cancelled()):
            seconds = asyncio.get_running_loop().time() - began
            error = HookTimeout(self._session.group_id, what, seconds, still_runs=not task.done())
            self._on_expired(error, is_after_drain=tasks.is_after_drain)
            return False
        self._report(task, what)
        return not self._session.ended

    def _on_late_end(self, tasks: HandlerTasks, what: str, task: asyncio.Task[None]) -> None:
        """A hook has ended that had ignored its cancellation; what it raises is reported all the same."""
        self._waited_for.remove(tasks)
        if not task.cancelled():
            self._report(task, what)

    def _on_expired(self, error: HookTimeout, *, is_after_drain: bool) -> None:
        """A hook was cancelled at its deadline: one before the start of claims ends the session."""
        if is_after_drain:
            self._on_timeout(error)
        elif not self._session.ended:  # else it was cancelled because the session ends
            self._on_timeout(error)
            self._state.end(SessionFailed(str(error)))

    def _report(self, task: asyncio.Task[None], what: str) -> None:
        """Report what a hook has raised."""
        group_id = self._session.group_id
        if task.cancelled():
            if not self._session.ended:
                self._on_failure(HandlerCancelled(f"group {group_id!r}: {what} raised CancelledError"), what)
        elif (error := task.exception()) is not None:
            add_note(error, f"raised by {what} of {type(self._handler).__name__}, group {group_id!r}")
            self._on_failure(error, f"{what} raised")

    def _on_claim_done(self, claim: Claim, task: asyncio.Task[None]) -> None:
        group_id = self._session.group_id
        if task.cancelled():
            if not claim.ended:
                text = f"group {group_id!r}: consume_claim of {claim.tp} raised CancelledError"
                self._on_failure(HandlerCancelled(text), "consume_claim was cancelled")
        elif (raised := task.exception()) is not None:
            place = f"at offset {claim.next_mark}, the first not marked (next to read: {claim.position})"
            add_note(raised, f"raised by consume_claim of {claim.tp} {place}, group {group_id!r}")
            self._on_failure(raised, f"consume_claim of {claim.tp} raised {place}")
        elif not claim.ended:
            text = f"consume_claim of {claim.tp} returned although its claim is live"
            self._state.end(ClaimReturned(text))
            # after the end: a program's log filter that raises must not keep the session alive
            _log.warning("group %s: %s; the session ends for all its claims", group_id, text)

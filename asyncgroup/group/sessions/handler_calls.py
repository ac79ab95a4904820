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
from asyncgroup.group.health.member_health import RunningCalls
from asyncgroup.group.sessions.claim import Claim
from asyncgroup.group.sessions.end_limits import EndLimits
from asyncgroup.group.sessions.handler import Handler
from asyncgroup.group.sessions.handler_tasks import CallKind, HandlerTasks
from asyncgroup.group.sessions.session import Session
from asyncgroup.hooks import Hooks
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

    `limits` holds the deadlines that apply once the session ends; `on_timeout(error)` is called once for each hook that was
    cancelled at its deadline, or goes on after a cancellation.
    """

    def __init__(
        self,
        handler: Handler,
        session: Session,
        limits: EndLimits,
        on_timeout: Callable[[HookTimeout], None],
        hooks: Hooks,
    ) -> None:
        self._handler = handler
        self._session = session
        self._limits = limits
        self._on_timeout = on_timeout
        self._claim_hooks = hooks.with_listener(
            "on_handler_start", "on_handler_end", "on_process_start", "on_process_end"
        )
        self._state = session._inner
        # `consume_claim` of all claims that are not being revoked
        self._claims = HandlerTasks(session.group_id)
        # everything that `limit` has to find: these, claims that drain, and hooks
        self._waited_for = [self._claims]
        # `setup` or `on_assigned` while it runs
        self._starting: HandlerTasks | None = None
        self._revocation: EndLimits | None = None  # of a revocation that waits for it
        # partitions of calls of `on_assigned` without a call of `on_revoked` or `on_lost` so far
        self._assigned: set[TopicPartition] = set()
        self._begun: set[str] = set()  # names of the methods that have begun to run
        # a token instead of this object: timers and tasks that a handler starts keep their context beyond the session
        self._token = object()

    @property
    def is_caller(self) -> bool:
        """Whether the caller is a method of the handler, or a task or thread that one of them started."""
        return _CALLER.get() is self._token

    # --- time limits ------------------------------------------------------------------------------------------

    def limit(self, cause: SessionEnd) -> None:
        """Limit the running calls, because the session ends for `cause`.

        The most urgent of several causes counts. CallerCancelled cancels all calls at once, except the hooks after the drain,
        which keep their time.
        """
        limits = self._limits
        limits.add_cause(cause)
        for tasks in self._waited_for:
            if isinstance(cause, CallerCancelled) and tasks.kind is not CallKind.END:
                tasks.cancel()
            else:
                tasks.limit(limits.handler_seconds if tasks.kind is CallKind.CLAIM else limits.hook_seconds)

    @property
    def running_calls(self) -> list[RunningCalls]:
        """The calls that the session waits for: hooks while it begins or ends, `consume_claim` once it ends."""
        has_ended = self._session.ended
        waits_since = self._limits.ending_since if has_ended else -INF
        found = []
        for tasks in self._waited_for:
            is_claim = tasks.kind is CallKind.CLAIM
            names = [f"handler of {name.removeprefix(CLAIM)}" if is_claim else name for name in tasks.running]
            if names and (has_ended or not is_claim):
                found.append(RunningCalls(names, max(tasks.since, waits_since), tasks.cancel_at))
        return found

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
        if self._claim_hooks is None:
            call = partial(self._handler.consume_claim, self._session, claim)
        else:
            call = partial(self._consume_reported, claim, self._claim_hooks)
        self._claims.start(self._begin(call, what), what, partial(self._on_claim_done, claim))

    async def _consume_reported(self, claim: Claim, hooks: Hooks) -> None:
        """Call `consume_claim` between its two events, in the same task, so that they share their context variables."""
        session, state = self._session, claim._inner.consumer._inner
        hooks.emit("on_handler_start", session, claim)
        try:
            await self._handler.consume_claim(session, claim)
        except BaseException as error:
            state.end_processing(error)
            hooks.emit("on_handler_end", session, claim, error)
            raise
        state.end_processing()
        hooks.emit("on_handler_end", session, claim, None)

    async def drain_claims(self, claims: Iterable[Claim], limits: EndLimits) -> list[TopicPartition]:
        """Wait until the `consume_claim` of revoked claims has ended, while the session goes on with the others.

        They are cancelled after `limits.handler_seconds`. Returns the partitions whose handlers still run after
        `limits.hook_seconds`, when half of the reserve is left: the end of the session waits for them.
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
            self._starting.limit(limits.hook_seconds)
        try:
            yield
        finally:
            self._revocation = None

    async def revoked(self, partitions: list[TopicPartition], limits: EndLimits) -> None:
        """Call `on_revoked` or `on_lost` with those partitions that `on_assigned` was called with.

        While the session goes on, a hook that ignores its cancellation is not waited for; the end of the session waits for
        it.
        """
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
        tasks = self._starting = HandlerTasks(self._session.group_id, CallKind.START)
        if self._revocation is not None:
            tasks.limit(self._revocation.hook_seconds)
        seconds, group_id = self._limits.rebalance_timeout, self._session.group_id
        text = "group %s: %s has been running for %g s; claims wait for it"
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, _log.warning, text, group_id, what, seconds)
        try:
            return await self._call(call, what, tasks, lambda: self._revocation or self._limits)
        finally:
            timer.cancel()
            self._starting = None

    async def _last_call(self, call: Call, what: str, limits: EndLimits) -> None:
        """Call a hook after the drain of its claims, with a part of the reserve that earlier calls cannot use up."""
        tasks = HandlerTasks(self._session.group_id, CallKind.END)
        tasks.limit(limits.hook_seconds)
        await self._call(call, what, tasks, lambda: limits)

    async def _call(
        self, call: Call, what: str, tasks: HandlerTasks, limits: Callable[[], EndLimits]
    ) -> bool:
        """Run a hook of the handler as one of `tasks`; False if it failed or the session has ended.

        A hook that was cancelled and still runs when the last commit should be done is reported. Then only a revocation goes
        on without it, since the session lasts: `drain` waits for it instead.
        """
        task = tasks.start(self._begin(call, what), what)
        self._waited_for.append(tasks)
        ended_in_time = await tasks.wait_after_cancel(lambda: limits().commit_seconds)
        if not ended_in_time:
            self._on_timed_out(tasks, what, still_runs=True)
            if tasks.kind is CallKind.END and not self._session.ended:
                task.add_done_callback(partial(self._on_late_end, tasks, what))
                return False
            await tasks.wait()
        self._waited_for.remove(tasks)
        if tasks.is_expired and (task.cancelled() or task.exception() is None):
            if ended_in_time:  # also if it has returned: what it waited for was interrupted
                self._on_timed_out(tasks, what, still_runs=False)
            return False
        self._report(task, what)
        return not self._session.ended

    def _on_late_end(self, tasks: HandlerTasks, what: str, task: asyncio.Task[None]) -> None:
        """Report what a hook raises that has ended after it had ignored its cancellation."""
        self._waited_for.remove(tasks)
        if not task.cancelled():
            self._report(task, what)

    def _on_timed_out(self, tasks: HandlerTasks, what: str, *, still_runs: bool) -> None:
        """Report a hook that did not end in time; one before the start of claims ends the session."""
        seconds = tasks.cancel_at - tasks.since
        error = HookTimeout(self._session.group_id, what, seconds, still_runs=still_runs)
        self._on_timeout(error)
        if tasks.kind is CallKind.START and not self._session.ended:
            self._state.end(SessionFailed(str(error)))

    def _report(self, task: asyncio.Task[None], what: str) -> None:
        """Report what a hook has raised."""
        group_id = self._session.group_id
        if task.cancelled():
            if not self._session.ended:
                self._state.fail(HandlerCancelled(f"group {group_id!r}: {what} raised CancelledError"), what)
        elif (error := task.exception()) is not None:
            add_note(error, f"raised by {what} of {type(self._handler).__name__}, group {group_id!r}")
            self._state.fail(error, f"{what} raised")

    def _on_claim_done(self, claim: Claim, task: asyncio.Task[None]) -> None:
        group_id = self._session.group_id
        if task.cancelled():
            if not claim.ended:
                text = f"group {group_id!r}: consume_claim of {claim.tp} raised CancelledError"
                self._state.fail(HandlerCancelled(text), "consume_claim was cancelled")
        elif (raised := task.exception()) is not None:
            place = f"at offset {claim.next_mark}, the first not marked (next to read: {claim.position})"
            add_note(raised, f"raised by consume_claim of {claim.tp} {place}, group {group_id!r}")
            self._state.fail(raised, f"consume_claim of {claim.tp} raised {place}")
        elif not claim.ended:
            text = f"consume_claim of {claim.tp} returned although its claim is live"
            self._state.end(ClaimReturned(text))
            # after the end: a program's log filter that raises must not keep the session alive
            _log.warning("group %s: %s; the session ends for all its claims", group_id, text)

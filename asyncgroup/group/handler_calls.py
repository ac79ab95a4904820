"""Call a handler's methods for one session: in pairs, each in its own task and within its time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

from asyncgroup.errors import CallerCancelled, ClaimReturned, SessionEnd
from asyncgroup.group.claim import Claim
from asyncgroup.group.handler import Handler
from asyncgroup.group.handler_tasks import HandlerTasks
from asyncgroup.group.health import RunningCalls
from asyncgroup.group.limits import EndLimits
from asyncgroup.group.session import Session
from asyncgroup.lifecycle import add_note

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
        self._tasks = HandlerTasks(session.group_id)
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
        if self._drained:
            self._tasks.limit(limits.hook_seconds)
        else:
            self._tasks.limit(0.0 if isinstance(cause, CallerCancelled) else limits.handler_seconds)

    @property
    def running_calls(self) -> RunningCalls:
        """The calls that the session waits for: hooks while it begins or ends, `consume_claim` once it ends."""
        running = self._tasks.running
        if not self._session.ended:
            return RunningCalls(
                [name for name in running if not name.startswith(CLAIM)], self._waiting_since, INF
            )
        labels = [
            f"handler of {name.removeprefix(CLAIM)}" if name.startswith(CLAIM) else name for name in running
        ]
        since = self._waiting_since if self._drained else self._limits.ending_since
        return RunningCalls(labels, since, self._tasks.cancel_at)

    # --- the calls ----------------------------------------------------------------------------------------------

    async def begin(self) -> bool:
        """Call `setup` and `on_assigned`; False if one failed or the session has ended."""
        handler, session = self._handler, self._session
        if not await self._call(partial(handler.setup, session), "setup"):
            return False
        return await self._call(partial(handler.on_assigned, session, session.partitions), "on_assigned")

    def start_claim(self, claim: Claim) -> None:
        """Call `consume_claim` in a task that `drain` waits for."""
        what = f"{CLAIM}{claim.tp}"
        call = partial(self._handler.consume_claim, self._session, claim)
        self._tasks.start(self._begin(call, what), what, partial(self._on_claim_done, claim))

    async def drain(self) -> None:
        """Wait until every `consume_claim` has ended."""
        await self._tasks.wait()
        self._drained = True

    async def end(self) -> None:
        """After `drain`: call `on_revoked` or `on_lost`, and `cleanup`, if their counterparts were called."""
        handler, session = self._handler, self._session
        partitions = [claim.tp for claim in session.claims]
        if partitions and "on_assigned" in self._begun:
            hook = handler.on_lost if session.is_lost else handler.on_revoked
            what = "on_lost" if session.is_lost else "on_revoked"
            await self._last_call(partial(hook, session, partitions), what)
        if "setup" in self._begun:
            await self._last_call(partial(handler.cleanup, session), "cleanup")

    async def _begin(self, call: Call, what: str) -> None:
        """Run a method in its task. If the task is cancelled before its first step, the method has not begun.

        The method is called here, not by the session, so that a signature error fails like any other exception.
        """
        _CALLER.set(self._token)
        self._begun.add(what)
        await call()

    async def _last_call(self, call: Call, what: str) -> None:
        """Call a hook after the drain, with time of its own that earlier calls cannot use up."""
        self._tasks = HandlerTasks(self._session.group_id)
        self._tasks.limit(self._limits.hook_seconds)
        await self._call(call, what)

    async def _call(self, call: Call, what: str) -> bool:
        """Run a hook of the handler; False if it failed or the session has ended."""
        tasks = self._tasks
        self._waiting_since = asyncio.get_running_loop().time()
        task = tasks.start(self._begin(call, what), what)
        await tasks.wait()
        if task.cancelled():
            if not self._session.ended:
                self._on_failure(asyncio.CancelledError(f"{what} was cancelled by its handler"), what)
        elif (error := task.exception()) is not None:
            name = type(self._handler).__name__
            add_note(error, f"raised by {what} of {name}, group {self._session.group_id!r}")
            self._on_failure(error, f"{what} raised")
        return not self._session.ended

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
            _log.warning("group %s: %s; the session ends for all its claims", group_id, text)
            self._session.end(ClaimReturned(text))

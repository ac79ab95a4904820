"""HeartbeatThread: a thread that notices when the event loop of a group member is blocked, and then sends its heartbeats.

A handler that computes or waits without `await` blocks the event loop, and with it the member's own heartbeats. The thread
has its own event loop. It asks the member's loop for a sign of life at least once a second; without one ThreadHeartbeats
send the heartbeats until the loop runs again, and the place where the loop is blocked is logged. As long as the loop runs the
thread sends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final
from weakref import WeakKeyDictionary

from asyncgroup.group.liveness.thread_heartbeats import ThreadHeartbeats
from asyncgroup.lifecycle import cancel_and_wait, start_task, wait_within
from asyncgroup.log_events import log_fields
from asyncgroup.off_loop import is_virtual

__all__ = ["BLOCKED_SECONDS", "HeartbeatThread", "is_first_line"]

_log = logging.getLogger("asyncgroup.group")

BLOCKED_SECONDS: Final = 1.0
"""For how long an event loop may run nothing before that is reported, and the longest time between two signs of life."""

MAX_FRAMES: Final = 4
"""The number of innermost calls that are logged for a blocked event loop."""

_lock: Final = threading.Lock()  # groups log from their heartbeat threads
_logged_at: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, float]] = WeakKeyDictionary()


def is_first_line(loop: asyncio.AbstractEventLoop, since: float, now: float) -> bool:
    """Return whether to log, at loop time `now`, that the loop has run nothing since `since`.

    A line that was logged after `since` is about the same block. Only its group is named, as any task of the program may
    be what blocks the loop.
    """
    with _lock:
        if since < _logged_at.get(loop, float("-inf")):
            return False
        _logged_at[loop] = now
        return True


class HeartbeatThread:
    """The heartbeat thread of one group object.

    `make_heartbeats(blocked_since)` is called in the thread when the event loop is blocked, with the loop time at which it last
    ran; it returns None if there is no member to keep in a group. `on_unblocked(seconds)` is called on the event loop, when it
    runs again. `period()` are the seconds between two signs of life.
    """

    def __init__(
        self,
        group_id: str,
        make_heartbeats: Callable[[float], ThreadHeartbeats | None],
        on_unblocked: Callable[[float], None],
        period: Callable[[], float],
    ) -> None:
        self._group_id = group_id
        self._make_heartbeats = make_heartbeats
        self._on_unblocked = on_unblocked
        self._period = period
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        """The member's event loop."""
        self._loop_thread_id = 0
        self._own_loop: asyncio.AbstractEventLoop
        self._signs_asked = 0
        self._signs_given = 0
        """The number of the last sign of life that the member's loop has given."""

    def __repr__(self) -> str:
        return f"<HeartbeatThread of {self._group_id!r}: {'runs' if self.is_running else 'not running'}>"

    @property
    def is_running(self) -> bool:
        """Whether the thread watches the event loop."""
        return self._thread is not None

    def start(self) -> bool:
        """Start the thread, if it does not run yet; return whether the event loop is watched.

        In virtual time True is returned without a thread, since no handler blocks the clock. If the process cannot have
        another thread or event loop, a warning is logged, and False returned: the member goes on without the thread.
        """
        loop = asyncio.get_running_loop()
        if self._thread is not None or is_virtual(loop):
            return True
        self._loop, self._loop_thread_id = loop, threading.get_ident()
        self._stop, self._unblocked, self._stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        # a daemon: a program that does not close its group must be able to end
        thread = threading.Thread(
            target=self._main, name=f"asyncgroup heartbeats {self._group_id}", daemon=True
        )
        try:
            with contextlib.ExitStack() as undo:
                self._own_loop = asyncio.new_event_loop()
                undo.callback(self._own_loop.close)
                thread.start()
                undo.pop_all()
        except (OSError, RuntimeError) as error:
            _log.warning("group %s: there is no heartbeat thread: %s", self._group_id, error)
            return False
        self._thread = thread
        return True

    async def stop(self) -> None:
        """End the thread, and wait for its end."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._call(self._own_loop, self._stop.set)
            await self._stopped.wait()
            thread.join()

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
        """Call the function on a loop that may have ended."""
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function)

    # --- on the member's event loop -------------------------------------------------------------------------------

    def _sign(self, number: int) -> None:
        """Give a sign of life."""
        self._signs_given = number

    def _end_block(self, since: float) -> None:
        """The first thing that runs after a block."""
        self._call(self._own_loop, self._unblocked.set)
        seconds = self._loop.time() - since
        if seconds >= BLOCKED_SECONDS:
            self._on_unblocked(seconds)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._own_loop)
        try:
            self._own_loop.run_until_complete(self._watch())
        except Exception as error:  # noqa: BLE001  logged: no task waits for the thread
            # without its loop the program has ended, perhaps without closing the group
            if not self._loop.is_closed():
                _log.error("group %s: the heartbeat thread failed", self._group_id, exc_info=error)
        finally:
            self._own_loop.close()
            self._call(self._loop, self._stopped.set)

    async def _watch(self) -> None:
        time = self._own_loop.time
        while True:
            asked_at = time()
            self._signs_asked += 1
            self._loop.call_soon_threadsafe(self._sign, self._signs_asked)
            if await wait_within(self._stop, self._period()):
                return
            if self._signs_given < self._signs_asked:
                await self._bridge(asked_at)

    async def _bridge(self, since: float) -> None:
        """Send the heartbeats of the member until its event loop runs again; log where it is blocked."""
        self._unblocked.clear()
        self._loop.call_soon_threadsafe(self._end_block, since)
        sending = start_task(self._send(since))
        try:
            if not await wait_within(self._unblocked, since + BLOCKED_SECONDS - self._own_loop.time()):
                self._log_block(since, is_sending=not sending.done())
                # a loop that is closed now never runs again
                while not (self._loop.is_closed() or await wait_within(self._unblocked, BLOCKED_SECONDS)):
                    pass
        finally:
            await cancel_and_wait(sending)

    async def _send(self, since: float) -> None:
        """Send heartbeats for the member, if there is one. After a failure the thread goes on, for the next block."""
        try:
            if (heartbeats := self._make_heartbeats(since)) is not None:
                await heartbeats.run()
        except Exception as error:  # noqa: BLE001  logged: no task waits for the thread
            _log.error("group %s: the heartbeat thread failed", self._group_id, exc_info=error)

    def _log_block(self, since: float, *, is_sending: bool) -> None:
        now = self._own_loop.time()
        if not is_first_line(self._loop, since, now):
            return
        _log.warning(
            "group %s: the event loop is blocked for %.1f s now, %s%s",
            self._group_id,
            now - since,
            _describe_stack(sys._current_frames().get(self._loop_thread_id)),
            "; heartbeats go on from a thread" if is_sending else "",
            extra=log_fields("loop_blocked", group=self._group_id),
        )


def _describe_stack(frame: FrameType | None) -> str:
    """Return the innermost calls of a stack, the innermost first."""
    calls: list[str] = []
    while frame is not None and len(calls) < MAX_FRAMES:
        code = frame.f_code
        calls.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return f"in {', called by '.join(calls)}" if calls else "where is unknown"

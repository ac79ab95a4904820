"""Starts that block for seconds: their time limit, and how an event loop waits for them in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncgroup.errors import AsyncGroupError, UsageError

__all__ = ["refuse_frozen", "start_in_thread", "time_limit"]


@contextmanager
def time_limit(seconds: float) -> Iterator[threading.Event]:
    """Limit a block that polls, such as one that waits for a process: yield an event that is set after `seconds`.

    A polling loop sleeps with `expired.wait(pause)`, which returns True once the limit has passed, so that it need not
    read a clock.
    """
    expired = threading.Event()
    timer = threading.Timer(seconds, expired.set)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


async def start_in_thread(start: Callable[[threading.Event], None], close: Callable[[], None]) -> None:
    """Run `start` in a thread. If the caller is cancelled, abandon the start, and `close` what it has started."""
    abandoned = threading.Event()
    starting = asyncio.ensure_future(asyncio.to_thread(start, abandoned))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        # a thread cannot be cancelled: it gives up when `abandoned` is set, and cleans up what it has started
        abandoned.set()
        with contextlib.suppress(AsyncGroupError):
            await starting
            close()
        raise


def refuse_frozen(server: str) -> None:
    """Raise UsageError in a frozen program: the watchdog would run the program once more."""
    if getattr(sys, "frozen", False):
        raise UsageError(f"a frozen program cannot start {server}: its watchdog needs a Python interpreter")

"""One log line for each time that an event loop is blocked, however many groups run on it."""

from __future__ import annotations

import asyncio
import threading
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["is_first_line"]

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

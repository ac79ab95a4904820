"""A time limit for blocking code that polls, such as the helpers that wait for a process of the operating system."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["time_limit"]


@contextmanager
def time_limit(seconds: float) -> Iterator[threading.Event]:
    """Yield an event that is set after `seconds`.

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

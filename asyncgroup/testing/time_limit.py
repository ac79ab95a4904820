"""Time limits for helpers that wait for a process of the operating system, where no event loop runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["time_limit"]


@contextmanager
def time_limit(seconds: float) -> Iterator[threading.Event]:
    """An event that is set after `seconds`.

    A loop paces itself by `expired.wait(pause)`, which returns True once the limit has passed; no clock is
    read.
    """
    expired = threading.Event()
    timer = threading.Timer(seconds, expired.set)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()

"""Signal handlers for asyncio programs, also where event loops don't support them (Windows)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

__all__ = ["STOP_SIGNALS", "on_signals"]

STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
"""The signals that ask a program to end; SIGBREAK (Ctrl-Break) exists on Windows only."""


@contextmanager
def on_signals(
    call: Callable[[signal.Signals], object], numbers: tuple[signal.Signals, ...] = STOP_SIGNALS
) -> Iterator[Callable[[], None]]:
    """Call `call(number)` on the running event loop for each of these signals while the block runs.

    Yields a function that restores the previous handlers before the end of the block. Outside of the main thread, where
    Python allows no signal handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}

    def from_python(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(call, signal.Signals(number))

    def install(number: signal.Signals) -> None:
        try:
            loop.add_signal_handler(number, call, number)
        except NotImplementedError:
            # Python runs this handler in the main thread; call_soon_threadsafe() wakes an event loop that is waiting
            signal.signal(number, from_python)

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            # None: the handler was not installed by Python and cannot be installed again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    try:
        for number in numbers:
            install(number)
        yield restore
    finally:
        restore()

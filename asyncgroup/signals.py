"""Signals for asyncio programs, also where event loops take no signal handlers (Windows)."""

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
"""The signals that ask a program to end; SIGBREAK is Ctrl-Break, which only Windows has."""


@contextmanager
def on_signals(
    call: Callable[[signal.Signals], object], numbers: tuple[signal.Signals, ...] = STOP_SIGNALS
) -> Iterator[Callable[[], None]]:
    """Run the block with `call(number)` being called on the running event loop for each of these signals.

    Yields a function that gives the signals back early: from then on they have the effect that they had before the
    block. In a thread other than the main one, where Python takes no signal handlers, nothing is called.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}

    def from_python(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(call, signal.Signals(number))

    def take(number: signal.Signals) -> None:
        try:
            loop.add_signal_handler(number, call, number)
        except NotImplementedError:
            # Python calls this between two steps of the main thread; call_soon_threadsafe() wakes a loop that waits.
            signal.signal(number, from_python)

    def give_back() -> None:
        while before:
            number, handler = before.popitem()
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            # None: the handler was not installed by Python and cannot be installed again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    try:
        for number in numbers:
            take(number)
        yield give_back
    finally:
        give_back()

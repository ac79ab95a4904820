"""Signal handlers for asyncio programs, with every event loop and while a task blocks it."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

__all__ = ["STOP_SIGNALS", "on_signals"]

STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
"""The signals that ask a program to end; SIGBREAK (Ctrl-Break) exists on Windows only."""


@contextmanager
def on_signals(
    call: Callable[[signal.Signals], object],
    numbers: tuple[signal.Signals, ...] = STOP_SIGNALS,
    *,
    handled: int | None = None,
    then_previous: bool = False,
) -> Iterator[Callable[[], None]]:
    """Call `call(number)` on the running event loop for each of these signals while the block runs.

    Only the first `handled` signals, if that is given; a later one ends the process at once, as without any handler. With
    `then_previous` the previous handler is called once in between, such as that of `asyncio.run`, which cancels the main
    task on Ctrl-C. Signals are counted where they arrive, so this is also true while a task blocks the event loop and
    `call` has to wait.

    Yields a function that restores the previous handlers before the end of the block. Outside of the main thread, where
    Python allows no signal handlers, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    left = handled

    # not `add_signal_handler`: its handlers wait for the event loop, so that no signal would end a program whose task
    # blocks it. Python runs this one in the main thread between two instructions
    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal left
        loop.call_soon_threadsafe(call, signal.Signals(number))  # wakes up an event loop that waits
        if left is not None:
            left -= 1
            if left == 0:
                take_no_more()

    def take_no_more() -> None:
        for number, handler in before.items():
            last = (
                functools.partial(_once, handler) if then_previous and callable(handler) else signal.SIG_DFL
            )
            signal.signal(number, last)

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            # None: the handler was not installed by Python and cannot be installed again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    try:
        for number in numbers:
            signal.signal(number, on_signal)
        yield restore
    finally:
        restore()


def _once(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
    """Call a handler; the next signal ends the process."""
    signal.signal(number, signal.SIG_DFL)
    handler(number, frame)

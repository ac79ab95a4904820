"""Signal handlers for asyncio programs, with every event loop and while a task blocks it."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

    # not `add_signal_handler` alone: its handlers wait for the event loop, so that no signal would end a program whose
    # task blocks it. Python runs this one in the main thread between two instructions
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

    wakes_up: set[signal.Signals] = set()

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            if number in wakes_up:
                loop.remove_signal_handler(number)
            # None: the handler was not installed by Python and cannot be installed again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    try:
        has_wakeup_fd = _has_wakeup_fd()
        for number in numbers:
            if not has_wakeup_fd and _wakes_up(loop, number):
                wakes_up.add(number)
            signal.signal(number, on_signal)
        yield restore
    finally:
        restore()


def _has_wakeup_fd() -> bool:
    """Return whether each signal writes to a file descriptor already, which wakes up the event loop.

    uvloop has one, as Windows' event loop, and asyncio's others while they have a handler: one of the user or of an outer
    `on_signals`, which must not be replaced. Python has no other way to read it.
    """
    fd = signal.set_wakeup_fd(-1)
    with suppress(ValueError, OSError):  # it was closed
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        return fd != -1
    return False


def _wakes_up(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> bool:
    """Let a signal wake up the event loop, by a handler that does nothing; return False if the loop has no handlers.

    Without it a signal that another thread receives, or that comes just before the loop waits, is not handled until the
    loop has something else to do.
    """
    with suppress(NotImplementedError, RuntimeError):
        loop.add_signal_handler(number, _do_nothing)
        return True
    return False


def _do_nothing() -> None:
    """See `_wakes_up`."""


def _once(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
    """Call a handler; the next signal ends the process."""
    signal.signal(number, signal.SIG_DFL)
    handler(number, frame)

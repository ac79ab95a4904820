"""The exception that the caller handles: the reason of a nack in its `except` block."""

from __future__ import annotations

import asyncio
import inspect
import sys
from types import FrameType
from typing import Final

__all__ = ["handled_exception"]

_CAN_AWAIT: Final = (
    inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE | inspect.CO_GENERATOR
)


def handled_exception(depth: int = 1) -> BaseException | None:
    """Return the exception whose `except` block the caller is in, or a function that calls or awaits it; None without one.

    `depth` is the number of frames up to the caller: 1 for the function that calls this one.

    `sys.exception()` also finds that of a thread whose `except` block runs the event loop, as in a program that restarts
    after an error. No frame of this task handles it: above the caller these are plain functions at first, then coroutines only.
    Outside of a task, as in a callback of the event loop, only the caller itself counts.
    """
    error = sys.exception()
    if error is None or error.__traceback__ is None:
        return None
    handler = error.__traceback__.tb_frame
    frame: FrameType | None = sys._getframe(depth)
    may_be_plain = _is_in_task()
    while frame is not None and frame is not handler:
        is_coroutine = bool(frame.f_code.co_flags & _CAN_AWAIT)
        if not is_coroutine and not may_be_plain:
            return None
        may_be_plain = may_be_plain and not is_coroutine
        frame = frame.f_back
    return None if frame is None else error


def _is_in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no event loop runs
        return False

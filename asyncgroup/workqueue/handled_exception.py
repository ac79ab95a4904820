"""The exception that the caller of a coroutine handles: the reason of a nack in its `except` block."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Final

__all__ = ["handled_exception"]

_CAN_AWAIT: Final = (
    inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE | inspect.CO_GENERATOR
)


def handled_exception(depth: int = 1) -> BaseException | None:
    """Return the exception that is handled in the coroutines that await the caller of this function; None if there is none.

    `depth` is 1 if the caller is a coroutine, 2 if it is a function called by one.

    `sys.exception()` also finds that of a thread whose `except` block runs the event loop, as in a program that restarts
    after an error: it is not handled by a frame of this task.
    """
    error = sys.exception()
    if error is None or error.__traceback__ is None:
        return None
    handler = error.__traceback__.tb_frame
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_code.co_flags & _CAN_AWAIT:
        if frame is handler:
            return error
        frame = frame.f_back
    return None

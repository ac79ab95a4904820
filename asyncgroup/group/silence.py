"""The limit of a member that keeps its claims while it joins again: the session timeout without a response of any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asyncgroup.errors import RequestTimedOut
from asyncgroup.lifecycle import cancel_and_wait, start_task

__all__ = ["unless_silent"]

T = TypeVar("T")


async def unless_silent(
    work: Coroutine[Any, Any, T], what: str, session_timeout: float, last_response_at: Callable[[], float]
) -> T:
    """Return the result of `work`; cancel it when no broker has responded for `session_timeout` seconds.

    `last_response_at()` is the loop time of the last response of any broker to any request; `work` must send some often
    enough. Raises RequestTimedOut, which names `what`, and what `work` raises.
    """
    time = asyncio.get_running_loop().time
    began = time()
    task = start_task(work, name=what)
    try:
        while not task.done():
            left = max(began, last_response_at()) + session_timeout - time()
            if left <= 0:
                raise RequestTimedOut(
                    f"{what}: no broker has responded for session_timeout={session_timeout:g} s"
                )
            await asyncio.wait({task}, timeout=left)
        return task.result()
    finally:
        await cancel_and_wait(task)

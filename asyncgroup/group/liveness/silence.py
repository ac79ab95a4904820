"""The limit of a member that keeps its claims: the session timeout without a response of any broker.

It counts from the last response to any request, not from an attempt: one that began when the session expired would hold
the claims for longer. Only a member whose process was suspended until then, so that it could not ask, asks once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asyncgroup.errors import RequestTimedOut
from asyncgroup.group.liveness.heartbeat_thread import BLOCKED_SECONDS
from asyncgroup.lifecycle import cancel_and_wait, start_task

__all__ = ["has_expired", "unless_silent"]

T = TypeVar("T")


def has_expired(expires_at: float, due: float) -> bool:
    """Whether a failed heartbeat is not sent again, as no broker has responded until `expires_at`; both are loop times.

    `due` is when it was to be sent again. If the event loop was blocked then or the process suspended (its timer is late
    by `BLOCKED_SECONDS`), the brokers may have been suspended as well, and the heartbeat is sent.
    """
    now = asyncio.get_running_loop().time()
    return now >= expires_at and now - due < BLOCKED_SECONDS


async def unless_silent(
    work: Coroutine[Any, Any, T], what: str, session_timeout: float, last_response_at: Callable[[], float]
) -> T:
    """Return the result of `work`; cancel it when no broker has responded for `session_timeout` seconds.

    `last_response_at()` is the loop time of the last response of any broker to any request, which may be long before
    this call; `work` must send some often enough. Raises RequestTimedOut, which names `what`, and what `work` raises.
    """
    time = asyncio.get_running_loop().time
    began = time()
    # only a process that was suspended begins after that; the coordinator may still have the member
    earliest = began if last_response_at() + session_timeout <= began else float("-inf")
    task = start_task(work, name=what)
    try:
        while not task.done():
            left = max(earliest, last_response_at()) + session_timeout - time()
            if left <= 0:
                raise RequestTimedOut(
                    f"{what}: no broker has responded for session_timeout={session_timeout:g} s"
                )
            await asyncio.wait({task}, timeout=left)
        return task.result()
    finally:
        await cancel_and_wait(task)

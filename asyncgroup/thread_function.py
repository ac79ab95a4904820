"""ThreadFunction: a plain function that is called as an async one, and runs in a worker thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread

from asyncgroup.lifecycle import start_task, wait_shielded

__all__ = ["ThreadFunction"]


class ThreadFunction:
    """An async function that runs a plain one in a worker thread, with its arguments, and waits until it returns.

    Groups give it a ThreadClaim in place of a Claim, since a Claim is for the event loop only.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.__wrapped__ = function  # `inspect.signature` of this object is that of the function
        # not the default limiter, which all threads of the program share: a thread that waits would take a place of it.
        # The number of claims, or `concurrency`, limits the threads
        self._limiter = anyio.CapacityLimiter(math.inf)

    def __repr__(self) -> str:
        return f"<in_thread({self._function!r})>"

    async def __call__(self, *arguments: Any) -> None:
        """Run the function. If this is cancelled it still waits: a thread cannot be cancelled."""
        work = anyio.to_thread.run_sync(self._function, *arguments, limiter=self._limiter)
        await wait_shielded(start_task(work))

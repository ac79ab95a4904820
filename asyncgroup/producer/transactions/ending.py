"""Wait for the end of a transaction although the caller is cancelled, and describe its outcome."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from asyncgroup.errors import AsyncGroupError, TransactionAbortedError, TransactionOutcomeUnknown
from asyncgroup.lifecycle import start_task, wait_shielded

__all__ = ["describe_outcome", "is_stopped", "outlast_cancellation"]


async def outlast_cancellation(ending: asyncio.Task[bool], limit: float) -> None:
    """Wait for the task for at most `limit` seconds; further cancellations, as of an anyio scope, do not end the wait."""
    waiting = start_task(_wait_within(ending, limit), name="Producer: end of a transaction")
    with contextlib.suppress(asyncio.CancelledError):  # the caller raises the first one
        await wait_shielded(waiting)


async def _wait_within(ending: asyncio.Task[bool], limit: float) -> None:
    await asyncio.wait([ending], timeout=limit)


def describe_outcome(ending: asyncio.Task[bool], *, commit: bool, error: AsyncGroupError | None) -> str:
    """Return the outcome of a transaction in words.

    `ending` is the task that ends it, and returns whether it did as requested; `error` is why the producer can only be closed.
    """
    if not ending.done():
        return "is still being committed" if commit else "is still being aborted"
    if not ending.cancelled() and isinstance(ending.exception(), TransactionAbortedError):
        return "was aborted"
    if ending.cancelled() or isinstance(error, TransactionOutcomeUnknown):
        return "may be committed or not" if commit else "may still be open"
    if ending.exception() is not None or not ending.result():
        return "failed to commit" if commit else "failed to abort"
    return "was committed" if commit else "was aborted"


def is_stopped(task: asyncio.Task[Any]) -> bool:
    """Return whether a shielded task was cancelled because the producer is closed, and its caller was not cancelled."""
    caller = asyncio.current_task()
    return task.cancelled() and caller is not None and not caller.cancelling()

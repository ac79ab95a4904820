"""Runs a coroutine and cancels it at one of its awaits."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any

__all__ = ["WHEN", "cancelled_at"]

WHEN = ("begins", "ends")
"""When the cancellation comes: as the call begins to wait, or together with what it waits for."""


@types.coroutine
def _driven(work: Coroutine[Any, Any, Any], number: int, when: str) -> Generator[Any, Any, Any]:
    """Run a coroutine, and cancel its task at its await with this number."""
    task, steps = asyncio.current_task(), count()
    assert task is not None
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value
        if next(steps) == number:
            if when == "ends" and isinstance(waits_for, asyncio.Future):
                waits_for.add_done_callback(lambda _: task.cancel())  # before the task runs again
            else:
                asyncio.get_running_loop().call_soon(task.cancel)
        try:
            step, value = work.send, (yield waits_for)
        except BaseException as error:
            step, value = work.throw, error


async def cancelled_at(number: int, when: str, work: Coroutine[Any, Any, Any]) -> bool:
    """Return whether a coroutine was cancelled at its await with this number; it may have fewer."""

    async def run() -> None:
        await _driven(work, number, when)

    task = asyncio.create_task(run())
    await asyncio.wait([task], timeout=300)
    assert task.done()
    return task.cancelled() or task.exception() is not None

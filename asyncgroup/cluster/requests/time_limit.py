"""A deadline for work that is awaited, with an error that says what failed before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from asyncgroup.errors import RequestTimedOut

__all__ = ["within"]

T = TypeVar("T")


async def within(
    deadline: float, work: Awaitable[T], before: BaseException | None = None, what: str = ""
) -> T:
    """Await `work` until the loop's time `deadline`; then cancel it and raise RequestTimedOut, with the error `before`.

    `what` names in the error what was awaited.

    A retry that is due shortly before the deadline would otherwise take the whole timeout of a connection or request. An
    infinite deadline is none.
    """
    if deadline == float("inf"):
        return await work
    try:
        async with asyncio.timeout_at(deadline) as scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        text = f"{what}: no answer in time" if what else "no answer in time"
        raise RequestTimedOut(text if before is None else f"{text}; before that: {before}") from before

"""Trying the addresses of a host one after the other, and what is raised when none can be reached, as asyncio does it."""

from __future__ import annotations

from asyncio import staggered
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

__all__ = ["first_successful"]

T = TypeVar("T")


async def first_successful(
    attempts: Sequence[Callable[[], Awaitable[T]]], *, delay: float | None = None, all_errors: bool = False
) -> T:
    """The result of the first attempt that succeeds; errors are joined as `loop.create_connection` joins them.

    With `delay` the next attempt begins after that many seconds at the latest (RFC 8305). Raises OSError, or with
    `all_errors` an ExceptionGroup.
    """
    problems: list[Exception] = []
    if delay is not None:
        winner: T | None
        winner, _, raised = await staggered.staggered_race(attempts, delay)
        if winner is not None:
            return winner
        problems.extend(problem for problem in raised if problem is not None)
    else:
        for attempt in attempts:
            try:
                return await attempt()
            except OSError as problem:
                problems.append(problem)
    if all_errors:
        raise ExceptionGroup("create_connection failed", problems)
    if len({str(problem) for problem in problems}) == 1:
        raise problems[0]
    raise OSError(f"Multiple exceptions: {', '.join(str(problem) for problem in problems)}")

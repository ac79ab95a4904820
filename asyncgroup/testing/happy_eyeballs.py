"""Connect to the first reachable address of a host, with asyncio's happy eyeballs (RFC 8305) and asyncio's errors."""

from __future__ import annotations

from asyncio import staggered
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

__all__ = ["first_successful"]

T = TypeVar("T")


async def first_successful(
    attempts: Sequence[Callable[[], Awaitable[T]]], *, delay: float | None = None, all_errors: bool = False
) -> T:
    """Return the result of the first attempt that succeeds; errors are merged as `loop.create_connection` merges them.

    Without `delay` an attempt starts when the one before it has failed; with `delay` it starts after that many seconds at
    the latest (RFC 8305). Raises OSError, or with `all_errors` an ExceptionGroup, if every attempt fails.
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

"""The time for requests to brokers, retries included: `default.api.timeout.ms` of Kafka's clients, `max.block.ms` of its producer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from asyncgroup.errors import RequestTimedOut

__all__ = ["API_TIMEOUT", "within"]

T = TypeVar("T")

API_TIMEOUT: Final = 60.0
"""The default of both in Java, in seconds."""


async def within(deadline: float, work: Awaitable[T], before: BaseException | None = None) -> T:
    """Await `work` until the loop's time `deadline`; then cancel it and raise RequestTimedOut, with the error `before`.

    A retry that is due shortly before the deadline would otherwise take the whole timeout of a connection or request.
    """
    try:
        async with asyncio.timeout_at(deadline) as scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        text = "no answer in time" if before is None else f"no answer in time; before that: {before}"
        raise RequestTimedOut(text) from before

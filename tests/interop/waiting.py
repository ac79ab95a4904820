"""Poll for effects of other clients on a cluster, which the test cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]

_PAUSE = 0.02


async def until(condition: Callable[[], bool], limit: float = 40.0) -> None:
    """Wait until the condition holds. Raise TimeoutError after `limit` seconds."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(_PAUSE)

"""Waiting for what other people's clients do to a cluster, which tell nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]

_PAUSE = 0.02


async def until(condition: Callable[[], bool], limit: float = 40.0) -> None:
    """Look until it is so; TimeoutError after `limit` seconds."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(_PAUSE)

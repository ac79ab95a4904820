"""Event loops that run only during calls, as in the driver's and the workers' processes."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["notice_closed_connections"]

LOOP_TURNS: Final = 3
"""Iterations of the loop: one polls sockets and timers, one reads end-of-file, one closes the transports."""


async def notice_closed_connections() -> None:
    """Let the loop process what happened while it was not running: connections closed by brokers, or idle for too long.

    Call this before the connections are used again.
    """
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)

"""Event loops that stand still between calls, as those of drivers and workers do."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["notice_closed_connections"]

LOOP_TURNS: Final = 3
"""Of the loop: one to look at the sockets and the clock, one to read the sockets' ends, one to close them."""


async def notice_closed_connections() -> None:
    """See which connections have ended, or were idle for too long, while no loop ran: before they are used."""
    for _ in range(LOOP_TURNS):
        await asyncio.sleep(0)

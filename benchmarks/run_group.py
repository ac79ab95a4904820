"""Run a consumer group until its handler has had enough."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgroup import ConsumerGroup

__all__ = ["run_until"]


async def run_until(finished: asyncio.Event, group: ConsumerGroup, topic: str, handler: Any) -> None:
    """Run the group until `finished` is set or it fails, and close it."""
    running = asyncio.create_task(group.run(topic, handler))
    waiting = asyncio.create_task(finished.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    await group.aclose()
    waiting.cancel()
    await running

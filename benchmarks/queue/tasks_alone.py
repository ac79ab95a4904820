"""Tasks that only sleep, without Kafka: how much of the bound an event loop can reach."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.queue.load import Load

__all__ = ["run"]


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """As many tasks as handlers of different keys can run at a time."""
    load = Load(given)
    await load.wait_for_start()
    settings = load.settings

    async def sleep(offset: int) -> None:
        while not load.finished.is_set():
            await asyncio.sleep(load.seconds(offset))
            load.done()
            offset += 1

    load.begin()
    await asyncio.gather(*(sleep(number) for number in range(min(settings.keys, settings.concurrency))))
    return load.figures()

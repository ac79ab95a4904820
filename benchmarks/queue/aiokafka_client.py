"""aiokafka: one record after another, with automatic commits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiokafka import AIOKafkaConsumer

from benchmarks.queue.load import Load

__all__ = ["run"]


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """`async for record in consumer`; offsets are committed every 5 s, whether or not their records were handled."""
    load = Load(given)
    await load.wait_for_start()
    settings = load.settings
    consumer = AIOKafkaConsumer(
        settings.topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
    )

    async def read() -> None:
        async for record in consumer:
            if not load.has_begun:
                load.begin()
            if settings.kind == "block":
                await load.block()
            if seconds := load.seconds(record.offset):
                await asyncio.sleep(seconds)
            load.done()

    async with consumer:
        reading = asyncio.create_task(read())
        await load.finished.wait()
        figures = load.figures()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    return figures

"""asyncgroup: a handler task for each claim."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from benchmarks.neighbours.meters import Meters, PartitionMeter, Settings

__all__ = ["run"]

CHECK_SECONDS = 0.01
GATHER_SECONDS = 1.0
BATCH_BYTES = 16 << 20


class _Neighbours(Handler):
    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._settings = meters.settings

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        settings = self._settings
        meter = self._meters.of(claim.partition)
        if claim.topic == settings.watched:
            if claim.partition == 0 and settings.every <= 1:
                async for batch in claim.batches():
                    meter.add(len(batch))
                    claim.mark(batch)
            elif settings.every > 1:
                await self._read_batches(claim, meter)
            elif settings.every:
                async for record in claim:
                    meter.add(1)
                    await asyncio.sleep(settings.pause)
                    claim.mark(record)
        await session.wait_ended()

    async def _read_batches(self, claim: Claim, meter: PartitionMeter) -> None:
        size = self._settings.every
        async for batch in claim.batches(max_records=size, max_bytes=BATCH_BYTES, max_wait=GATHER_SECONDS):
            meter.add(len(batch))
            await asyncio.sleep(self._settings.pause * len(batch) / size)
            claim.mark(batch)


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run one group member until the end of the window."""
    meters = Meters(settings := Settings(**given))
    config = ConsumerConfig(auto_offset_reset="earliest", max_partition_fetch_bytes=settings.fetch_bytes)
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, config) as group:
        running = asyncio.create_task(group.run(settings.topics, _Neighbours(meters)))
        while not meters.check_over() and not running.done():  # noqa: ASYNC110  counting must stay cheap
            await asyncio.sleep(CHECK_SECONDS)
        figures = meters.figures()
        await group.aclose()
        await running
    return figures

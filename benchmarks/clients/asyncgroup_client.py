"""Cases with asyncgroup: a handler that marks the records it has processed."""

from __future__ import annotations

import asyncio

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from benchmarks.clients import (
    AUTO_COMMIT_SECONDS,
    BUFFER_BYTES,
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT,
    PARTITION_MAX_BYTES,
    Settings,
)
from benchmarks.meter import Laps, Meter

__all__ = ["batches", "batches_without_thread", "records", "records_without_thread"]


class _Measured(Handler):
    """A handler that reads until the meter has enough records."""

    def __init__(self, settings: Settings, meter: Meter) -> None:
        self.settings = settings
        self.meter = meter
        self.finished = asyncio.Event()

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        await self.read(claim)
        if self.meter.finished:
            self.finished.set()
        await session.wait_ended()

    async def read(self, claim: Claim) -> None:
        raise NotImplementedError


class _Records(_Measured):
    async def read(self, claim: Claim) -> None:
        laps = Laps(self.meter, self.settings.records // self.settings.partitions)
        left, size = laps.first, 0
        async for record in claim:
            size += len(record.key or b"") + len(record.value or b"")
            claim.mark(record)
            left -= 1
            if not left:
                left, size = laps.next(size), 0
                if not left:
                    break


class _Batches(_Measured):
    async def read(self, claim: Claim) -> None:
        async for batch in claim.batches():
            size = 0
            for record in batch:
                size += len(record.key or b"") + len(record.value or b"")
            claim.mark(batch)
            if not self.meter.add(len(batch), size):
                break


async def records(settings: Settings, meter: Meter) -> None:
    """One record at a time, each marked."""
    await _run(settings, _Records(settings, meter))


async def batches(settings: Settings, meter: Meter) -> None:
    """One batch at a time, each marked."""
    await _run(settings, _Batches(settings, meter))


async def records_without_thread(settings: Settings, meter: Meter) -> None:
    """As `records`, without the heartbeat thread."""
    await _run(settings, _Records(settings, meter), heartbeat_thread=False)


async def batches_without_thread(settings: Settings, meter: Meter) -> None:
    """As `batches`, without the heartbeat thread."""
    await _run(settings, _Batches(settings, meter), heartbeat_thread=False)


async def _run(settings: Settings, handler: _Measured, *, heartbeat_thread: bool = True) -> None:
    config = ConsumerConfig(
        auto_offset_reset="earliest",
        auto_commit_interval=AUTO_COMMIT_SECONDS,
        fetch_max_bytes=FETCH_MAX_BYTES,
        max_partition_fetch_bytes=PARTITION_MAX_BYTES,
        fetch_max_wait=FETCH_MAX_WAIT,
        buffer_bytes=BUFFER_BYTES,
        heartbeat_thread=heartbeat_thread,
    )
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, config) as group:
        running = asyncio.create_task(group.run(settings.topic, handler))
        finished = asyncio.create_task(handler.finished.wait())
        await asyncio.wait([running, finished], return_when=asyncio.FIRST_COMPLETED)
        await group.aclose()
        finished.cancel()
        await running

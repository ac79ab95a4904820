"""Cases with asyncgroup: a handler that marks the records it has processed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Lock
from typing import Any

from asyncgroup import (
    Claim,
    ConsumerConfig,
    ConsumerGroup,
    Handler,
    Session,
    ThreadClaim,
    in_thread,
)
from asyncgroup.group.sessions.handler import HandlerLike
from asyncgroup.workqueue import WorkQueue
from benchmarks.clients import (
    AUTO_COMMIT_SECONDS,
    BUFFER_BYTES,
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT,
    PARTITION_MAX_BYTES,
    Settings,
)
from benchmarks.meter import LAP, Laps, Meter

__all__ = [
    "batches",
    "batches_without_thread",
    "merged",
    "queue",
    "records",
    "records_without_thread",
    "threads",
    "with_hooks",
]


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
        laps = Laps(self.meter, self.settings.share(claim.partition))
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


async def with_hooks(settings: Settings, meter: Meter, hooks: Sequence[object], *, in_batches: bool) -> None:
    """As `batches` or `records`, with hooks."""
    handler = _Batches(settings, meter) if in_batches else _Records(settings, meter)
    await _run(settings, handler, hooks=hooks)


async def records_without_thread(settings: Settings, meter: Meter) -> None:
    """As `records`, without the heartbeat thread."""
    await _run(settings, _Records(settings, meter), heartbeat_thread=False)


async def batches_without_thread(settings: Settings, meter: Meter) -> None:
    """As `batches`, without the heartbeat thread."""
    await _run(settings, _Batches(settings, meter), heartbeat_thread=False)


async def threads(settings: Settings, meter: Meter) -> None:
    """A plain function in a thread for each claim, one record at a time, each marked."""
    handler = _Records(settings, meter)  # for its end
    lock, loop = Lock(), asyncio.get_running_loop()

    def read(_session: Session, claim: ThreadClaim) -> None:
        left, size, share = 0, 0, settings.share(claim.partition)
        for record in claim:
            size += len(record.key or b"") + len(record.value or b"")
            claim.mark(record)
            left += 1
            if left == LAP or record.offset in (0, share - 1):  # the first one starts the clock
                with lock:
                    meter.add(left, size)
                left = size = 0
                if meter.finished:
                    loop.call_soon_threadsafe(handler.finished.set)

    await _run(settings, in_thread(read), finished=handler.finished)


async def merged(settings: Settings, meter: Meter) -> None:
    """One loop over all partitions, each record marked."""
    laps = Laps(meter, settings.records)
    left, size = laps.first, 0
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, _config(settings)) as group:
        async for record in group.records(settings.topic):
            size += len(record.key or b"") + len(record.value or b"")
            group.mark(record)
            left -= 1
            if not left:
                left, size = laps.next(size), 0
                if not left:
                    break


async def queue(settings: Settings, meter: Meter) -> None:
    """A work queue, each record acknowledged by itself."""
    laps = Laps(meter, settings.records)
    left, size = laps.first, 0
    work = WorkQueue(
        settings.bootstrap_servers,
        settings.group_id,
        settings.topic,
        config=_config(settings),
        initial_position="earliest",
    )
    async with work:
        async for delivery in work:
            size += len(delivery.key or b"") + len(delivery.value or b"")
            await delivery.ack()
            left -= 1
            if not left:
                left, size = laps.next(size), 0
                if not left:
                    break


def _config(settings: Settings, *, heartbeat_thread: bool = True) -> ConsumerConfig:
    isolation: Any = settings.isolation
    return ConsumerConfig(
        isolation_level=isolation,
        auto_offset_reset="earliest",
        auto_commit_interval=AUTO_COMMIT_SECONDS,
        fetch_max_bytes=FETCH_MAX_BYTES,
        max_partition_fetch_bytes=PARTITION_MAX_BYTES,
        fetch_max_wait=FETCH_MAX_WAIT,
        buffer_bytes=BUFFER_BYTES,
        heartbeat_thread=heartbeat_thread,
    )


async def _run(
    settings: Settings,
    handler: HandlerLike,
    *,
    heartbeat_thread: bool = True,
    finished: asyncio.Event | None = None,
    hooks: Sequence[object] = (),
) -> None:
    if finished is None:
        assert isinstance(handler, _Measured)
        finished = handler.finished
    config = _config(settings, heartbeat_thread=heartbeat_thread)
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, config, hooks=hooks) as group:
        running = asyncio.create_task(group.run(settings.topic, handler))
        waiting = asyncio.create_task(finished.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        await group.aclose()
        waiting.cancel()
        await running

"""asyncgroup: a work queue with handlers, a work queue as a loop, and a claim that handles one record after another."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session
from asyncgroup.workqueue import Backoff, Delivery, Mode, WorkQueue
from benchmarks.queue.load import POISON, Load

__all__ = ["claim", "iterate", "run"]


def _queue(load: Load) -> WorkQueue:
    settings = load.settings
    return WorkQueue(
        settings.bootstrap_servers,
        settings.group_id,
        settings.topic,
        mode=Mode.KEY_SHARED,
        concurrency=settings.concurrency,
        config=ConsumerConfig(auto_offset_reset="earliest"),
        initial_position="earliest",
        nack_backoff=Backoff(
            initial=settings.retry, factor=settings.retry_factor, maximum=settings.retry_max
        ),
        receive_buffer_bytes=settings.budget,
    )


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """`queue.run(handle)`: a handler that returns acknowledges its record, one that raises nacks it."""
    load = Load(given)
    await load.wait_for_start()

    async def work(delivery: Delivery) -> None:
        if not load.has_begun:
            load.begin()
        record = delivery.record
        if seconds := load.seconds(record.offset):
            await asyncio.sleep(seconds)
        if record.key is not None and record.key[0] == POISON:
            raise load.fail(record.key)
        load.done()

    async def fresh(delivery: Delivery) -> None:
        if not load.has_begun:
            load.begin()
        record = delivery.record
        assert record.key is not None
        assert record.value is not None
        if record.key[0] == POISON:
            raise load.fail(record.key)
        load.fresh(record.value)

    async def block(_: Delivery) -> None:
        if not load.has_begun:
            load.begin()
        await load.block()

    handle = {"work": work, "fresh": fresh, "block": block}[load.settings.kind]
    async with _queue(load) as queue:
        running = asyncio.create_task(queue.run(handle))
        await _until_finished(load, running)
        figures = load.figures()
        if load.settings.kind == "block":  # closing would wait for its handlers
            running.cancel()
            await asyncio.wait([running])
        else:
            await queue.aclose()
            await running
    return figures


async def iterate(given: dict[str, Any]) -> dict[str, Any]:
    """`async for delivery in queue: await delivery.ack()`."""
    load = Load(given)
    await load.wait_for_start()

    async with _queue(load) as queue:

        async def loop() -> None:
            async for delivery in queue:
                if not load.has_begun:
                    load.begin()
                await delivery.ack()
                load.done()

        running = asyncio.create_task(loop())
        await _until_finished(load, running)
        figures = load.figures()
        await queue.aclose()
        running.cancel()
        await asyncio.wait([running])
    return figures


class _Sequential(Handler):
    def __init__(self, load: Load) -> None:
        self._load = load

    async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
        load = self._load
        async for record in claim:
            if not load.has_begun:
                load.begin()
            if seconds := load.seconds(record.offset):
                await asyncio.sleep(seconds)
            claim.mark(record)
            load.done()


async def claim(given: dict[str, Any]) -> dict[str, Any]:
    """`async for record in claim: claim.mark(record)`: one record of each partition at a time."""
    load = Load(given)
    await load.wait_for_start()
    config = ConsumerConfig(auto_offset_reset="earliest")
    settings = load.settings
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, config) as group:
        running = asyncio.create_task(group.run(settings.topic, _Sequential(load)))
        await _until_finished(load, running)
        figures = load.figures()
        await group.aclose()
        await running
    return figures


async def _until_finished(load: Load, running: asyncio.Task[None]) -> None:
    """Return when the measurement has ended; raise the error of the client if it ends before."""
    finished = asyncio.create_task(load.finished.wait())
    await asyncio.wait([running, finished], return_when=asyncio.FIRST_COMPLETED)
    if not load.finished.is_set():
        finished.cancel()
        running.result()

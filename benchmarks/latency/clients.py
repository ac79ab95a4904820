"""Members of each client with its default settings, which handle one record at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.latency.load import LatencyMeter, Settings

__all__ = ["aiokafka", "aiokafka_uvloop", "asyncgroup", "asyncgroup_uvloop", "confluent"]

Figures = dict[str, float]

CHECK_SECONDS: Final = 1.0
"""Seconds between two looks whether records are missing."""
SETTLE_SECONDS: Final = 0.5
"""Seconds from the assignment to the producer's start, in which the consumer looks up its positions."""


def asyncgroup(given: dict[str, Any]) -> Figures:
    """`async for` over each claim, on asyncio's loop."""
    return _run(_asyncgroup, given, None)


def asyncgroup_uvloop(given: dict[str, Any]) -> Figures:
    """`async for` over each claim, on uvloop."""
    return _run(_asyncgroup, given, _uvloop())


def aiokafka(given: dict[str, Any]) -> Figures:
    """`async for` over the consumer, on asyncio's loop."""
    return _run(_aiokafka, given, None)


def aiokafka_uvloop(given: dict[str, Any]) -> Figures:
    """`async for` over the consumer, on uvloop."""
    return _run(_aiokafka, given, _uvloop())


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _run(
    read: Callable[[Settings, LatencyMeter], Awaitable[None]],
    given: dict[str, Any],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> Figures:
    settings = Settings(**given)
    meter = LatencyMeter(settings)

    async def main() -> Figures:
        reading = asyncio.ensure_future(read(settings, meter))
        while not (meter.is_late or reading.done()):
            await asyncio.wait([reading], timeout=CHECK_SECONDS)
        figures = meter.stop()
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()
        return figures

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


async def _asyncgroup(settings: Settings, meter: LatencyMeter) -> None:
    from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session

    finished = asyncio.Event()

    class Measured(Handler):
        async def setup(self, session: Session) -> None:  # noqa: ARG002  the signature of the base class
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, meter.start)

        async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
            async for record in claim:
                if not meter.add(record.value or b""):
                    finished.set()
                claim.mark(record)

    config = ConsumerConfig(auto_offset_reset="latest")
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, config) as group:
        running = asyncio.create_task(group.run(settings.topic, Measured()))
        await finished.wait()
        await group.aclose()
        await running


async def _aiokafka(settings: Settings, meter: LatencyMeter) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        settings.topic, bootstrap_servers=settings.bootstrap_servers, group_id=settings.group_id
    )
    async with consumer:  # it has its partitions
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, meter.start)
        async for record in consumer:
            if not meter.add(record.value):
                break


def confluent(given: dict[str, Any]) -> Figures:
    """`poll` in a loop, on a separate thread."""
    from confluent_kafka import Consumer

    settings = Settings(**given)
    meter = LatencyMeter(settings)
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": settings.group_id,
            "auto.offset.reset": "latest",
        }
    )
    assigned: list[bool] = []
    consumer.subscribe([settings.topic], on_assign=lambda *_: assigned.append(True))
    try:
        while not (meter.finished or meter.is_late):
            message = consumer.poll(SETTLE_SECONDS)
            if message is not None and message.error() is None:
                meter.add(message.value() or b"")
            elif message is None and assigned:
                meter.start()  # nothing has come since the assignment
        return meter.stop()
    finally:
        consumer.close()

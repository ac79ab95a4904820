"""Cases with aiokafka."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer

from benchmarks.clients import BATCH_RECORDS, Settings, consumer_options
from benchmarks.meter import Laps, Meter

__all__ = ["getmany", "getmany_limited", "iterate"]


def _consumer(settings: Settings) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(settings.topic, **consumer_options(settings))


async def getmany(settings: Settings, meter: Meter) -> None:
    """`getmany()` without a limit: all buffered records, by partition."""
    await _getmany(settings, meter, None)


async def getmany_limited(settings: Settings, meter: Meter) -> None:
    """`getmany()` with at most `BATCH_RECORDS` records."""
    await _getmany(settings, meter, BATCH_RECORDS)


async def _getmany(settings: Settings, meter: Meter, most: int | None) -> None:
    async with _consumer(settings) as consumer:
        while not meter.finished:
            count = size = 0
            for records in (await consumer.getmany(timeout_ms=1000, max_records=most)).values():
                for record in records:
                    size += len(record.key or b"") + len(record.value or b"")
                count += len(records)
            if count:
                meter.add(count, size)


async def iterate(settings: Settings, meter: Meter) -> None:
    """One record at a time, by `async for`."""
    laps = Laps(meter, settings.records)
    left, size = laps.first, 0
    async with _consumer(settings) as consumer:
        async for record in consumer:
            size += len(record.key or b"") + len(record.value or b"")
            left -= 1
            if not left:
                left, size = laps.next(size), 0
                if not left:
                    break

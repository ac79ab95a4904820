"""aiokafka: one consumer with a task for each partition, as its users write it to read partitions independently."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.neighbours.meters import Meters, PartitionMeter, Settings

__all__ = ["run"]

CHECK_SECONDS = 0.01
POLL_MS = 1000


async def _read(consumer: AIOKafkaConsumer, tp: TopicPartition, meter: PartitionMeter) -> None:
    while True:
        for records in (await consumer.getmany(tp, timeout_ms=POLL_MS)).values():
            meter.add(len(records))


async def _read_slowly(
    consumer: AIOKafkaConsumer, tp: TopicPartition, meter: PartitionMeter, settings: Settings
) -> None:
    while settings.every == 1:
        await consumer.getone(tp)
        meter.add(1)
        await asyncio.sleep(settings.pause)
    while settings.every:
        missing = settings.every
        while missing:
            found = await consumer.getmany(tp, timeout_ms=POLL_MS, max_records=missing)
            missing -= sum(map(len, found.values()))
        meter.add(settings.every)
        await asyncio.sleep(settings.pause)


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run one group member until the end of the window."""
    meters = Meters(settings := Settings(**given))
    consumer = AIOKafkaConsumer(
        *settings.topics,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=settings.fetch_bytes,
    )
    async with consumer:
        while not consumer.assignment():  # noqa: ASYNC110  aiokafka has no event for it
            await asyncio.sleep(CHECK_SECONDS)
        tasks = []
        for tp in consumer.assignment():
            meter = meters.of(tp.partition)
            if tp.topic != settings.watched:
                continue
            if tp.partition == 0 and settings.every <= 1:
                tasks.append(asyncio.create_task(_read(consumer, tp, meter)))
            else:
                tasks.append(asyncio.create_task(_read_slowly(consumer, tp, meter, settings)))
        while not meters.check_over() and not any(task.done() for task in tasks if settings.every):  # noqa: ASYNC110  as in asyncgroup_client.py
            await asyncio.sleep(CHECK_SECONDS)
        figures = meters.figures()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return figures

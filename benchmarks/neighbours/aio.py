"""aiokafka: one consumer, a task for each partition, which is how its users keep partitions apart."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.neighbours.lanes import Lane, Measured, Settings

__all__ = ["run"]

LOOK_SECONDS = 0.01
POLL_MS = 1000


async def _read(consumer: AIOKafkaConsumer, tp: TopicPartition, lane: Lane) -> None:
    while True:
        for records in (await consumer.getmany(tp, timeout_ms=POLL_MS)).values():
            lane.took(len(records))


async def _read_slowly(
    consumer: AIOKafkaConsumer, tp: TopicPartition, lane: Lane, settings: Settings
) -> None:
    while settings.every == 1:
        await consumer.getone(tp)
        lane.took(1)
        await asyncio.sleep(settings.pause)
    while settings.every:
        missing = settings.every
        while missing:
            found = await consumer.getmany(tp, timeout_ms=POLL_MS, max_records=missing)
            missing -= sum(map(len, found.values()))
        lane.took(settings.every)
        await asyncio.sleep(settings.pause)


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """One member of a group, until the window is over."""
    measured = Measured(settings := Settings(**given))
    consumer = AIOKafkaConsumer(
        *settings.topics,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=settings.fetch_bytes,
    )
    async with consumer:
        while not consumer.assignment():  # noqa: ASYNC110  it has no event for that
            await asyncio.sleep(LOOK_SECONDS)
        tasks = []
        for tp in consumer.assignment():
            lane = measured.lane(tp.partition)
            if tp.topic != settings.watched:
                continue
            if tp.partition == 0 and settings.every <= 1:
                tasks.append(asyncio.create_task(_read(consumer, tp, lane)))
            else:
                tasks.append(asyncio.create_task(_read_slowly(consumer, tp, lane, settings)))
        while not measured.look() and not any(task.done() for task in tasks if settings.every):  # noqa: ASYNC110  as in own.py
            await asyncio.sleep(LOOK_SECONDS)
        figures = measured.figures()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return figures

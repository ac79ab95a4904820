"""FastStream (on aiokafka): acknowledged after the handler, with one worker for each partition, or before it.

Runs in a separate environment.
"""

from __future__ import annotations

import asyncio
from typing import Any

from faststream import AckPolicy  # type: ignore[import-not-found]
from faststream.kafka import KafkaBroker, KafkaMessage  # type: ignore[import-not-found]

from benchmarks.queue.load import POISON, Load

__all__ = ["ack_first", "run"]


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """`NACK_ON_ERROR`: a commit after each record; a nack seeks back to the record at once. Workers read partitions."""
    return await _run(given, AckPolicy.NACK_ON_ERROR, given["partitions"])


async def ack_first(given: dict[str, Any]) -> dict[str, Any]:
    """`ACK_FIRST`, the default: automatic commits, handlers at the same time in no order, no nack."""
    return await _run(given, AckPolicy.ACK_FIRST, given["concurrency"])


async def _run(given: dict[str, Any], policy: AckPolicy, workers: int) -> dict[str, Any]:
    load = Load(given)
    await load.wait_for_start()
    settings = load.settings
    broker = KafkaBroker(settings.bootstrap_servers, logger=None)
    subscriber = broker.subscriber(
        settings.topic,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        ack_policy=policy,
        max_workers=workers,
    )

    async def handle(_: bytes, message: KafkaMessage) -> None:
        if not load.has_begun:
            load.begin()
        record = message.raw_message
        if settings.kind == "block":
            await load.block()
        elif settings.kind == "work" and (seconds := load.seconds(record.offset)):
            await asyncio.sleep(seconds)
        if record.key[0] == POISON:
            raise load.fail(record.key)
        if settings.kind == "fresh":
            load.fresh(record.value)
        else:
            load.done()

    subscriber(handle)
    await broker.start()
    await load.finished.wait()
    figures = load.figures()
    await broker.stop()
    return figures

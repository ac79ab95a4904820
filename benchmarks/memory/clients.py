"""Each client with its default settings and handlers that stop at their first record."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from benchmarks.memory.peak import Settings, peak_bytes

__all__ = ["aiokafka", "asyncgroup", "confluent"]

POLL_SECONDS: Final = 0.1


async def asyncgroup(given: dict[str, Any]) -> dict[str, Any]:
    """Claims of partitions from `alive` on stop at their first record; the others read batches."""
    from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session

    settings = Settings(**given)
    assigned = asyncio.Event()
    read = held = 0

    class Stuck(Handler):
        async def setup(self, session: Session) -> None:  # noqa: ARG002  the signature of the base class
            assigned.set()

        async def consume_claim(self, session: Session, claim: Claim) -> None:
            nonlocal read
            if claim.partition < settings.alive:
                async for batch in claim.batches():
                    read += len(batch)
                    claim.mark(batch)
            else:
                async for _ in claim:
                    read += 1
                    break
            await session.wait_ended()

    config = ConsumerConfig(auto_offset_reset="earliest")
    async with ConsumerGroup(settings.bootstrap_servers, settings.group_id, config) as group:
        running = asyncio.create_task(group.run(settings.topic, Stuck()))
        await assigned.wait()
        await asyncio.sleep(settings.seconds)
        if group.session is not None:
            held = sum(claim._inner.consumer.buffered_bytes for claim in group.session.claims)
        peak = peak_bytes()
        await group.aclose()
        await running
    return {"peak": peak, "read": read, "held": held}


async def aiokafka(given: dict[str, Any]) -> dict[str, Any]:
    """After the first record `getmany` is called only for partitions below `alive`."""
    from aiokafka import AIOKafkaConsumer

    settings = Settings(**given)
    consumer = AIOKafkaConsumer(
        settings.topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
    )
    read = 0
    async with consumer:
        deadline = time.perf_counter() + settings.seconds
        read += sum(map(len, (await consumer.getmany(timeout_ms=1000, max_records=1)).values()))
        alive = [tp for tp in consumer.assignment() if tp.partition < settings.alive]
        while alive and time.perf_counter() < deadline:
            read += sum(map(len, (await consumer.getmany(*alive, timeout_ms=100)).values()))
        await asyncio.sleep(max(0.0, deadline - time.perf_counter()))
        peak = peak_bytes()
    return {"peak": peak, "read": read}


def confluent(given: dict[str, Any]) -> dict[str, Any]:
    """Poll one message, then none: librdkafka has one queue for all partitions, so they cannot stop separately."""
    from confluent_kafka import Consumer

    settings = Settings(**given)
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": settings.group_id,
            "auto.offset.reset": "earliest",
        }
    )
    assigned: list[Any] = []
    consumer.subscribe([settings.topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    read = 0
    try:
        while not assigned:
            read += consumer.poll(POLL_SECONDS) is not None
        read += consumer.poll(1.0) is not None
        time.sleep(settings.seconds)
        peak = peak_bytes()
    finally:
        consumer.close()
    return {"peak": peak, "read": read}

"""Members of each client with its default settings, which wait for records of an empty topic."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, Final

from benchmarks.idle.usage import Settings, UsageMeter

__all__ = ["aiokafka", "asyncgroup", "asyncgroup_without_thread", "confluent", "confluent_aio"]

Figures = dict[str, float]

POLL_SECONDS: Final = 1.0
"""The timeout of confluent-kafka's `poll`, as in the examples of its documentation."""


async def _measure(settings: Settings, assigned: Sequence[asyncio.Event]) -> Figures:
    """Wait for all assignments, let the members settle, and measure."""
    for each in assigned:
        await each.wait()
    await asyncio.sleep(settings.settle)
    meter = UsageMeter()
    await asyncio.sleep(settings.seconds)
    return meter.figures()


async def asyncgroup(given: dict[str, Any]) -> Figures:
    """Groups with the default settings: each has a heartbeat thread."""
    return await _asyncgroup(Settings(**given), heartbeat_thread=True)


async def asyncgroup_without_thread(given: dict[str, Any]) -> Figures:
    """Groups with `heartbeat_thread=False`."""
    return await _asyncgroup(Settings(**given), heartbeat_thread=False)


async def _asyncgroup(settings: Settings, *, heartbeat_thread: bool) -> Figures:
    from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session

    class Waiting(Handler):
        def __init__(self) -> None:
            self.assigned = asyncio.Event()

        async def setup(self, session: Session) -> None:  # noqa: ARG002  the signature of the base class
            self.assigned.set()

        async def consume_claim(self, session: Session, claim: Claim) -> None:  # noqa: ARG002
            async for record in claim:
                claim.mark(record)

    config = ConsumerConfig(heartbeat_thread=heartbeat_thread)
    handlers = [Waiting() for _ in settings.group_ids]
    groups: list[ConsumerGroup] = []
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as running:
        for group_id, handler in zip(settings.group_ids, handlers, strict=True):
            group = ConsumerGroup(settings.bootstrap_servers, group_id, config)
            groups.append(await stack.enter_async_context(group))
            running.create_task(group.run(settings.topic, handler))
        figures = await _measure(settings, [handler.assigned for handler in handlers])
        await asyncio.gather(*(group.aclose() for group in groups))
    return figures


async def aiokafka(given: dict[str, Any]) -> Figures:
    """`async for` over each consumer."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.assigned = asyncio.Event()

        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:  # noqa: ARG002
            self.assigned.set()

    async def read(consumer: AIOKafkaConsumer) -> None:
        async for _ in consumer:
            pass

    settings = Settings(**given)
    listeners = [Listener() for _ in settings.group_ids]
    consumers: list[AIOKafkaConsumer] = []
    try:
        async with asyncio.TaskGroup() as running:
            for group_id, listener in zip(settings.group_ids, listeners, strict=True):
                consumer = AIOKafkaConsumer(bootstrap_servers=settings.bootstrap_servers, group_id=group_id)
                consumer.subscribe([settings.topic], listener=listener)
                await consumer.start()
                consumers.append(consumer)
            reading = [running.create_task(read(consumer)) for consumer in consumers]
            figures = await _measure(settings, [listener.assigned for listener in listeners])
            for task in reading:
                task.cancel()
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
    return figures


def _confluent_config(settings: Settings, group_id: str) -> dict[str, Any]:
    return {"bootstrap.servers": settings.bootstrap_servers, "group.id": group_id}


def confluent(given: dict[str, Any]) -> Figures:
    """A loop of `Consumer.poll` for each member, each on its own thread."""
    from confluent_kafka import Consumer

    settings = Settings(**given)
    stopping = threading.Event()

    def consume(group_id: str, assigned: threading.Event) -> None:
        consumer = Consumer(_confluent_config(settings, group_id))
        try:
            consumer.subscribe([settings.topic], on_assign=lambda *_: assigned.set())
            while not stopping.is_set():
                consumer.poll(POLL_SECONDS)
        finally:
            assigned.set()  # so that a failure ends the measurement
            consumer.close()

    with ThreadPoolExecutor(len(settings.group_ids)) as pool:
        events = {group_id: threading.Event() for group_id in settings.group_ids}
        polling = [pool.submit(consume, *each) for each in events.items()]
        for assigned in events.values():
            assigned.wait()
        time.sleep(settings.settle)
        meter = UsageMeter()
        time.sleep(settings.seconds)
        figures = meter.figures()
        stopping.set()
        for each in polling:
            each.result()
    return figures


async def confluent_aio(given: dict[str, Any]) -> Figures:
    """A loop of `AIOConsumer.poll` for each member."""
    from confluent_kafka.aio import AIOConsumer

    settings = Settings(**given)
    stopping = asyncio.Event()

    async def consume(group_id: str, assigned: asyncio.Event) -> None:
        async def on_assign(_: Any, __: Any) -> None:
            assigned.set()

        consumer = AIOConsumer(_confluent_config(settings, group_id))
        try:
            await consumer.subscribe([settings.topic], on_assign=on_assign)
            while not stopping.is_set():
                await consumer.poll(POLL_SECONDS)
        finally:
            await consumer.close()

    async with asyncio.TaskGroup() as running:
        events = {group_id: asyncio.Event() for group_id in settings.group_ids}
        for each in events.items():
            running.create_task(consume(*each))
        figures = await _measure(settings, list(events.values()))
        stopping.set()
    return figures

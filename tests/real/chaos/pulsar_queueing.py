"""A consumer of a work queue on Pulsar in a process of its own: `python -m tests.real.chaos.pulsar_queueing SETTINGS` (JSON).

As `queueing`: values are numbers, `failures_of` says how often the deliveries of each fail, SIGTERM closes the queue, and the
journal has a line for everything that the checker needs, written before the next step. `pulsar_checker` reads it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from asyncgroup import Hook
from asyncgroup.errors import ConsumerBusy
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.pulsar_message import PulsarMessage
from asyncgroup.workqueue import Backoff, DeadLetter, Delivery, DeliveryState, QueueInterceptor, WorkQueue
from asyncgroup.workqueue.pulsar_engine.engine import PulsarEngine
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.real.chaos.journal import Journal
from tests.real.chaos.queueing import LONGEST_WORK, MAX_REDELIVERIES, failures_of
from tests.stories.proxy import connector_to

__all__ = ["RECEIVER_QUEUE", "PulsarQueueingSettings"]

RECEIVER_QUEUE: Final = 100
"""Messages of a partition that a process has room for."""


@dataclass(frozen=True, kw_only=True)
class PulsarQueueingSettings:
    """What a process reads, and how."""

    url: str
    proxy: int
    """The port on this machine through which all connections go."""
    subscription: str
    topic: str
    journal: str
    mode: str = "key_shared"
    concurrency: int = 20


class Watch(QueueInterceptor):
    """Writes what becomes of deliveries."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_acknowledge(self, delivery: Delivery) -> None:
        self._journal.write("acked", number_of(delivery))

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        self._journal.write("nacked", number_of(delivery))

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        self._journal.write("dead", number_of(delivery))


def number_of(delivery: Delivery) -> int:
    return int(delivery.value or b"-1")


class Losses(Hook):
    """Writes when the process sees that the broker of a partition is lost."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_detached(self, role: str, topic: str, partition: int, error: Exception) -> None:
        if role == "consumer":
            self._journal.write("detached", partition)


class Handling:
    """Handles deliveries for 0 to 20 ms, in each of the ways in which a handler may end its delivery."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._random = random.Random()

    async def handle(self, delivery: Delivery) -> None:
        number = number_of(delivery)
        message = cast("PulsarMessage", delivery.record)
        self._journal.write("begin", number, delivery.attempt, message.message_id)
        try:
            await asyncio.sleep(self._random.uniform(0, LONGEST_WORK))
        except asyncio.CancelledError:
            self._journal.write("left", number)
            raise
        if delivery.attempt <= failures_of(number):
            await self._fail(delivery, number)
        elif number % 50 == 1:
            await self._ack_durably(delivery, number)
        elif number % 2 and delivery.state is DeliveryState.ACQUIRED:
            await delivery.ack()
        else:
            self._journal.write("left", number)  # the queue acknowledges, if it is not too late

    async def _fail(self, delivery: Delivery, number: int) -> None:
        if number % 2 and await delivery.nack():
            return
        self._journal.write("left", number)
        raise ValueError(f"{number} fails")

    async def _ack_durably(self, delivery: Delivery, number: int) -> None:
        if await delivery.ack(durable=True):
            self._journal.write("durable", number)
        else:
            self._journal.write("left", number)


def queue_of(settings: PulsarQueueingSettings, config: PulsarConfig, journal: Journal) -> WorkQueue:
    source = PulsarSource(
        settings.url,
        settings.subscription,
        settings.topic,
        config=config,
        hooks=[Losses(journal)],
        consumer_name=Path(settings.journal).stem,
    )
    return WorkQueue(
        source,
        mode=settings.mode,
        concurrency=settings.concurrency,
        nack_backoff=Backoff(0.05, 2, 0.4),
        dead_letter=DeadLetter(MAX_REDELIVERIES),
        initial_position="earliest",
        receiver_queue=RECEIVER_QUEUE,
        interceptors=[Watch(journal)],
    )


@asynccontextmanager
async def opened(make: Callable[[], WorkQueue]) -> AsyncIterator[WorkQueue]:
    """Open a queue; the broker may not know yet that the exclusive consumer before this one was killed."""
    while True:
        try:
            queue = await make().__aenter__()
            break
        except ConsumerBusy:
            await asyncio.sleep(0.1)
    try:
        yield queue
    finally:
        await queue.aclose()


def write_permits(queue: WorkQueue, journal: Journal) -> None:
    """Write for each partition the permits that are open at the broker, as this process counts them."""
    engine = cast("PulsarEngine", queue._core.engine)
    for tp, reader in engine._readers.items():
        journal.write("permits", tp.partition, reader.consumer.permits.open)


async def consume(settings: PulsarQueueingSettings) -> None:
    """Handle deliveries until SIGTERM."""
    journal = Journal(Path(settings.journal))
    journal.write("start", os.getpid())
    closing = asyncio.Event()

    config = PulsarConfig(connector=connector_to(settings.proxy), retry_backoff_max=2.0)
    async with opened(lambda: queue_of(settings, config, journal)) as queue:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
        run = asyncio.create_task(queue.run(Handling(journal).handle))
        print("ready", flush=True)
        waiting = asyncio.create_task(closing.wait())
        await asyncio.wait([run, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        write_permits(queue, journal)
        await queue.aclose()
        await run
    journal.write("closed")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("asyncgroup.workqueue").addFilter(
        lambda line: line.exc_info is None
    )  # handlers that fail
    asyncio.run(consume(PulsarQueueingSettings(**json.loads(sys.argv[1]))))

"""A consumer of a work queue in a process of its own: `python -m tests.real.chaos.queueing SETTINGS` (JSON).

Values are numbers, and `failures_of` says how often the deliveries of each fail. SIGTERM closes the queue. The journal has a
line for everything that the checker needs, written before the next step; `queue_journal` reads it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from asyncgroup import AsyncGroupError, CommittedOffset, ConsumerConfig, Session, SessionEnd, TopicPartition
from asyncgroup.workqueue import (
    Backoff,
    DeadLetter,
    Delivery,
    DeliveryState,
    Mode,
    QueueInterceptor,
    WorkQueue,
)
from tests.real.chaos.journal import Journal

__all__ = ["MAX_REDELIVERIES", "QueueingSettings", "dead_letter_topic", "failures_of"]

MAX_REDELIVERIES: Final = 5
ALWAYS: Final = 1000
"""Failures of a poison record: more than it may have deliveries."""

LONGEST_WORK = 0.02
"""Seconds that a handler takes at most."""


def failures_of(number: int) -> int:
    """Return how many of the record's first deliveries fail: of 1,000 records 2 are poison, 48 fail one to three times."""
    draw = zlib.crc32(b"%d" % number)
    place = draw % 1000
    if place >= 50:
        return 0
    return ALWAYS if place < 2 else 1 + draw // 1000 % 3


def dead_letter_topic(topic: str, group_id: str) -> str:
    """Return the name of the dead letter topic."""
    return f"{topic}-{group_id}-DLQ"


@dataclass(frozen=True, kw_only=True)
class QueueingSettings:
    """What a process reads, and how; `config` has further settings of its consumer, durations are in seconds."""

    servers: str
    group_id: str
    topic: str
    journal: str
    concurrency: int = 20
    ack_group_time: float = 0.1
    config: dict[str, Any] = field(default_factory=dict)


class Watch(QueueInterceptor):
    """Writes what the queue and its group report."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    # --- deliveries ---------------------------------------------------------------------------------------------------------

    def on_acknowledge(self, delivery: Delivery) -> None:
        self._journal.write("acked", *_place(delivery))

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        self._journal.write("nacked", *_place(delivery))

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        self._journal.write("dead", *_place(delivery), delivery.value.decode())  # type: ignore[union-attr]

    # --- the group ----------------------------------------------------------------------------------------------------------

    def on_session_end(self, _session: Session, cause: SessionEnd | None) -> None:
        self._journal.write("end", type(cause).__name__, str(cause).replace("\n", " "))

    def on_request(self, _node: int, api: str, _version: int, _size: int) -> None:
        if api == "OffsetCommit":
            self._journal.write("sent")

    def on_commit(
        self,
        _group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, AsyncGroupError] | None,
    ) -> None:
        done = [
            f"{tp.partition}:{each.offset}:{each.metadata}"
            for tp, each in offsets.items()
            if tp not in (errors or {})
        ]
        if done:
            self._journal.write("committed", *done)
        if errors:
            self._journal.write("uncommitted", "; ".join(map(str, errors.values())).replace("\n", " "))


def _place(delivery: Delivery) -> tuple[int, int]:
    return delivery.record.partition, delivery.record.offset


class Handling:
    """Handles deliveries for 0 to 20 ms, in each of the ways in which a handler may end its delivery."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._random = random.Random()

    async def handle(self, delivery: Delivery) -> None:
        number = int(delivery.value or b"-1")
        place = _place(delivery)
        self._journal.write("begin", *place, number, delivery.attempt)
        try:
            await asyncio.sleep(self._random.uniform(0, LONGEST_WORK))
        except asyncio.CancelledError:
            self._journal.write("left", *place)
            raise
        if delivery.attempt <= failures_of(number):
            await self._fail(delivery, number)
        elif number % 50 == 1:
            await self._ack_durably(delivery)
        elif number % 2 and delivery.state is DeliveryState.ACQUIRED:
            await delivery.ack()
        else:
            self._journal.write("left", *place)  # the queue acknowledges, if it is not too late

    async def _fail(self, delivery: Delivery, number: int) -> None:
        if number % 2 and await delivery.nack():
            return
        self._journal.write("left", *_place(delivery))
        raise ValueError(f"{number} fails")

    async def _ack_durably(self, delivery: Delivery) -> None:
        """Acknowledge, and wait for the commit; one that fails raises, and the record may be delivered again."""
        if await delivery.ack(durable=True):
            self._journal.write("durable", *_place(delivery))
        else:
            self._journal.write("left", *_place(delivery))


async def consume(settings: QueueingSettings) -> None:
    """Handle deliveries until SIGTERM."""
    journal = Journal(Path(settings.journal))
    journal.write("start", os.getpid())
    watch, closing = Watch(journal), asyncio.Event()
    queue = WorkQueue(
        settings.servers,
        settings.group_id,
        settings.topic,
        mode=Mode.KEY_SHARED,
        concurrency=settings.concurrency,
        nack_backoff=Backoff(0.05, 2, 0.4),
        dead_letter=DeadLetter(MAX_REDELIVERIES),
        ack_group_time=settings.ack_group_time,
        initial_position="earliest",
        config=ConsumerConfig(**settings.config),
        hooks=[watch],
        interceptors=[watch],
    )
    async with queue:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, closing.set)
        run = asyncio.create_task(queue.run(Handling(journal).handle))
        print("ready", flush=True)
        waiting = asyncio.create_task(closing.wait())
        await asyncio.wait([run, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await queue.aclose()
        await run
    journal.write("closed")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("asyncgroup.workqueue").addFilter(
        lambda line: line.exc_info is None
    )  # handlers that fail
    given = json.loads(sys.argv[1])
    given["config"] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given["config"].items()
    }
    asyncio.run(consume(QueueingSettings(**given)))

"""`PartitionWork.bytes`, which `receive_buffer_bytes` limits, beside the memory that records take (`tracemalloc`)."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Header, Record, RecordMetadata, TopicPartition, wall_clock
from asyncgroup.workqueue.copies import CopyHeaders
from asyncgroup.workqueue.delivery import Delivery, Work
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_engine import PartitionEngine
from asyncgroup.workqueue.partition_work import PartitionWork
from asyncgroup.workqueue.publisher import TopicPublisher

COUNT = 500


class StuckWriter:
    """Writes nothing."""

    is_transactional = False

    async def write(self, *_args: Any, **_more: Any) -> RecordMetadata:
        waiting: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        return await waiting

    def abandon(self, *_args: Any, **_more: Any) -> None:
        """There is nothing to give up."""


def record(offset: int, key: int, headers: int) -> Record:
    """Return a record whose parts are separate objects, as those that are decoded."""
    made: list[Header] = [(f"name{number}{offset}", b"%010d" % offset) for number in range(headers)]
    name = b"%010d" % offset if key else None
    time = 1_700_000_000_000 + offset
    return Record("orders", 0, 1000 + offset, time, key=name, value=b"v%09d" % offset, headers=made)


async def nothing(_delivery: Delivery) -> None:
    """The delivery stays open."""


async def nack(delivery: Delivery) -> None:
    await delivery.nack(delay=100.0)


async def copy(delivery: Delivery) -> None:
    delivery._outcomes.discard(delivery, "bad")  # type: ignore[attr-defined]


def stuck_publisher() -> TopicPublisher:
    """Return a publisher whose copies are never written."""
    return TopicPublisher(
        StuckWriter(),
        CopyHeaders("g", wall_clock),
        "g",
        retry_topic=None,
        dead_letter_topic="dead",
        max_redeliveries=5,
        on_error=print,
    )


@pytest.mark.parametrize("end", [nothing, nack, copy])
@pytest.mark.parametrize(
    ("mode", "key", "headers"),
    [
        (Mode.SHARED, 0, 0),
        (Mode.KEY_SHARED, 1, 0),
        (Mode.SHARED, 1, 3),
        (Mode.EXCLUSIVE, 0, 0),
        (Mode.FAILOVER, 1, 1),
    ],
)
async def test_what_a_delivered_record_takes(
    end: Callable[[Delivery], Any], mode: Mode, key: int, headers: int
) -> None:
    """Counted is what a record takes in the state that takes most, and no more than twice that of another state."""
    publisher = stuck_publisher()
    clock = asyncio.get_running_loop().time
    dispatcher = Dispatcher(mode, clock, publisher, lambda _: 100.0, ack_timeout=30.0)
    work = PartitionWork(TopicPartition("orders", 0), AckWindow(1000))
    dispatcher.add_partition(work)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    dispatcher.offer(work, [record(number, key, headers) for number in range(COUNT)])
    while (delivery := dispatcher.take()) is not None:
        await end(delivery)
    delivery = None
    for _ in range(5):
        await asyncio.sleep(0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    taken = after - before
    assert 0.95 * taken <= work.bytes <= 2 * taken
    await publisher.aclose()


class Rooms(PartitionEngine):
    """Notes the bytes of its partition when more records may be added."""

    work: Work

    def __init__(self) -> None:
        self.calls: list[int] = []

    def on_capacity(self) -> None:
        self.calls.append(self.work.bytes)


async def test_a_copy_that_is_given_up_makes_room() -> None:
    publisher = stuck_publisher()
    clock = asyncio.get_running_loop().time
    dispatcher = Dispatcher(Mode.SHARED, clock, publisher, lambda _: 100.0)
    engine = Rooms()
    work = engine.work = PartitionWork(TopicPartition("orders", 0), AckWindow(1000), engine=engine)
    dispatcher.add_partition(work)
    dispatcher.offer(work, [record(0, 0, 0)])
    size = work.refill_bytes = work.bytes
    delivery = dispatcher.take()
    assert delivery is not None
    rejecting = asyncio.create_task(delivery.reject("bad"))
    await asyncio.sleep(0)
    assert work.bytes > size
    publisher.abandon(work.tp)
    await rejecting
    assert (work.bytes, engine.calls) == (size, [size])

"""What a queue on Pulsar holds of many partitions whose backlogs have no end, on scripted brokers in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from asyncgroup import Delivery, WorkQueue
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.workqueue.pulsar_engine.source import PulsarSource
from tests.pulsar.scripted import Call, ScriptedPulsar

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

LIMIT = 16 << 20


class Backlogs:
    """Pushes entries of `batch` messages while a consumer has permits."""

    def __init__(self, size: int, batch: int) -> None:
        self._rng = random.Random(size)
        self._size = size
        self._batch = batch
        self._next = 0

    def on_flow(self, call: Call) -> None:
        connection, consumer = call.connection, call.command.consumer_id
        connection.permits[consumer] += call.command.message_permits
        while connection.permits[consumer] > 0:
            sizes = [self._rng.randrange(self._size // 2, self._size * 3 // 2) for _ in range(self._batch)]
            connection.push_entry(
                consumer, *(bytes(size) for size in sizes), entry_id=self._next, is_batch=self._batch > 1
            )
            self._next += 1


def held(queue: WorkQueue) -> int:
    """Return the bytes that a queue has in memory, by its own count."""
    readers = queue._core.engine._readers.values()  # type: ignore[union-attr]
    return sum(
        reader.work.bytes + sum(message.size + 560 for message in reader.consumer._queue)
        for reader in readers
    )


@pytest.mark.parametrize(
    ("partitions", "size", "batch"),
    [(100, 200, 50), (1000, 20, 1), (1000, 2_000, 1), (1000, 20_000, 1), (10, 1_000, 1), (1, 50_000, 1)],
)
async def test_a_queue_stays_within_its_bytes(partitions: int, size: int, batch: int) -> None:
    """Each partition has one entry at least; else what is queued, delivered and failed is within the limit, about.

    Permits are of messages, and their sizes differ.
    """
    backlogs = Backlogs(size, batch)
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        pulsar.set_partitions("orders", partitions)
        pulsar.script[c.CommandFlow] = backlogs.on_flow
        source = PulsarSource(pulsar.url, "billing", "orders")
        async with WorkQueue(source, receive_buffer_bytes=LIMIT, nack_backoff=1000.0) as queue:
            most = max(LIMIT, partitions * batch * (size * 3 // 2 + 560)) * 1.2
            await asyncio.sleep(1)
            assert 0 < held(queue) <= most, "nothing is delivered"
            taken: list[Delivery] = []
            try:
                async with asyncio.timeout(5):
                    while True:
                        taken.append(await queue.receive())
            except TimeoutError:
                pass
            assert held(queue) <= most, "nothing is acknowledged"
            assert held(queue) >= LIMIT * 0.3
            for each in taken[::2]:
                await each.nack()
            await asyncio.sleep(1)
            assert held(queue) <= most, "half of it has failed"
            for each in taken[1::2]:
                await each.ack()
            await asyncio.sleep(1)
            assert held(queue) <= most, "the other half is acknowledged"
            async with asyncio.timeout(5):
                await (await queue.receive()).ack()

"""CrashCounts: each delivery of a partition that a crash left is counted once, before its hand-out."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from asyncgroup.group.claim_window import ClaimWindow
from asyncgroup.model import Record, TopicPartition
from asyncgroup.offsets.ack_window import AckWindow
from asyncgroup.workqueue.crash_counts import CrashCounts
from asyncgroup.workqueue.delivery import Delivery, Publisher
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]

TP = TopicPartition("orders", 0)


class Unlimited:
    """A publisher that is never asked for a copy."""

    def is_last(self, _attempt: int) -> bool:
        return False


class Window:
    """Commits of a window: each keeps the attempts that it contains."""

    def __init__(self, window: AckWindow) -> None:
        self.window = window
        self.commits: list[dict[int, int]] = []

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.commits.append(dict(self.window.attempts))


class Partition:
    """A dispatcher with one partition of `count` records, whose last owner has crashed."""

    def __init__(self, count: int, attempts: dict[int, int] | None = None, *, records: int = 1000) -> None:
        self.dispatcher = Dispatcher(
            Mode.SHARED, asyncio.get_running_loop().time, cast(Publisher, Unlimited()), lambda _: 0.0
        )
        self.work = PartitionWork(TP, AckWindow(0, attempts=attempts))
        self.window = Window(self.work.window)
        self.dispatcher.add_partition(self.work)
        self.counts = CrashCounts(
            self.work, cast(ClaimWindow, self.window), self.dispatcher, records, lambda: 10
        )
        self.dispatcher.offer(self.work, [Record("orders", 0, at, value=b"") for at in range(count)])

    async def take(self) -> Delivery:
        """Return the next delivery; the count that it needs is committed first."""
        async with asyncio.timeout(1):
            while True:
                self.dispatcher.wake()
                if (delivery := self.dispatcher.take()) is not None:
                    return delivery
                await asyncio.sleep(0)


async def test_a_delivery_is_counted_in_a_commit_before_its_hand_out() -> None:
    partition = Partition(3)
    delivery = await partition.take()
    assert (delivery.record.offset, delivery.attempt) == (0, 1)
    assert partition.window.commits == [{0: 1, 1: 1, 2: 1}]


async def test_a_retry_that_waits_for_its_turn_is_counted_once() -> None:
    """Fresh records of the partition ask for a hand-out in the turns before it."""
    partition = Partition(40, {5: 3})
    attempts = []
    for _ in range(60):
        delivery = await partition.take()
        if delivery.record.offset != 5:
            await delivery.ack()
            continue
        attempts.append(delivery.attempt)
        if delivery.attempt == 10:
            await delivery.ack()
            break
        await delivery.nack()
    assert attempts == [4, 5, 6, 7, 8, 9, 10]


async def test_the_last_record_to_count_waits_for_the_commit_with_its_count() -> None:
    partition = Partition(2, {0: 3}, records=1)
    taken = [await partition.take(), await partition.take()]
    assert sorted((each.record.offset, each.attempt) for each in taken) == [(0, 4), (1, 1)]
    assert partition.window.commits == [{0: 4}]
    assert partition.work.gate is None

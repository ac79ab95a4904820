"""CrashCounts: each delivery of a partition that a crash left is counted once, before it begins."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.copies import RECONSUMETIMES, earlier_attempts
from asyncgroup.workqueue.delivery import Delivery, Publisher
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.engine import OpenQueue
from asyncgroup.workqueue.group_engine.claim_guard import ClaimGuard
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.crash_counts import CrashCounts, CrashedClaims
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_engine import PartitionEngine
from asyncgroup.workqueue.partition_work import PartitionWork


class Unlimited:
    """A publisher that is never asked for a copy."""

    def is_last(self, _attempt: int) -> bool:
        return False


class Limited:
    """A publisher of dead letters after six deliveries, so that a record with three failed ones is isolated."""

    def is_last(self, attempt: int) -> bool:
        return attempt > 5


class Window:
    """Commits of a window: each keeps the attempts that it contains."""

    def __init__(self, window: AckWindow) -> None:
        self.window = window
        self.commits: list[dict[int, int]] = []

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.commits.append(dict(self.window.attempts))


class Copies(PartitionEngine):
    """The records are copies in a retry topic."""

    has_copies = True

    def earlier_attempts(self, record: Record) -> int:
        return earlier_attempts(record)


def dispatcher_with(publisher: object) -> Dispatcher:
    """Return a dispatcher whose nacked records are delivered again at once."""
    return Dispatcher(Mode.SHARED, asyncio.get_running_loop().time, cast(Publisher, publisher), lambda _: 0.0)


class OneDispatcher:
    """What CrashCounts asks of a queue."""

    free_handlers = 10

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.requeue = dispatcher.ready.requeue
        self.works = dispatcher.works.values
        self.attempts = dispatcher.outcomes.attempts
        self.is_last = dispatcher.outcomes.publisher.is_last
        self.is_serial = dispatcher.order.serial


_CLAIMS: dict[Dispatcher, CrashedClaims] = {}


def claims_of(dispatcher: Dispatcher) -> CrashedClaims:
    """Return the claims that share a dispatcher."""
    return _CLAIMS.setdefault(dispatcher, CrashedClaims(cast(OpenQueue, OneDispatcher(dispatcher))))


class Partition:
    """A dispatcher with one partition of `count` records, whose last owner has crashed."""

    def __init__(
        self,
        count: int,
        attempts: dict[int, int] | None = None,
        *,
        records: int = 1000,
        number: int = 0,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self.dispatcher = dispatcher or dispatcher_with(Unlimited())
        self.work = PartitionWork(TopicPartition("orders", number), AckWindow(0, attempts=attempts))
        self.window = Window(self.work.window)
        self.dispatcher.add_partition(self.work)
        self.claims = claims_of(self.dispatcher)
        self.counts = CrashCounts(self.work, cast(ClaimWindow, self.window), self.claims, records)
        ClaimGuard(self.work).count(self.counts)
        self.dispatcher.offer(self.work, [Record("orders", number, at, value=b"") for at in range(count)])

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
    """Fresh records of the partition ask to be delivered in the turns before it."""
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
    for each in taken:
        await each.ack()
    assert partition.work.guard is None


async def isolated_and_other() -> tuple[Partition, Partition]:
    """Return two partitions of one dispatcher: an isolated record of the first is acquired, and the second waits for its end."""
    dispatcher = dispatcher_with(Limited())
    isolated = Partition(2, {0: 3}, number=0, dispatcher=dispatcher)
    assert (await isolated.take()).record.offset == 0
    other = Partition(1, number=1, dispatcher=dispatcher)
    for _ in range(5):
        assert dispatcher.take() is None
        await asyncio.sleep(0)
    return isolated, other


async def test_a_lost_partition_with_a_record_in_isolation_stops_no_other() -> None:
    isolated, other = await isolated_and_other()
    isolated.dispatcher.remove_partition(isolated.work)
    isolated.claims.requeue()
    assert (await other.take()).record.partition == 1


async def test_a_log_that_lost_the_isolated_record_stops_no_other() -> None:
    isolated, other = await isolated_and_other()
    isolated.counts.restart(0)
    isolated.dispatcher.lose(isolated.work, 0)
    isolated.claims.requeue()
    assert isolated.counts.counted == {}
    assert (await other.take()).record.partition == 1


async def test_offsets_of_another_log_are_not_counted_by_a_commit_under_way() -> None:
    partition = Partition(3)
    assert partition.dispatcher.take() is None  # the commit has begun
    partition.counts.restart(1)
    partition.dispatcher.lose(partition.work, 1)
    assert (await partition.take()).record.offset == 0
    assert partition.counts.counted.keys() == {0}


async def test_counts_are_taken_back_once() -> None:
    """Also those of a commit under way when the claim ends."""
    partition = Partition(3, {1: 2})
    assert partition.dispatcher.take() is None
    await partition.counts.aclose()
    assert partition.work.window.attempts == {1: 2}
    assert (partition.counts.counted, partition.counts.counting) == ({}, {})


@pytest.mark.parametrize("is_copy", [False, True])
async def test_earlier_deliveries_isolate_a_record(is_copy: bool) -> None:
    """Of six deliveries four were made: those that led to a copy in the retry topic count as well."""
    dispatcher = Dispatcher(
        Mode.SHARED,
        asyncio.get_running_loop().time,
        cast(Publisher, Limited()),
        lambda _: 0.0,
    )
    window = AckWindow(0, attempts={} if is_copy else {0: 4})
    work = PartitionWork(TopicPartition("orders", 0), window, engine=Copies() if is_copy else None)
    dispatcher.add_partition(work)
    ClaimGuard(work).count(CrashCounts(work, cast(ClaimWindow, Window(window)), claims_of(dispatcher), 100))
    headers = [(RECONSUMETIMES, b"4")] if is_copy else []
    dispatcher.offer(work, [Record("orders", 0, 0, headers=headers), Record("orders", 0, 1)])
    found = []
    for _ in range(20):
        while (delivery := dispatcher.take()) is not None:
            found.append((delivery.record.offset, delivery.attempt))
        await asyncio.sleep(0)
    assert found == [(0, 5)], "the isolated record alone"


async def test_counted_records_stay_the_next_ones() -> None:
    """An isolated record that becomes ready later, by its key, waits for them: in front of them it would wait for them, and they for it."""
    dispatcher = dispatcher_with(Limited())
    work = PartitionWork(TopicPartition("orders", 0), AckWindow(0), position=1, engine=Copies())
    dispatcher.add_partition(work)
    guard = ClaimGuard(work)
    guard.count(CrashCounts(work, cast(ClaimWindow, Window(work.window)), claims_of(dispatcher), 100))
    dispatcher.offer(work, [Record("orders", 0, 1), Record("orders", 0, 2)])
    assert dispatcher.take() is None  # both are counted
    guard.set_full(is_full=True)
    guard.set_full(is_full=False)
    dispatcher.outcomes.admit(work, Record("orders", 0, 0, headers=[(RECONSUMETIMES, b"4")]))
    found = []
    for _ in range(20):
        while (delivery := dispatcher.take()) is not None:
            found.append((delivery.record.offset, delivery.attempt))
            await delivery.ack()
        await asyncio.sleep(0)
    assert found == [(1, 1), (2, 1), (0, 5)]

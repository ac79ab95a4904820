"""CopyQueue: which copies the next transaction takes, after partitions that did not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from asyncgroup.model import RecordMetadata, TopicPartition
from asyncgroup.workqueue.engine import OutgoingCopy
from asyncgroup.workqueue.group_engine.claim_window import ClaimWindow
from asyncgroup.workqueue.group_engine.copy_batch import CopyBatch, WaitingCopy
from asyncgroup.workqueue.group_engine.copy_queue import MAX_PAUSE, CopyQueue

pytestmark = pytest.mark.real

SOURCE = TopicPartition("orders", 0)


class LiveWindow:
    """The window of a claim that has not ended."""

    def __init__(self) -> None:
        self.transaction = self
        self.is_live = True


class Bench:
    """A queue whose copies go to the partition of the last digit of their offset."""

    def __init__(self) -> None:
        window = cast(ClaimWindow, LiveWindow())
        self.queue = CopyQueue(lambda _: window, self.place)

    @staticmethod
    def place(copy: WaitingCopy) -> TopicPartition:
        return TopicPartition("dead", copy.offset % 10)

    def add(self, *offsets: int, alone: bool = False) -> None:
        for offset in offsets:
            record = OutgoingCopy("dead", b"x", None, [], None)
            self.queue.add(WaitingCopy(SOURCE, offset, record, lambda _: None, alone))

    def take(self, now: float) -> CopyBatch:
        batch = self.queue.next_batch(now)
        assert batch is not None
        return batch

    def offsets(self, now: float) -> list[int]:
        batch = self.queue.next_batch(now)
        return [] if batch is None else [copy.offset for copy in batch.copies]

    def fail(
        self,
        batch: CopyBatch,
        now: float,
        *,
        written: Iterable[int] = (),
        silent: Iterable[int] = (),
        took: float = 10.0,
    ) -> None:
        """End a transaction that took this long: some copies were written, some partitions did not answer."""
        for copy in batch.copies:
            if copy.offset in written:
                batch.note_written(copy, RecordMetadata("dead", copy.offset % 10, 0, 0))
        unwritten = {TopicPartition("dead", number) for number in silent}
        self.queue.note_stalled(batch, unwritten, now)
        self.queue.note_written(batch.written)
        self.queue.repeat(batch.copies)
        self.queue.note_end(batch, now, took)


async def test_only_copies_that_were_written_are_proven():
    """One that a broker has refused is not, although it was not late."""
    bench = Bench()
    bench.add(0, 1, 2)
    batch = bench.take(0.0)
    refused = next(copy for copy in batch.copies if copy.offset == 2)
    bench.fail(batch, 10.0, written=[0], silent=[1])
    assert [copy.offset for copy in batch.copies if copy.is_proven] == [0]
    assert not refused.is_proven
    assert bench.offsets(10.0) == [0]
    assert bench.offsets(10.0) == [2]


async def test_copies_that_are_to_be_alone_share_a_trial():
    """Until their partition answers: one trial in each period is for all."""
    bench = Bench()
    bench.add(1, 2)
    first = bench.take(0.0)
    for copy in first.copies:
        copy.fail(ValueError())
    bench.fail(first, 10.0, silent=[1, 2])
    bench.add(11, 21, 31, alone=True)
    bench.add(12)
    assert bench.queue.next_batch(20.0) is None
    trial = bench.take(60.0)
    assert (trial.is_trial, [copy.offset for copy in trial.copies]) == (True, [11, 21, 31, 12])
    bench.fail(trial, 61.0, written=[11], silent=[2])
    assert list(bench.queue.stalled) == [("dead", 2)]
    assert [bench.offsets(61.0) for _ in range(3)] == [[11], [21], [31]]


@pytest.mark.parametrize(("took", "pause"), [(1.0, 30.0), (15.0, 45.0), (30.0, 60.0), (300.0, MAX_PAUSE)])
async def test_the_pause_between_trials_has_limits(took: float, pause: float):
    bench = Bench()
    bench.add(1)
    batch = bench.take(0.0)
    bench.fail(batch, 500.0, silent=[1], took=took)
    assert bench.queue.next_batch(500.0) is None
    assert bench.queue.seconds_to_trial(500.0) == pause
    assert bench.take(500.0 + pause).is_trial


async def test_a_trial_without_the_coordinator_is_repeated_at_once():
    """After the copies that have waited for its end."""
    bench = Bench()
    bench.add(1)
    batch = bench.take(0.0)
    batch.has_coordinator_failed = True
    bench.fail(batch, 70.0, silent=[1], took=70.0)
    bench.add(2)
    assert bench.offsets(70.0) == [2]
    assert bench.queue.next_batch(70.0) is None
    assert (bench.queue.seconds_to_trial(70.0) or 99.0) < 1.0
    assert bench.offsets(71.0) == [1]


async def test_no_partition_is_stalled_if_none_was_added_to_the_transaction():
    bench = Bench()
    bench.add(1)
    batch = bench.take(0.0)
    bench.fail(batch, 70.0, took=70.0)
    assert (bench.queue.stalled, batch.has_stalled) == ({}, False)
    assert bench.offsets(70.0) == [1]

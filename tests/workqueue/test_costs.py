"""Time and memory stay in proportion: windows with many runs or attempts, records that wait for a long time."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn, SupportsIndex
from unittest import mock

import pytest

from asyncgroup import ack_runs
from asyncgroup.ack_window import AckWindow
from asyncgroup.model import Record, TopicPartition
from asyncgroup.offsets import window_encoding
from asyncgroup.offsets.window_encoding import decode_window, encode_window
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.due_times import DueTimes
from asyncgroup.workqueue.group_engine.queue_handler import QueueHandler
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork
from tests.consumer.support import batch, feed, make_consumer

pytestmark = pytest.mark.real


def scattered(count: int) -> AckWindow:
    """Return a window in which every second of `count` offsets, at random, is acknowledged."""
    window, offsets = AckWindow(0), list(range(1, count))
    random.Random(1).shuffle(offsets)
    for offset in offsets[: count // 2]:
        window.ack(offset)
    return window


def test_a_window_of_many_runs_is_encoded_in_the_time_of_those_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run is looked at once, and a sum over all of them is made for a few forms only."""
    measured, accumulate = 0, itertools.accumulate

    def counted(numbers: Iterable[int]) -> Iterator[int]:
        nonlocal measured
        for number in accumulate(numbers):
            measured += 1
            yield number

    monkeypatch.setattr(window_encoding, "accumulate", counted)
    costs = {}
    for count in (100_000, 200_000):
        window, measured = scattered(count), 0
        decoded = decode_window(encode_window(window, 0, 4000).text, 0)
        assert decoded.runs == window.runs[: len(decoded.runs)]
        costs[count] = measured
        assert len(decoded.runs) > 5000
        assert measured <= 80_000
    assert costs[200_000] <= 1.1 * costs[100_000]


class Moved(list[int]):
    """Counts the entries that move when others are inserted or removed before them."""

    total = 0

    def insert(self, index: SupportsIndex, value: int) -> None:
        Moved.total += len(self) - int(index)
        super().insert(index, value)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        if not isinstance(index, slice):
            Moved.total += len(self) - int(index)
        super().__delitem__(index)


class CountedBlock(ack_runs._Block):
    def __init__(self, starts: list[int], ends: list[int]) -> None:
        super().__init__(Moved(starts), Moved(ends))


@pytest.mark.parametrize(
    ("order", "count"),
    [
        ("ascending", 20_000),
        pytest.param("ascending", 162_000, marks=pytest.mark.full),
        ("descending", 20_000),
        ("random", 20_000),
    ],
)
def test_the_steps_of_an_acknowledgement_do_not_grow_with_the_holes(
    monkeypatch: pytest.MonkeyPatch, order: str, count: int
) -> None:
    """Each second one of many records at once is acknowledged, then those in between."""
    monkeypatch.setattr(ack_runs, "_Block", CountedBlock)
    window, Moved.total = AckWindow(0), 0
    holes = list(range(0, count, 2))
    runs = list(range(1, count, 2))
    if order == "descending":
        holes.reverse()
    elif order == "random":
        random.Random(1).shuffle(holes)
        random.Random(2).shuffle(runs)
    for offset in runs:
        window.ack(offset)
    blocks = window._runs._blocks
    assert len(blocks) <= 4 * len(runs) / ack_runs.BLOCK
    assert max(len(block.starts) for block in blocks) <= ack_runs.BLOCK
    for offset in holes:
        window.ack(offset)
    assert (window.base, window.runs, window.acked_above) == (count, [], 0)
    assert Moved.total <= 2 * ack_runs.BLOCK * count


class Attempts(dict[int, int]):
    """Counts how many entries are looked at."""

    looks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for key in super().__iter__():
            self.looks += 1
            yield key

    def pop(self, *args):  # type: ignore[no-untyped-def]
        self.looks += 1
        return super().pop(*args)


def test_a_gap_does_not_look_at_all_attempts() -> None:
    """A transaction marker after each record, and thousands of records that have failed."""
    window = AckWindow(0)
    window.attempts = attempts = Attempts(dict.fromkeys(range(0, 20000, 2), 1))
    for offset in range(1, 20_000, 2):
        window.ack_range(offset, offset + 1)
    assert attempts.looks <= 20_000
    window.ack_range(0, 10_000)
    assert sorted(attempts) == list(range(10_000, 20_000, 2))


# --- records that wait for their time -----------------------------------------------------------------------------------


def test_forgotten_records_do_not_pile_up() -> None:
    """A partition with records that are due in a year comes and goes a hundred times."""
    due_times = DueTimes()
    for _ in range(100):
        work = PartitionWork(TopicPartition("orders", 0), AckWindow(0))
        for offset in range(1000):
            due_times.add(work, Record("orders", 0, offset), 3e7 + offset)
        work.drop_ready()
    for offset in range(1000):
        due_times.add(work, Record("orders", 0, offset), 3e7 + offset)
    assert len(due_times) < 5000
    assert [record.offset for _, record in due_times.pop_due(4e7)] == list(range(1000))


def test_an_earlier_wait_does_not_shorten_a_later_one_of_the_same_record() -> None:
    due_times, work = DueTimes(), PartitionWork(TopicPartition("orders", 0), AckWindow(0))
    record = Record("orders", 0, 5)
    due_times.add(work, record, 10.0)
    work.waiting.clear()  # repeated in order after the failure of an earlier one
    due_times.add(work, record, 30.0)
    assert list(due_times.pop_due(10.0)) == []
    assert list(due_times.pop_due(30.0)) == [(work, record)]
    assert not work.waiting


def test_small_groups_of_acknowledgements_look_at_no_partition() -> None:
    """Whether to commit is asked after every few acknowledgements; up to 64 cannot concern more partitions than that."""

    class Untouched(dict[TopicPartition, Any]):
        def values(self) -> NoReturn:
            raise AssertionError("a look at every partition")

    handler = QueueHandler(mock.Mock(), mock.Mock())
    handler.feeds = Untouched({TopicPartition("t", number): None for number in range(1000)})
    assert handler.is_commit_worth(1)
    assert handler.is_commit_worth(64)
    with pytest.raises(AssertionError, match="every partition"):
        handler.is_commit_worth(65)


# --- small record batches -------------------------------------------------------------------------------------------------

COUNT = 1000


async def calls_per_record(mode: Mode, log: bytes) -> float:
    """Return the calls of functions of the package from fetched bytes to acknowledgements, divided by the records."""
    consumer, calls = make_consumer(), 0
    dispatcher = Dispatcher(mode, lambda: 0.0, mock.Mock(), lambda _: 0.0)
    work = PartitionWork(TopicPartition("t", 0), AckWindow(0))
    dispatcher.add_partition(work)

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and "asyncgroup" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        feed(consumer, log)
        while work.position < COUNT:  # as ClaimFeed does
            records = await anext(consumer.batches(max_records=500, max_bytes=1 << 20))
            dispatcher.offer(work, list(records))
        while (delivery := dispatcher.take()) is not None:
            dispatcher.outcomes.ack(delivery)
    finally:
        sys.setprofile(None)
    assert work.window.base == COUNT
    return calls / COUNT


@pytest.mark.parametrize(("mode", "most"), [(Mode.SHARED, 14), (Mode.FAILOVER, 14), (Mode.KEY_SHARED, 20)])
async def test_a_record_in_a_batch_by_itself_takes_few_calls_more(mode: Mode, most: int) -> None:
    """Producers with little traffic write such batches."""
    together = await calls_per_record(mode, batch(0, count=COUNT))
    alone = await calls_per_record(mode, b"".join(map(batch, range(COUNT))))
    assert alone < together + 2
    assert alone < most

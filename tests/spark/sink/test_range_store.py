"""RangeStore with redeliveries, late writes of fenced members, compactions, and a kill at every step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.errors import UsageError
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.sink.range_files import STAGING, StorageError
from asyncgroup.spark.sink.range_layout import RangeSlice, StoredRange, visible_slices
from asyncgroup.spark.sink.range_store import Partitions, RangeStore, staged_name
from tests.profiles import examples


class KilledError(BaseException):
    """Raised in place of a kill -9: no step after it is executed."""


class MemoryFiles:
    """A model of Hadoop's file system: directories with rows (offsets) in several files. Raises Killed after `steps` steps."""

    has_atomic_rename = True

    def __init__(self) -> None:
        self.directories: dict[str, list[int]] = {}
        self.ages: dict[str, float] = {}
        self.steps = -1

    def step(self) -> None:
        if self.steps == 0:
            raise KilledError
        self.steps -= 1

    def ranges(self, topic: str | None = None, partition: int | None = None) -> list[StoredRange]:
        names = {"/".join(PurePosixPath(name).parts[:3]) for name in self.directories}
        found = [stored for name in names if (stored := StoredRange.parse(name)) is not None]
        return sorted(
            each for each in found if topic in (None, each.topic) and partition in (None, each.partition)
        )

    def locate(self, name: str) -> str:
        return name

    def children(self, name: str) -> list[str]:
        below = [other.removeprefix(f"{name}/") for other in self.directories if other.startswith(f"{name}/")]
        return sorted({each.split("/")[0] for each in below})

    def rename(self, name: str, target: str) -> None:
        self.step()
        assert target not in self.directories, "the target of a rename must not exist"
        if name not in self.directories:
            raise StorageError(name)
        self.directories[target] = self.directories.pop(name)
        self.step()

    def mkdir(self, name: str) -> None:
        self.step()
        self.directories[name] = []

    def remove(self, name: str) -> None:
        for each in [other for other in self.directories if f"{other}/".startswith(f"{name}/")]:
            while self.directories[each]:
                self.step()
                self.directories[each].pop()
            self.step()
            del self.directories[each]

    def size(self, name: str) -> int:
        return len(self.directories[name])

    def age(self, name: str) -> float:
        return self.ages.get(name, 0.0)

    # --- writes by Spark ----------------------------------------------------------------------------------------

    def write(self, name: str, rows: Sequence[int]) -> None:
        self.directories[name] = []
        for row in rows:
            self.step()
            self.directories[name].append(row)
        self.step()

    def read(self, slices: Sequence[RangeSlice]) -> list[int]:
        return [
            row
            for slice_ in slices
            for row in self.directories[slice_.stored.name]
            if slice_.start <= row < slice_.end
        ]

    def seen(self, topic: str, partition: int) -> Counter[int]:
        return Counter(self.read(visible_slices(self.ranges(topic, partition))))


class Sink:
    """A store whose rows are offsets: two rows for every third offset, none for the offsets 30 to 39, 70 to 79, …."""

    def __init__(self, files: MemoryFiles, tokens: itertools.count[int], target: int = 12) -> None:
        self.files = files
        self.store = RangeStore(files, lambda: f"{next(tokens):x}", target=target)

    def deliver(self, *ranges: OffsetRange) -> Partitions:
        def write(staging: str) -> None:
            for number, part in enumerate(ranges):
                if rows := [row for offset in range(part.start, part.end) for row in rows_of(offset)]:
                    self.files.write(f"{staging}/{staged_name(number)}", rows)

        return self.store.deliver(ranges, write)

    def join(self, slices: Sequence[RangeSlice], staging: str) -> None:
        self.files.write(staging, self.files.read(slices))


def rows_of(offset: int) -> list[int]:
    return [] if offset // 10 % 4 == 3 else [offset] * (2 if offset % 3 == 0 else 1)


def rows_up_to(end: int) -> Counter[int]:
    return Counter(row for offset in range(end) for row in rows_of(offset))


def check(files: MemoryFiles, committed: dict[int, int]) -> None:
    """Check that committed rows are there as often as they were written, and others not more often."""
    for partition, end in committed.items():
        seen = files.seen("t", partition)
        assert {row: count for row, count in seen.items() if row < end} == rows_up_to(end)
        assert all(count == len(rows_of(row)) for row, count in seen.items())


actions = st.lists(
    st.tuples(
        st.sampled_from(
            ["deliver", "deliver", "deliver", "uncommitted", "zombie", "compact", "crowded", "vacuum"]
        ),
        st.tuples(st.integers(1, 15), st.integers(0, 15)),
        st.integers(-1, 40),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(100))
@given(actions)
def test_a_kill_at_any_step_neither_duplicates_nor_loses_a_row(
    plan: list[tuple[str, tuple[int, int], int]],
) -> None:
    files, tokens = MemoryFiles(), itertools.count()
    committed = {0: 0, 1: 0}
    for action, lengths, steps in plan:
        sink = Sink(files, tokens)  # a restart: the state in memory is lost
        ranges = [
            OffsetRange("t", partition, start, start + length)
            for (partition, start), length in zip(committed.items(), lengths, strict=True)
            if length
        ]
        files.steps = steps
        try:
            if action in ("deliver", "uncommitted"):
                sink.deliver(*ranges)
                if action == "deliver":
                    committed |= {part.partition: part.end for part in ranges}
            elif action == "zombie":
                sink.deliver(*(OffsetRange("t", p, s // 2, s // 2 + e - s) for _, p, s, e in ranges))
            elif action == "compact":
                sink.store.compact(sink.join)
            elif action == "crowded":
                stored = {
                    (tp[0], tp[1]): list(each) for tp, each in groupby(files.ranges(), lambda each: each[:2])
                }
                if stored:
                    sink.store.compact_fullest(stored, sink.join, 3)
            else:
                sink.store.vacuum(0.0)
        except KilledError:
            pass
        files.steps = -1
        check(files, committed)
    sink = Sink(files, tokens)
    sink.store.compact(sink.join)
    check(files, committed)
    sink.store.vacuum(0.0)
    check(files, committed)
    assert not files.children(STAGING)


def test_a_kill_at_every_step_of_one_sequence() -> None:
    """Three batches, the last one redelivered with another end, then a compaction: killed at step 1, 2, 3, …"""

    def story(sink: Sink, committed: dict[int, int]) -> None:
        for start in (0, 20):
            sink.deliver(OffsetRange("t", 0, start, start + 20))
            committed[0] = start + 20
        sink.deliver(OffsetRange("t", 0, 40, 50))
        sink.deliver(OffsetRange("t", 0, 40, 55))
        sink.store.compact(sink.join)
        sink.store.vacuum(0.0)

    for steps in itertools.count():
        files, tokens, committed = MemoryFiles(), itertools.count(), {0: 0}
        files.steps = steps
        try:
            story(Sink(files, tokens, target=1_000), committed)
        except KilledError:
            check(files, committed)
            # the next process continues from the commit
            files.steps, sink = -1, Sink(files, tokens, target=1_000)
            sink.deliver(OffsetRange("t", 0, committed[0], 60))
            check(files, {0: 60})
            sink.store.compact(sink.join)
            check(files, {0: 60})
        else:
            break
    assert steps > 100
    assert files.seen("t", 0) == rows_up_to(55)
    assert [(each.start, each.end) for each in files.ranges()] == [(0, 40), (40, 55)]


def test_joined_ranges_are_kept_for_readers_that_have_started() -> None:
    sink = Sink(MemoryFiles(), itertools.count(), target=1_000)
    for start in range(0, 50, 10):
        sink.deliver(OffsetRange("t", 0, start, start + 10))
    begun = visible_slices(sink.files.ranges())
    assert sink.store.compact(sink.join) == 4
    assert Counter(sink.files.read(begun)) == rows_up_to(50)
    assert len(sink.files.ranges()) == 6
    assert sink.store.compact(sink.join) == 0
    assert len(sink.files.ranges()) == 2


def test_only_new_ranges_count_for_the_next_compaction() -> None:
    sink = Sink(MemoryFiles(), itertools.count(), target=15)
    joins = 0

    def join(slices: Sequence[RangeSlice], staging: str) -> None:
        nonlocal joins
        joins += 1
        sink.join(slices, staging)

    for start in range(0, 600, 10):
        sink.store.compact_fullest(sink.deliver(OffsetRange("t", 0, start, start + 10)), join, 10)
    assert 0 < joins < 60
    assert sink.files.seen("t", 0) == rows_up_to(600)


def test_a_failed_compaction_does_not_fail_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(MemoryFiles(), itertools.count())

    def fails(slices: Sequence[RangeSlice], staging: str) -> None:
        raise StorageError("the disk is full")

    for start in range(0, 30, 2):
        sink.store.compact_fullest(sink.deliver(OffsetRange("t", 0, start, start + 2)), fails, 5)
    assert "the disk is full" in caplog.text
    assert sink.files.seen("t", 0) == rows_up_to(30)


def test_nothing_is_joined_without_atomic_rename() -> None:
    files = MemoryFiles()
    files.has_atomic_rename = False
    sink = Sink(files, itertools.count())
    for start in range(0, 30, 2):
        sink.store.compact_fullest(sink.deliver(OffsetRange("t", 0, start, start + 2)), sink.join, 5)
    assert len(files.ranges()) == 15
    with pytest.raises(UsageError, match="copying"):
        sink.store.compact(sink.join)


def test_vacuum_keeps_staging_directories_in_use() -> None:
    files = MemoryFiles()
    sink = Sink(files, itertools.count())
    files.directories |= {"_staging/old/x": [1], "_staging/new/x": [1]}
    files.ages = {"_staging/old": 100.0, "_staging/new": 10.0}
    assert sink.store.vacuum(60.0) == 1
    assert list(files.directories) == ["_staging/new/x"]


def test_a_failed_write_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(MemoryFiles(), itertools.count())

    def fails(staging: str) -> None:
        sink.files.write(f"{staging}/{staged_name(0)}", [1])
        raise RuntimeError("the job was cancelled")

    with pytest.raises(RuntimeError):
        sink.store.deliver([OffsetRange("t", 0, 0, 2)], fails)
    assert not sink.files.directories
    sink.files.remove = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        sink.store.deliver([OffsetRange("t", 0, 0, 2)], fails)
    assert "could not be removed" in caplog.text


def test_a_batch_stored_during_a_compaction_wins() -> None:
    sink = Sink(MemoryFiles(), itertools.count(), target=1_000)
    for start in range(0, 50, 10):
        sink.deliver(OffsetRange("t", 0, start, start + 10))

    def slow(slices: Sequence[RangeSlice], staging: str) -> None:
        sink.join(slices, staging)
        sink.deliver(OffsetRange("t", 0, 5, 15))  # the group's offsets were reset

    assert sink.store.compact(slow) == 0
    assert not sink.files.children(STAGING)
    assert sink.files.seen("t", 0) == rows_up_to(50)
    assert {each.version for each in sink.files.ranges() if each.start == 5} == {2}
    assert sink.store.compact(sink.join) > 0
    assert sink.files.seen("t", 0) == rows_up_to(50)


def test_two_compactions_at_once() -> None:
    files, tokens = MemoryFiles(), itertools.count()
    one, other = Sink(files, tokens, target=1_000), Sink(files, tokens, target=1_000)
    for start in range(0, 50, 10):
        one.deliver(OffsetRange("t", 0, start, start + 10))

    def during(slices: Sequence[RangeSlice], staging: str) -> None:
        rows = files.read(slices)
        assert other.store.compact(other.join) == 4
        assert other.store.vacuum(3600.0) == 4
        files.write(staging, rows)

    assert one.store.compact(during) == 0
    assert files.seen("t", 0) == rows_up_to(50)
    one.store.vacuum(0.0)
    assert [(each.start, each.end) for each in files.ranges()] == [(0, 40), (40, 50)]

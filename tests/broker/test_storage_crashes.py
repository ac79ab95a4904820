"""A process that dies at any one of its writes: whatever it had acknowledged is there when the directory is opened again.

The life of a controller with its logs is run again and again; each time another system call that changes a file is the
last one, before, in the middle of, or after its work.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker.controller import Controller
from asyncgroup.broker.storage import metadata_log
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.storage.restore import restore_controller, restored_transactions
from asyncgroup.broker.transactions.metadata import TransactionMetadata
from asyncgroup.broker.transactions.state import TransactionState
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import batch


class Killed(BaseException):
    """The process is no more."""


class Killer:
    """Counts the calls that change files, and lets the one with number `last` be the last."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int, how: str) -> None:
        self.calls, self._last, self._how = 0, last, how
        self._dead = False
        for owner, name in (
            (os, "pwritev"),
            (os, "ftruncate"),
            (Path, "replace"),
            (Path, "unlink"),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, self._deadly(getattr(owner, name)))

    def _deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self._dead:
                raise Killed
            self.calls += 1
            if self.calls != self._last:
                return call(*args, **options)
            self._dead = True
            if self._how == "after":
                call(*args, **options)
            elif self._how == "in the middle" and call.__name__ == "pwritev":
                data = b"".join(args[1])
                call(args[0], [data[: len(data) // 2]], args[2])
            raise Killed

        return counted


class NoNode:
    def partition_changed(self, _partition) -> None: ...

    def coordinator_elected(self, _number: int) -> None: ...

    def coordinator_resigned(self, _number: int) -> None: ...


class Life:
    """A directory in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.controller = Controller(
            [1], random.Random(1), default_partitions=1, default_replication_factor=1
        )
        self.data = DataDirectory(path)
        try:
            restore_controller(self.data, self.controller)
            self.controller.node_up(1, NoNode())
        except BaseException:
            self.data.close()
            raise

    def log(self, topic: str, partition: int = 0):
        return self.controller.topics[topic].partitions[partition].log

    def view(self) -> dict[str, Any]:
        """What a client can see, in a form in which two lives can be compared."""
        seen: dict[str, Any] = {}
        for name, topic in self.controller.topics.items():
            records: list[Any] = []
            for partition in topic.partitions:
                log = partition.log
                if name == "compacted":
                    records.append(({r.key: r.value for r in log.records()}, log.end_offset))
                else:
                    values = [(r.offset, r.value) for r in log.records()]
                    records.append((values, log.start_offset, log.end_offset, log.last_stable_offset))
            seen[name] = (dict(topic.configs), records)
        for one in restored_transactions(self.data):
            seen[one.transactional_id] = (str(one.state), list(one.partitions))
        return seen


def append(topic: str, value: bytes, key: bytes = b"k", partition: int = 0) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        builder = BatchBuilder()
        builder.append(1000, key, value)
        life.log(topic, partition).append(builder.build(), 1)

    return step


def transaction(state: TransactionState, *partitions: int) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        one = TransactionMetadata("tx", 17)
        one.state, one.partitions = state, {TopicPartition("t", number): None for number in partitions}
        life.controller.journal.transaction_changed(one)

    return step


def reopen(life: Life) -> None:
    life.data.close()
    life.__init__(life.path)  # type: ignore[misc]


def give_producer_id(life: Life) -> None:
    assert life.controller.next_producer_id() == 1001


SMALL = {"internal.segment.bytes": "150"}

STEPS: list[Callable[[Life], None]] = [
    lambda life: life.controller.create_topic("t", 2, configs=SMALL) and None,
    *[append("t", b"%d" % number) for number in range(5)],
    append("t", b"other", partition=1),
    lambda life: life.log("t").delete_records(2) and None,
    give_producer_id,
    lambda life: (
        life.controller.create_topic("compacted", configs={**SMALL, "cleanup.policy": "compact"}) and None
    ),
    *[append("compacted", b"%d" % number, b"ab"[number % 2 :][:1]) for number in range(6)],
    reopen,
    lambda life: life.log("compacted").compact(2000, 1000) and None,
    append("compacted", b"after", b"a"),
    lambda life: life.controller.create_partitions(life.controller.topics["t"], 4),
    append("t", b"new", partition=3),
    transaction(TransactionState.ONGOING, 0, 1),
    transaction(TransactionState.PREPARE_COMMIT, 0, 1),
    lambda life: life.log("t").retain(10**9, 1000, -1) and None,
    append("t", b"behind"),
    lambda life: life.controller.delete_topic(life.controller.topics["compacted"]),
    lambda life: life.controller.create_topic("compacted") and None,
    append("compacted", b"anew"),
    lambda life: life.controller.configure_topic(life.controller.topics["t"], {"retention.ms": "5"}),
    reopen,
    append("t", b"last"),
    transaction(TransactionState.COMPLETE_COMMIT),
]


GIVEN = STEPS.index(give_producer_id) + 1
"""How many views there are before a producer id is given out."""


def live(path: Path, views: list[dict[str, Any]]) -> None:
    """All steps, until the end or death; a view is added with each that is over."""
    life = Life(path)
    try:
        views.append(life.view())
        for step in STEPS:
            step(life)
            views.append(life.view())
    finally:
        life.data.close()


HOW = ["before", "in the middle", "after"]


@pytest.mark.parametrize("how", HOW)
def test_whatever_write_is_the_last_all_that_was_acknowledged_is_there(tmp_path, how):
    every_life(tmp_path, how, first=1 + HOW.index(how), step=4)


@pytest.mark.soak
@pytest.mark.parametrize("how", HOW)
def test_every_write_may_be_the_last(tmp_path, how):
    every_life(tmp_path, how, first=1, step=1)


def every_life(directory: Path, how: str, *, first: int, step: int) -> None:
    """Lives that end with every `step`th call from the `first` on."""
    expected: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_log, "SNAPSHOT_AFTER", 300)
        killer = Killer(patch, -1, how)
        live(directory / "whole", expected)
    assert len(expected) == len(STEPS) + 1
    assert killer.calls > 60
    for last in range(first, killer.calls + 1, step):
        path = directory / str(last)
        views: list[dict[str, Any]] = []
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(metadata_log, "SNAPSHOT_AFTER", 300)
            Killer(patch, last, how)
            live(path, views)
        check(path, expected, len(views), f"killed {how} call {last}")
        shutil.rmtree(path)


def check(path: Path, expected: list[dict[str, Any]], done: int, story: str) -> None:
    """The directory holds what there was before or after the step that was not over, and can be used."""
    life = Life(path)
    try:
        assert life.view() in expected[max(0, done - 1) : done + 1], f"{story}, in step {done}"
        assert life.controller.next_producer_id() > (1001 if done > GIVEN else 1000), "no id is given twice"
        life.controller.create_topic("works")
        life.log("works").append(batch(b"on"), 9)
    finally:
        life.data.close()

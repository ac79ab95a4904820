"""A cluster's data directory with controller and logs, but without nodes, and a sequence of steps that modify it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from asyncgroup.broker.log.record_reader import read_records
from asyncgroup.broker.metadata.controller import Controller
from asyncgroup.broker.storage.data_directory import DataDirectory
from asyncgroup.broker.storage.restore import restore_controller, restored_transactions
from asyncgroup.broker.transactions.metadata import TransactionMetadata, TransactionState
from asyncgroup.broker.transactions.store import transaction_record
from asyncgroup.model import TopicPartition
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append as append_to, batch

__all__ = ["STEPS", "Step", "StoredCluster", "check_stored", "reopen", "run_steps"]


class NoNode:
    def partition_changed(self, _partition) -> None: ...

    def coordinator_elected(self, _number: int) -> None: ...

    def coordinator_resigned(self, _number: int) -> None: ...


class StoredCluster:
    """An open data directory with a controller."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path, self.fsync = path, fsync
        self.controller = Controller(
            [1], random.Random(1), default_partitions=1, default_replication_factor=1
        )
        self.data = DataDirectory(path, fsync=fsync)
        try:
            restore_controller(self.data, self.controller)
            self.controller.node_up(1, NoNode())
        except BaseException:
            self.data.close()
            raise

    def log(self, topic: str, partition: int = 0):
        return self.controller.topics[topic].partitions[partition].log

    def view(self) -> dict[str, Any]:
        """Return what clients can see, in a form that can be compared after a restart."""
        seen: dict[str, Any] = {}
        for name, topic in self.controller.topics.items():
            records: list[Any] = []
            for partition in topic.partitions:
                log = partition.log
                if name == "compacted":
                    table = {r.key: r.value for r in read_records(log)}
                    records.append(({k: v for k, v in table.items() if v is not None}, log.end_offset))
                else:
                    values = [(r.offset, r.value) for r in read_records(log)]
                    records.append((values, log.start_offset, log.end_offset, log.last_stable_offset))
            seen[name] = (dict(topic.configs), records)
        for one in restored_transactions(self.data):
            seen[one.transactional_id] = (str(one.state), list(one.partitions))
        return seen


def append(
    topic: str, value: bytes | None, key: bytes = b"k", partition: int = 0
) -> Callable[[StoredCluster], None]:
    def step(life: StoredCluster) -> None:
        builder = BatchBuilder()
        builder.append(1000, key, value)
        append_to(life.log(topic, partition), builder.build(), 1)

    return step


def transaction(state: TransactionState, *partitions: int) -> Callable[[StoredCluster], None]:
    def step(life: StoredCluster) -> None:
        one = TransactionMetadata("tx", 17)
        one.state, one.partitions = state, {TopicPartition("t", number): None for number in partitions}
        life.controller.journal.resource_changed("transaction", ("tx",), transaction_record(one))

    return step


def reopen(life: StoredCluster) -> None:
    life.data.close()
    life.__init__(life.path, fsync=life.fsync)  # type: ignore[misc]


def allocate_producer_id(life: StoredCluster) -> None:
    assert life.controller.next_producer_id() == 1001


def compact(*, at: int) -> Callable[[StoredCluster], None]:
    """Return a step that compacts; three segments are merged into one."""

    def step(life: StoredCluster) -> None:
        log = life.log("compacted")
        log.segments.segment_bytes = 450
        log.compact(at, 1000)
        log.segments.segment_bytes = 150

    return step


SMALL = {"internal.segment.bytes": "150"}

Step: TypeAlias = Callable[[StoredCluster], None]

STEPS: list[Step] = [
    lambda life: life.controller.create_topic("t", 2, configs=SMALL) and None,
    *[append("t", b"%d" % number) for number in range(5)],
    append("t", b"other", partition=1),
    lambda life: life.log("t").delete_records(2) and None,
    allocate_producer_id,
    lambda life: (
        life.controller.create_topic("compacted", configs={**SMALL, "cleanup.policy": "compact"}) and None
    ),
    *[append("compacted", b"%d" % number, b"ab"[number % 2 :][:1]) for number in range(6)],
    reopen,
    compact(at=2000),
    append("compacted", b"after", b"a"),
    *[append("compacted", None, b"b") for _ in range(4)],
    compact(at=3000),
    compact(at=9000),
    lambda life: life.controller.create_partitions(life.controller.topics["t"], 4),
    append("t", b"new", partition=3),
    transaction(TransactionState.ONGOING, 0, 1),
    transaction(TransactionState.PREPARE_COMMIT, 0, 1),
    lambda life: life.log("t").delete_old_segments(10**9, 1000, -1) and None,
    append("t", b"after"),
    lambda life: life.controller.delete_topic(life.controller.topics["compacted"]),
    lambda life: life.controller.create_topic("compacted") and None,
    append("compacted", b"new"),
    lambda life: life.controller.configure_topic(life.controller.topics["t"], {"retention.ms": "5"}),
    reopen,
    append("t", b"last"),
    transaction(TransactionState.COMPLETE_COMMIT),
]


PRODUCER_ID_STEP = STEPS.index(allocate_producer_id) + 1
"""Number of views before a producer id is allocated."""


def run_steps(path: Path, views: list[dict[str, Any]], *, fsync: bool = False) -> None:
    """Run all steps, until the end or a simulated crash; append a view after each completed step."""
    life = StoredCluster(path, fsync=fsync)
    try:
        views.append(life.view())
        for step in STEPS:
            step(life)
            views.append(life.view())
    finally:
        life.data.close()


def check_stored(path: Path, expected: list[dict[str, Any]], done: int, story: str) -> None:
    """Check that the directory has the state before or after the interrupted step, and that it can be used."""
    life = StoredCluster(path)
    try:
        assert life.view() in expected[max(0, done - 1) : done + 1], f"{story}, in step {done}"
        assert life.controller.next_producer_id() > (1001 if done > PRODUCER_ID_STEP else 1000), (
            "producer ids are unique"
        )
        life.controller.create_topic("works")
        append_to(life.log("works"), batch(b"on"), 9)
    finally:
        life.data.close()

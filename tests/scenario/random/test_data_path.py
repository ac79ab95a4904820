"""Random faults of logs, brokers and readers, determined by a seed: what stays in a log is read and committed.

Without a group: the test moves partitions from reader to reader, each starting at the committed offset.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import FETCH_ACTIONS, FetchAction
from asyncgroup.consumer.fetcher import Fetcher
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import AsyncGroupError, CommitFailedError
from asyncgroup.lifecycle import BackgroundTasks
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import GROUP_LANE, CommittedOffset, Committer
from asyncgroup.offsets.commit_requests import COMMIT_ACTIONS, CommitAction
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.testing import current_network
from asyncgroup.wire.messages import NO_UUID
from tests.profiles import long_family, soak
from tests.scenario.random.logs import RandomLogs
from tests.scenario.random.readers import Reader, ReadHistory
from tests.stories.virtual import now

NODES = (1, 2, 3)
LARGEST_BATCH = 2000
"""The largest record batch, in bytes."""

SESSION_CODES = [
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
]
FETCH_CODES = [
    code for code, action in FETCH_ACTIONS.items() if action in (FetchAction.REDISPATCH, FetchAction.FAIL)
]
RETRIABLE = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REPLICA_NOT_AVAILABLE,
]
COMMIT_CODES = [c for c, a in COMMIT_ACTIONS.items() if a not in (CommitAction.COMMITTED, CommitAction.LOST)]
CODES = {
    "Fetch": [*FETCH_CODES, *SESSION_CODES],
    "OffsetForLeaderEpoch": RETRIABLE,
    "ListOffsets": RETRIABLE,
    "OffsetCommit": [*COMMIT_CODES, ErrorCode.OFFSET_METADATA_TOO_LARGE],
    "OffsetFetch": [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
    "FindCoordinator": [ErrorCode.COORDINATOR_NOT_AVAILABLE],
    "Metadata": [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_SERVER_ERROR],
}
APIS = ["Fetch", "Fetch", "Fetch", "OffsetForLeaderEpoch", *CODES]


class RandomRun:
    """One client with its readers, and random faults."""

    def __init__(
        self, brokers: EmbeddedCluster, cluster: ClusterClient, tasks: BackgroundTasks, rng: random.Random
    ) -> None:
        self.brokers = brokers
        self.cluster = cluster
        self.tasks = tasks
        self.rng = rng
        self.config = cluster.config
        assert isinstance(self.config, ConsumerConfig)
        self.logs = RandomLogs(brokers, rng, committed_only=self.config.isolation_level == "read_committed")
        self.fetchers = Fetcher(cluster, self.config, tasks.spawn)
        self.committer = Committer(cluster, "g")
        self.histories: dict[TopicPartition, ReadHistory] = {}
        self.readers: dict[TopicPartition, Reader] = {}
        self.former_readers: list[Reader] = []
        self.down: set[int] = set()
        self.deleted: set[str] = set()

    # --- readers ------------------------------------------------------------------------------------------------

    def read(self, tp: TopicPartition, start: CommittedOffset) -> None:
        """Start a reader at `start`."""
        consumer = PartitionConsumer(
            tp,
            start.offset,
            self.config,
            self.fetchers.budget,
            self.cluster.hooks,
            (),
            start.leader_epoch,
        )
        history = self.histories.setdefault(tp, ReadHistory(tp))
        offsets = self.committer.manage(tp, *start)
        rng = random.Random(self.rng.random())
        self.readers[tp] = Reader(self.logs, history, consumer, offsets, rng)
        self.fetchers.add(consumer)

    async def hand_over(self) -> None:
        """Replace a reader by one that starts at the committed offset; the marks are committed before only sometimes."""
        tp = self.rng.choice(sorted(self.readers))
        if self.rng.random() < 0.5:
            await self.commit()
        reader = self.readers.pop(tp)
        reader.consumer._inner.end()
        self.fetchers.remove(reader.consumer)
        self.committer.drop(tp)
        self.former_readers.append(reader)
        await reader.task
        while True:
            try:
                found = await fetch_offsets(self.cluster, "g", [tp], lane=GROUP_LANE, require_stable=True)
                break
            except AsyncGroupError:
                await asyncio.sleep(0.2)
        self.read(tp, found.get(tp, CommittedOffset(0)))

    async def commit(self) -> None:
        with contextlib.suppress(CommitFailedError):
            await self.committer.commit(retry_rejected=False)

    async def commit_periodically(self) -> None:
        while True:
            await asyncio.sleep(0.7)
            await self.commit()

    # --- faults -------------------------------------------------------------------------------------------------

    def _any(self) -> TopicPartition:
        return self.rng.choice(self.logs.partitions or [TopicPartition("orders", 0)])

    @property
    def _up(self) -> list[int]:
        return [node for node in NODES if node not in self.down]

    def write(self) -> None:
        for tp in self.logs.partitions:
            for _ in range(self.rng.randrange(4)):
                match self.rng.randrange(6):
                    case 0 | 1 | 2:
                        self.logs.append(tp, self.rng.randrange(1, 6), self.rng.choice([10, 50, 300]))
                    case 3 | 4:
                        self.logs.begin(tp, self.rng.randrange(1, 4))
                    case 5:
                        self.logs.end(tp, commit=self.rng.random() < 0.5)

    def fault(self) -> None:
        api = self.rng.choice(APIS)
        fault = self.brokers.faults.on(api, nth=self.rng.randrange(1, 4), times=self.rng.randrange(1, 5))
        match self.rng.randrange(5):
            case 0 | 1:
                fault.error(self.rng.choice(CODES[api]))
            case 2:
                fault.disconnect(self.rng.choice(["before", "after", "mid-frame"]))
            case 3:
                fault.delay(self.rng.uniform(0, 3))
            case 4:
                fault.drop()

    def move_leader(self) -> None:
        if self.logs.partitions:
            self.brokers.move_leader(*self._any(), self.rng.choice(self._up))

    def truncate(self) -> None:
        if not self.logs.partitions:
            return
        tp = self._any()
        log = self.logs.partition_of(tp).log
        end = self.logs.truncate(
            tp, self.rng.randint(max(0, log.end_offset - 15), log.end_offset), self.rng.choice(self._up)
        )
        reader = self.readers.get(tp)
        if end is not None and reader is not None and reader.consumer._inner.fetched_epoch < 0:
            # without a leader epoch the consumer cannot detect the truncation
            reader.history.excused.update(range(end, reader.consumer._inner.fetch_offset))
            reader.may_be_past_end = True

    def delete_records(self) -> None:
        if self.logs.partitions:
            tp = self._any()
            log = self.logs.partition_of(tp).log
            self.logs.delete_records(tp, self.rng.randint(log.start_offset, log.end_offset))

    def move_coordinator(self) -> None:
        self.brokers.move_coordinator("g", self.rng.choice(self._up))

    async def stop_node(self) -> None:
        if not self.down:
            self.down.add(self.rng.choice(NODES))
            await self.brokers.stop_node(*self.down)

    async def start_node(self) -> None:
        while self.down:
            await self.brokers.start_node(self.down.pop())

    def delete(self) -> None:
        name = self.rng.choice(["orders", "clicks"])
        if name not in self.deleted:
            self.logs.forget_open(name)
            self.brokers.delete_topic(name)
            self.deleted.add(name)
            for tp, reader in self.readers.items():
                if tp.topic == name:
                    consumer = reader.consumer
                    unknown = consumer._inner.fetch_source.topic_id == NO_UUID
                    reader.history.excused = set(range(consumer._inner.fetch_offset)) if unknown else set()

    def create(self) -> None:
        for name in sorted(self.deleted):
            self.brokers.create_topic(name, sum(tp.topic == name for tp in self.readers) or 1, len(self._up))
        self.deleted.clear()

    async def add_partition(self) -> None:
        name = self.rng.choice(["orders", "clicks"])
        if name in self.deleted or len(self.readers) > 8:
            return
        number = len(self.brokers.topic(name).partitions)
        self.brokers.create_partitions(name, number + 1)
        self.read(TopicPartition(name, number), CommittedOffset(0))

    def pause(self) -> None:
        consumer = self.rng.choice([reader.consumer for reader in self.readers.values()])
        (consumer.resume if consumer.paused else consumer.pause)()

    async def inject_faults(self, steps: int) -> None:
        """Inject this number of faults; the readers act on their own."""
        frequent: list[Callable[[], Any]] = [
            self.fault,
            self.fault,
            self.pause,
            self.move_leader,
            self.truncate,
        ]
        rare: list[Callable[[], Any]] = [
            self.delete_records,
            self.stop_node,
            self.start_node,
            self.hand_over,
            self.hand_over,
            self.move_coordinator,
            self.add_partition,
            self.delete,
            self.create,
            self.create,
        ]
        for _ in range(steps):
            done = self.rng.choice(self.rng.choice([frequent, frequent, rare]))()
            if done is not None:
                await done
            self.write()
            self.check_budget()
            await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.3, 1.0, 2.0]))
            self.check_budget()

    async def stop_faults(self) -> None:
        """End all faults, then append last records to each log."""
        self.brokers.faults.clear()
        self.create()
        await self.start_node()
        for reader in self.readers.values():
            reader.is_calm = True
            reader.consumer.resume()
        self.logs.finish()

    # --- invariants ---------------------------------------------------------------------------------------------

    def check_budget(self) -> None:
        consumers = [reader.consumer for reader in self.readers.values()]
        held = sum(consumer.buffered_bytes + consumer._inner.reserved for consumer in consumers)
        assert held <= self.config.buffer_bytes + LARGEST_BATCH * len(consumers), consumers

    def missing(self) -> dict[TopicPartition, list[int]]:
        """Return the offsets that should have been delivered and were not."""
        found = {}
        for tp in self.logs.partitions:
            if tp in self.histories:
                history = self.histories[tp]
                left = [
                    offset
                    for offset, value in self.logs.expected(tp).items()
                    if value not in history.seen and offset not in history.excused
                ]
                if left:
                    found[tp] = left
        return found

    @property
    def is_read(self) -> bool:
        return all(
            reader.consumer.position == self.brokers.partition(*tp).log_end_offset
            for tp, reader in self.readers.items()
        )

    def committed(self) -> dict[TopicPartition, int]:
        return {tp: at.offset for tp, at in self.brokers.group("g").offsets.items() if tp in self.readers}

    def asked_per_second(self) -> Counter[tuple[int, str]]:
        return Counter((int(one.time), one.api) for one in self.brokers.history.of(client_id="reader"))


async def run_random(seed: int, steps: int) -> RandomRun:
    """Run the faults of one seed and check the result."""
    rng = random.Random(seed)
    current_network().latency = 0.002
    racks = ["a", "b", "c"] if rng.random() < 0.5 else None
    config = ConsumerConfig(
        client_id="reader",
        request_timeout=4.0,
        auto_offset_reset="earliest",
        isolation_level=rng.choice(["read_committed", "read_uncommitted"]),
        rack_id=rng.choice("abc") if racks else "",
        buffer_bytes=40_000,
        max_partition_fetch_bytes=rng.choice([1000, 4000]),
        max_processing_time=1.0,
        fetch_retry_max=rng.choice([None, 3]),
        metadata_refresh_interval=10.0,
    )
    async with EmbeddedCluster(
        3, host="10.0.0.1", seed=seed, racks=racks, history_limit=1_000_000, history_bytes=1 << 30
    ) as brokers:
        brokers.create_topic("orders", 3)
        brokers.create_topic("clicks", 1)
        async with ClusterClient(brokers.bootstrap_servers, config) as cluster:
            cluster.random.seed(seed)
            cluster.track(["orders", "clicks"])
            await cluster.refresh()
            tasks = BackgroundTasks("run")
            await tasks.start()
            try:
                run = RandomRun(brokers, cluster, tasks, rng)
                run.fetchers.start()
                tasks.spawn(run.commit_periodically)
                for tp in run.logs.partitions:
                    run.read(tp, CommittedOffset(0))
                await run.inject_faults(steps)
                await run.stop_faults()
                await check_after_recovery(run)
            finally:
                await tasks.stop()
                await run.committer.aclose()
                for reader in run.readers.values():
                    reader.consumer._inner.end()
                    await reader.task
    return run


async def check_after_recovery(run: RandomRun) -> None:
    """Check that everything is read and committed, that requests return to their idle rate and no bytes stay reserved."""
    recovered_at = now()
    while not run.is_read:
        await asyncio.sleep(0.1)
        run.check_budget()
        assert now() - recovered_at < 60, [reader.consumer for reader in run.readers.values()]
    await asyncio.sleep(10)
    errors = [reader.errors for reader in [*run.former_readers, *run.readers.values()] if reader.errors]
    assert not errors
    assert not run.missing()
    await run.commit()  # the last fault may still affect the first commit
    await run.committer.commit()
    committed = run.committed()
    for tp, reader in run.readers.items():
        end = run.logs.partition_of(tp).log.end_offset
        assert committed[tp] == end or (reader.may_be_past_end and committed[tp] > end), (tp, reader.offsets)
    begun = now()
    await asyncio.sleep(10)
    idle = Counter((e.node_id, e.api) for e in run.brokers.history.of(client_id="reader") if e.time > begun)
    moves = (
        10 / 0.5 + 3 if run.config.rack_id else 0
    )  # each preferred read replica is used for a limited time
    assert max(idle.values()) <= 10 / 0.5 + 3 + moves * len(run.readers), f"not idle: {idle}"
    for reader in run.readers.values():
        reader.consumer.pause()
    await asyncio.sleep(1)
    assert [reader.consumer._inner.reserved for reader in run.readers.values()] == [0] * len(run.readers)
    assert not any(broker.in_flight for broker in run.fetchers._states.brokers.values())
    assert max(run.asked_per_second().values()) < 500


@pytest.mark.parametrize("seed", long_family(range(24)))
async def test_short_random_run(seed: int) -> None:
    await run_random(seed, 30)


@pytest.mark.parametrize("seed", soak(range(1000, 1300)))
async def test_long_random_run(seed: int) -> None:
    await run_random(seed, 120)

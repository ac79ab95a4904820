"""Random stories of work queues: local consumers, loops and batches that are cancelled, seeks, pauses, transactional copies.

    python -m tests.scenario.random.queues consumers 0:300

One seed is one run in virtual time. A `Plan` is drawn from the seed, members come and go while `Chaos` disturbs them, the
`Oracle` checks each delivery when it begins and all of them at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import random
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import asyncgroup
from asyncgroup import Consumer, ConsumerConfig, Producer, ProducerConfig, TopicPartition
from asyncgroup.cluster import network_client
from asyncgroup.errors import AsyncGroupError, ClosedError, CommitFailedError, TransportError
from asyncgroup.hashing.key_ranges import key_hash
from asyncgroup.producer import partitioners
from asyncgroup.testing import VirtualTimeLoop
from asyncgroup.testing.virtual.errors import describe_tasks
from asyncgroup.workqueue import (
    AckOutcome,
    Backoff,
    BatchPolicy,
    DeadLetter,
    Delivery,
    DeliveryState,
    Mode,
    QueueInterceptor,
    RetryTopic,
    WorkQueue,
)
from asyncgroup.workqueue.delivery_result import DeliveryResult
from tests.scenario.three_protocols import made_for
from tests.simulation.scope_hashes import deterministic_scope_hashes
from tests.stories.queue_members import acked, clock_of, cut_off, source_of
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import core_of, group_queue

__all__ = ["PROGRAMS", "run_seed"]

PROGRAMS: Final = ("consumers", "readers", "seeks", "transactions")
SOURCE: Final = "orders"
RETRY: Final = "orders-g-RETRY"
DLQ: Final = "orders-g-DLQ"
PARTITIONS: Final = 4
DEAD: Final = (DeliveryState.LOST, DeliveryState.RELEASED, DeliveryState.EXPIRED)
APIS: Final = (
    "Fetch", "OffsetCommit", "OffsetFetch", "Heartbeat", "JoinGroup", "SyncGroup", "FindCoordinator", "ListOffsets",
)  # fmt: skip
COPY_APIS: Final = (
    "Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "InitProducerId",
)  # fmt: skip


class Injected(Exception):
    """Raised by handlers."""


# --- plan ---------------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What a seed decides before the run."""

    program: str
    seed: int
    mode: Mode
    protocol: str
    is_transactional: bool
    has_retry: bool
    max_redeliveries: int | None
    ack_timeout: float | None
    keys: int
    records: int
    chunked: float
    delayed: float
    rates: dict[str, float]
    poison: float
    backoff: float
    slow: float
    seeks: bool
    pauses: bool
    locals: bool
    faults: float
    members: int
    crashes: float
    styles: tuple[str, ...]
    seconds: float
    ranges: bool
    cleanup: float

    @property
    def last_attempt(self) -> int | None:
        """The number of a record's last delivery."""
        if self.max_redeliveries is not None:
            return self.max_redeliveries + 1
        return 17 if self.has_retry else None


def plan_of(program: str, seed: int) -> Plan:
    """Draw a plan."""
    rng = random.Random(f"{program} {seed}")
    is_transactional = program == "transactions"
    mode = rng.choice([Mode.SHARED, Mode.KEY_SHARED, Mode.KEY_SHARED, Mode.FAILOVER])
    if program == "consumers":
        mode = rng.choice([Mode.SHARED, Mode.SHARED, Mode.KEY_SHARED, Mode.KEY_SHARED, Mode.FAILOVER])
    protocol = "cooperative" if mode.in_order else rng.choice(["eager", "cooperative", "consumer"])
    has_dead = is_transactional or rng.random() < 0.7
    styles = [("run",), ("loop",), ("receive",), ("batch",), ("loop", "receive", "batch")]
    if program == "consumers":
        styles.append(("run", "loop", "receive", "batch"))
    ack_timeout = rng.choice([None, None, 2.0, 5.0])
    rates = {
        "raise": rng.choice([0.0, 0.1, 0.3]),
        "nack": rng.choice([0.0, 0.1, 0.2]),
        "reject": rng.choice([0.05, 0.2]) if has_dead else 0.0,
        "hang": rng.choice([0.0, 0.05]),
        "slow": rng.choice([0.0, 0.1]),
        "durable": 0.1,
        "explicit": 0.1,
        "cancelled": rng.choice([0.0, 0.05]),
    }
    has_retry = has_dead and rng.random() < (0.7 if is_transactional else 0.4)
    if has_retry:
        rates["reconsume"] = rng.choice([0.1, 0.3])
    return Plan(
        program=program,
        seed=seed,
        mode=mode,
        protocol=protocol,
        is_transactional=is_transactional,
        has_retry=has_retry,
        max_redeliveries=rng.choice([1, 3, 5]) if has_dead else None,
        ack_timeout=ack_timeout,
        keys=rng.choice([1, 4, 20]),
        records=rng.choice([40, 120, 250]),
        chunked=rng.choice([0.0, 0.0, 0.2]),
        delayed=0.0 if mode.in_order else rng.choice([0.0, 0.1]),
        rates=rates,
        poison=rng.choice([0.0, 0.05]) if has_dead else 0.0,
        backoff=rng.choice([0.0, 0.3, 2.0]),
        slow=rng.choice([0.0, 0.05, 0.5]),
        seeks=program == "seeks" or (is_transactional and rng.random() < 0.2),
        pauses=rng.random() < 0.4,
        locals=program == "consumers" or rng.random() < 0.2,
        faults=rng.choice([0.0, 0.3, 1.0]),
        members=rng.choice([1, 1, 2, 3]),
        crashes=rng.choice([0.0, 0.0, 0.5]),
        styles=rng.choice(styles),
        seconds=rng.choice([20.0, 60.0]),
        ranges=mode is Mode.KEY_SHARED and rng.random() < 0.5,
        cleanup=rng.choice([0.0, 0.0, 0.5]),
    )


# --- oracle ---------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Visit:
    """A delivery at its reader."""

    member: Member
    delivery: Delivery
    style: str
    began: float
    is_running: bool = True

    @property
    def at(self) -> tuple[str, int, int]:
        """Topic, partition, offset."""
        record = self.delivery.record
        return record.topic, record.partition, record.offset

    def __str__(self) -> str:
        return f"{self.member.name} {self.style} {self.delivery!r} began {self.began:.3f}, running {self.is_running}"


class Oracle:
    """Knows all records and deliveries."""

    def __init__(self, plan: Plan, env: VirtualEnvironment) -> None:
        self.plan = plan
        self.env = env
        self.time = asyncio.get_running_loop().time
        self.sent: dict[bytes, tuple[str, int, int]] = {}
        self.first: dict[tuple[str, int, int], int] = {}
        self.key_of: dict[tuple[str, int, int], bytes | None] = {}
        self.order: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.visits: defaultdict[tuple[str, int, int], list[Visit]] = defaultdict(list)
        self.all_deliveries: defaultdict[tuple[str, int, int], list[Delivery]] = defaultdict(list)
        self.dead: set[tuple[str, int, int]] = set()
        self.skipped: set[tuple[str, int, int]] = set()
        self.copied: set[tuple[str, int, int]] = set()
        self.copying: set[tuple[str, int, int]] = set()
        self.rejected: set[bytes] = set()
        self.crashes = 0
        self.has_sought = False
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []

    def write(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.time():9.3f} {text}")

    def fail(self, text: str) -> None:
        """Report a violation."""
        self.write(f"BROKEN {text}")
        self.broken.append(text)

    def is_done(self, at: tuple[str, int, int]) -> bool:
        """Whether the record is acknowledged, as far as any of its deliveries knows."""
        if at in self.dead or at in self.skipped or at in self.copied:
            return True
        return any(each.state is DeliveryState.ACKED for each in self.all_deliveries[at])

    def may_be_copied(self, at: tuple[str, int, int]) -> bool:
        """Whether a transaction may have committed the copy of a record without the knowledge of the member that has lost it."""
        return self.plan.is_transactional and at in self.copying

    def begin(self, member: Member, delivery: Delivery, style: str) -> Visit:
        """A reader begins with a delivery."""
        visit = Visit(member, delivery, style, self.time())
        at = visit.at
        self.counts["deliveries"] += 1
        self.all_deliveries[at].append(delivery)
        key = delivery.ordering_key
        if at not in self.key_of:  # a copy in the retry topic
            self.key_of[at] = key
            order = self.order[at[:2]]
            order.append(at[2])
            order.sort()
        self.write(f"{member.name} {style} begins {delivery!r} key {key!r}")
        last = self.plan.last_attempt
        if delivery.attempt == last:
            self.copying.add(at)
        if last is not None and delivery.attempt > last:
            self.fail(f"attempt {delivery.attempt} of at most {last}: {visit}")
        if member.is_dead:
            return visit
        for other in self.visits[at]:
            if other.member is member and other.is_running:
                overlaps = other.style == "run" and style == "run"
                if other.delivery.state is DeliveryState.ACQUIRED or overlaps:
                    self.fail(f"two readers at once: {visit}, {other}")
        if not self.has_sought:
            if self.plan.mode is Mode.KEY_SHARED and key is not None:
                self._check_key(visit, key)
            elif (
                self.plan.mode.in_order and at[0] == SOURCE
            ):  # copies in the retry topic wait for their times
                self._check_order(visit)
        self.visits[at].append(visit)
        return visit

    def _check_key(self, visit: Visit, key: bytes) -> None:
        topic, partition, offset = visit.at
        for earlier in self.order[topic, partition]:
            at = (topic, partition, earlier)
            if self.key_of[at] != key:
                continue
            if earlier != offset:
                for other in self.visits[at]:
                    if other.member is visit.member and other.is_running:
                        acquired = other.delivery.state is DeliveryState.ACQUIRED
                        if acquired or (other.style == "run" and visit.style == "run"):
                            self.fail(f"two of a key at once: {visit}, {other}")
            if earlier < offset and not self.is_done(at) and not self.may_be_copied(at):
                self.fail(f"{earlier} of the same key is not done: {visit}; {[*map(str, self.visits[at])]}")

    def _check_order(self, visit: Visit) -> None:
        topic, partition, offset = visit.at
        claimed_at = visit.member.claimed.get(TopicPartition(topic, partition), 0.0)
        for earlier in self.order[topic, partition]:
            at = (topic, partition, earlier)
            if earlier >= offset:
                break
            if self.is_done(at) or self.may_be_copied(at):
                continue
            mine = [
                each for each in self.visits[at] if each.member is visit.member and each.began >= claimed_at
            ]
            serial = visit.style == "run" and visit.member.runs
            if not serial and not mine and self._is_copied_unseen(visit.member, at):
                continue
            allowed = (
                DeliveryState.ACQUIRED,
                DeliveryState.PUBLISHING,
                DeliveryState.NACKED,
                DeliveryState.EXPIRED,
            )
            if serial or not mine or mine[-1].delivery.state not in allowed:
                self.fail(f"{earlier} is not done: {visit}; {[*map(str, mine)]}")

    def _is_copied_unseen(self, member: Member, at: tuple[str, int, int]) -> bool:
        """Whether the member copies a record that had all its deliveries before its partition came: no reader sees it again.

        As when the last delivery fails at a loop of the member itself, the records after it do not wait for the copy.
        """
        if max((each.attempt for each in self.all_deliveries[at]), default=0) != self.plan.last_attempt:
            return False
        assert member.queue is not None
        copies = core_of(member.queue).dispatcher.outcomes.publisher._copies.get(TopicPartition(*at[:2]), ())
        return any(each.delivery.record.offset == at[2] for each in copies)

    def end(self, visit: Visit) -> None:
        """The reader is done with it."""
        visit.is_running = False
        self.write(f"{visit.member.name} {visit.style} ends {visit.delivery!r}")


class Watch(QueueInterceptor):
    """Sees dead letters and claims."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        record = delivery.record
        oracle = self.member.oracle
        oracle.dead.add((record.topic, record.partition, record.offset))
        oracle.write(f"{self.member.name} dead letter {delivery!r} {reason}")

    def became_active(self, tp: TopicPartition) -> None:
        self.member.claimed[tp] = self.member.oracle.time()
        self.member.oracle.write(f"{self.member.name} active {tp}")

    def became_inactive(self, tp: TopicPartition) -> None:
        self.member.oracle.write(f"{self.member.name} inactive {tp}")


# --- a member -------------------------------------------------------------------------------------------------------------


class Member:
    """A queue with its readers, in a separate task."""

    def __init__(self, story: Story, name: str, *, is_last: bool = False) -> None:
        self.story, self.plan, self.env, self.oracle = story, story.plan, story.env, story.oracle
        self.name = name
        self.is_last = is_last
        self.rng = random.Random(f"{self.plan.program} {self.plan.seed} {name}")
        self.is_dead = False
        self.runs = False
        self.claimed: dict[TopicPartition, float] = {}
        self.sought_at = -1.0
        self.ending = asyncio.Event()
        self.opened = asyncio.Event()
        self.readers: dict[asyncio.Task[None], Any] = {}
        self.queue: WorkQueue | None = None
        self.consumers: list[Any] = []
        self.has_locals = self.plan.locals and not is_last

    def options(self) -> dict[str, Any]:
        """The options of the queue."""
        plan, rng = self.plan, self.rng
        more: dict[str, Any] = {}
        if plan.max_redeliveries is not None:
            more["dead_letter"] = DeadLetter(plan.max_redeliveries, partitions=2)
        if plan.has_retry:
            more["retry"] = RetryTopic(RETRY, partitions=2)  # a name of the user, so that no copy is deleted
        if plan.is_transactional:
            more["transactional_copies"] = True
        if plan.max_redeliveries is not None:
            more["producer_config"] = ProducerConfig(
                chunking=True,
                max_chunk_size=3000,
                transaction_timeout=10.0,
                request_timeout=2.0,
                delivery_timeout=6.0,
            )
        isolation = {"isolation_level": "read_committed"} if plan.is_transactional else {}
        config = self.env.config(
            self.name,
            chunks="assemble",
            request_timeout=3.0,
            close_timeout=5.0,
            rebalance_timeout=10.0,
            **isolation,
        )
        return {
            "mode": plan.mode,
            "concurrency": rng.choice([1, 2, 5, 50]),
            "ack_timeout": plan.ack_timeout,
            "nack_backoff": Backoff(plan.backoff, 2.0, 5.0 if plan.backoff else 0.0),
            "ack_group_time": rng.choice([0.0, 0.1, 0.5]),
            "receiver_queue": rng.choice([0, 1, 3, 1000]),
            "max_waiting": rng.choice([3, 10_000]),
            "retry_share": rng.choice([0.1, 0.3, 1.0]),
            "config": ConsumerConfig(**config),
            "interceptors": [Watch(self)],
            "clock": clock_of(self.env),
            "name": self.name,
            **more,
        }

    async def run(self) -> None:
        """The life of the member."""
        with source_of(self.env, self.name):
            queue = group_queue(self.env.bootstrap_servers, self.env.group_id, SOURCE, **self.options())
            try:
                async with queue:
                    self.queue = queue
                    self.oracle.write(f"{self.name} is open")
                    self.opened.set()
                    living = asyncio.create_task(self.live(queue), name=f"{self.name} lives")
                    await self.ending.wait()
                    living.cancel()
                    await asyncio.wait([living])
                    if not living.cancelled() and living.exception() is not None:
                        raise living.exception() or AssertionError
                    if queue.paused and self.rng.random() < 0.5:
                        queue.resume()
                    await self.close(queue)
            finally:
                self.opened.set()
                for task in list(self.readers):
                    task.cancel()
                if self.readers:
                    await asyncio.wait(list(self.readers))

    async def close(self, queue: WorkQueue) -> None:
        """Close, and see how long it takes."""
        self.oracle.write(f"{self.name} closes")
        began = self.oracle.time()
        if self.is_dead or self.rng.random() < 0.5:
            for task in list(self.readers):
                task.cancel()
        await queue.aclose()
        took = self.oracle.time() - began
        self.oracle.write(f"{self.name} is closed")
        if took > 30.0:
            self.oracle.fail(f"{self.name}: the close took {took}")
        began = self.oracle.time()
        if self.readers:
            _, left = await asyncio.wait(list(self.readers), timeout=400.0)
            for task in left:
                self.oracle.fail(f"{self.name}: {task} still reads after the close")

    async def live(self, queue: WorkQueue) -> None:
        """Start and cancel readers, add and close consumers, pause, seek."""
        rng, plan = self.rng, self.plan
        if self.is_last:
            self.start_reader(queue, "run")
            return
        if self.has_locals:
            self.add_consumer(queue)
        else:
            self.start_reader(queue, rng.choice(plan.styles))
        while True:
            await asyncio.sleep(rng.uniform(0.1, 3.0))
            match rng.randrange(7) if not self.story.is_calm else 6:
                case 0 | 1 if self.readers:
                    task = rng.choice(list(self.readers))
                    self.oracle.write(f"{self.name} cancels a reader")
                    task.cancel()
                    await asyncio.wait([task], timeout=5.0)
                case 2 if self.has_locals:
                    self.add_consumer(queue)
                case 3 if self.has_locals and self.consumers:
                    consumer = self.consumers.pop(rng.randrange(len(self.consumers)))
                    self.oracle.write(f"{self.name} closes {consumer!r}")
                    await consumer.aclose()
                case 4 if plan.pauses:
                    self.oracle.write(f"{self.name} pauses")
                    queue.pause()
                    await asyncio.sleep(rng.uniform(0.0, 5.0))
                    queue.resume()
                    self.oracle.write(f"{self.name} resumes")
                case 5 if plan.seeks:
                    await self.seek(queue)
                case _:
                    pass
            self.ensure_readers(queue)

    def ensure_readers(self, queue: WorkQueue) -> None:
        """Start readers where there are none."""
        rng = self.rng
        if self.has_locals:
            if not self.consumers:
                self.add_consumer(queue)
            for consumer in self.consumers:
                if not any(reads is consumer for reads in self.readers.values()):
                    self.start_reader(consumer, rng.choice(self.plan.styles))
        elif not self.readers or (
            self.plan.styles != ("run",) and len(self.readers) < 3 and rng.random() < 0.3
        ):
            styles = self.plan.styles
            self.start_reader(queue, rng.choice(styles))

    def add_consumer(self, queue: WorkQueue) -> None:
        """Add a local consumer."""
        rng = self.rng
        if len(self.consumers) >= (1 if self.plan.mode.in_order else 4):
            return
        taken = {each.name for each in self.consumers}
        number = next(n for n in range(9) if f"c{n}" not in taken)
        ranges = [(16_384 * number, 16_384 * number + 16_383)] if self.plan.ranges else None
        consumer = queue.consumer(
            f"c{number}",
            priority=rng.choice([0, 0, 1]),
            receiver_queue=rng.choice([1, 2, 5, 1000]),
            key_ranges=ranges,
            concurrency=rng.choice([1, 3]),
        )
        self.oracle.write(f"{self.name} adds {consumer!r}")
        self.consumers.append(consumer)
        self.start_reader(consumer, rng.choice(self.plan.styles))

    async def seek(self, queue: WorkQueue) -> None:
        """Seek to another offset in one partition."""
        rng, oracle = self.rng, self.oracle
        owned = [each.tp for each in queue.statistics().partitions if each.tp.topic == SOURCE]
        if not owned:
            return
        tp = rng.choice(owned)
        offsets = oracle.order[tp]
        if not offsets:
            return
        at = oracle.first[(*tp, rng.choice(offsets))]  # a value in chunks is read again from its first one
        oracle.has_sought = True
        for earlier in offsets:
            if earlier < at:
                oracle.skipped.add((*tp, earlier))
        self.sought_at = oracle.time()
        oracle.write(f"{self.name} seeks {tp} {at}")
        try:
            await queue.seek({tp: at})
        except asyncgroup.ConfigError as error:
            oracle.write(f"seek: {error}")
        except AsyncGroupError as error:
            oracle.write(f"seek: {error!r}")
        self.sought_at = oracle.time()

    # --- readers ------------------------------------------------------------------------------------------------------------

    def start_reader(self, source: Any, style: str) -> None:
        """Start a task that reads the queue or a local consumer."""
        if style == "run" and any(
            reads is source and task.get_name().endswith("run") for task, reads in self.readers.items()
        ):
            return
        if self.plan.mode.in_order and any(reads is source for reads in self.readers.values()):
            return  # with an order there is one reader
        task = asyncio.create_task(self.read(source, style), name=f"{self.name} {style}")
        self.readers[task] = source
        self.oracle.write(f"{self.name} starts {style}")
        task.add_done_callback(self.on_reader_end)

    def on_reader_end(self, task: asyncio.Task[None]) -> None:
        """A reader has ended."""
        self.readers.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.oracle.write(f"{self.name}: reader ended {error!r}")
            if not self.is_dead and not isinstance(error, TransportError):
                self.oracle.fail(f"{self.name}: {task.get_name()} raised {error!r}")

    async def read(self, source: Any, style: str) -> None:
        """Read until the queue closes."""
        self.runs = style == "run"
        ranges = source.key_ranges if self.plan.ranges and source is not self.queue else ()
        match style:
            case "run":
                await source.run(functools.partial(self.handle, ranges=ranges))
            case "loop":
                async for delivery in source:
                    self.check_ranges(delivery, ranges)
                    await self.handle_in_block(delivery, style)
            case "receive":
                with contextlib.suppress(ClosedError):
                    while True:
                        try:
                            delivery = await asyncio.wait_for(source.receive(), self.rng.uniform(0.05, 3.0))
                        except TimeoutError:
                            await asyncio.sleep(0)
                            continue
                        self.check_ranges(delivery, ranges)
                        await self.handle_in_block(delivery, style)
            case "batch":
                with contextlib.suppress(ClosedError):
                    while True:
                        policy = BatchPolicy(
                            max_records=self.rng.choice([None, 1, 5]),
                            max_bytes=self.rng.choice([20, 100, 10_000]),
                            timeout=0.2,
                        )
                        await self.handle_batch(await source.batch_receive(policy))

    def check_ranges(self, delivery: Delivery, ranges: Any) -> None:
        """A consumer that names hash ranges gets the keys in them only."""
        key = delivery.ordering_key
        if ranges and key is not None and not any(key_hash(key) in each for each in ranges):
            self.oracle.fail(f"{self.name}: {delivery!r} of key {key!r} at the ranges {ranges}")

    async def handle(self, delivery: Delivery, ranges: Any) -> None:
        """The handler of `run`."""
        self.check_ranges(delivery, ranges)
        visit = self.oracle.begin(self, delivery, "run")
        try:
            await self.work(delivery, "run")
        except asyncio.CancelledError:
            if self.plan.cleanup:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(self.plan.cleanup)
            raise
        finally:
            self.oracle.end(visit)

    async def handle_in_block(self, delivery: Delivery, style: str) -> None:
        """A delivery of a loop."""
        visit = self.oracle.begin(self, delivery, style)
        try:
            with contextlib.suppress(Injected):
                async with delivery:
                    await self.work(delivery, style)
        finally:
            self.oracle.end(visit)

    async def handle_batch(self, batch: Any) -> None:
        """The deliveries of a batch."""
        visits = [self.oracle.begin(self, each, "batch") for each in batch]
        try:
            async with batch:
                for visit in visits:
                    if visit.delivery.state in DEAD:
                        continue
                    try:
                        with contextlib.suppress(Injected):
                            async with visit.delivery:
                                await self.work(visit.delivery, "batch")
                    finally:
                        self.oracle.end(visit)
        finally:
            for visit in visits:
                if visit.is_running:
                    self.oracle.end(visit)

    # --- work ---------------------------------------------------------------------------------------------------------------

    async def work(self, delivery: Delivery, style: str) -> None:
        """Do what seed, value and attempt say."""
        plan, oracle = self.plan, self.oracle
        value = (delivery.value or b"")[:6]
        rng = random.Random(f"{plan.seed} {value!r} {delivery.attempt}")
        if plan.slow:
            await asyncio.sleep(rng.uniform(0.0, plan.slow))
        if self.is_dead:
            await asyncio.sleep(1e4)
        is_poison = random.Random(f"{plan.seed} {value!r}").random() < plan.poison
        kind = "raise" if is_poison else self.draw(rng)
        if self.is_last and kind in ("hang", "slow"):
            kind = "ack"
        if kind in ("raise", "nack", "cancelled") and plan.last_attempt is None and delivery.attempt > 3:
            kind = "ack"
        match kind:
            case "raise":
                raise Injected(kind)
            case "nack":
                with contextlib.suppress(asyncgroup.UsageError):
                    await delivery.nack(delay=rng.choice([0.0, 0.5, 3.0]))
            case "cancelled" if style == "run":
                raise asyncio.CancelledError
            case "reject":
                oracle.rejected.add(value)
                await self.copied(delivery, lambda: delivery.reject("no"))
            case "reconsume" if delivery.attempt <= 3:
                delay = rng.choice([0.0, 0.5, 3.0])
                await self.copied(delivery, lambda: delivery.reconsume_later(delay))
            case "hang":
                await asyncio.sleep((plan.ack_timeout or 3.0) + rng.choice([-1.0, 0.5, 8.0]))
            case "slow":
                await asyncio.sleep(rng.uniform(0.0, 3.0))
                await delivery.renew()
            case "explicit":
                await delivery.ack()
            case "durable":
                with contextlib.suppress(CommitFailedError):
                    outcome = await delivery.ack(durable=True)
                    oracle.write(f"{self.name} durable {delivery!r}: {outcome}")
            case _:
                pass

    def draw(self, rng: random.Random) -> str:
        """Draw a kind of end."""
        rest = rng.random()
        for kind, rate in self.plan.rates.items():
            rest -= rate
            if rest < 0:
                return kind
        return "ack"

    async def copied(self, delivery: Delivery, call: Callable[[], DeliveryResult[AckOutcome]]) -> None:
        """Await a copy, which begins at the call."""
        if delivery.state is not DeliveryState.ACQUIRED:
            raise Injected("too late")
        record = delivery.record
        self.oracle.copying.add((record.topic, record.partition, record.offset))
        outcome = await call()
        if outcome:
            self.oracle.copied.add((record.topic, record.partition, record.offset))
            if self.plan.is_transactional and outcome is not AckOutcome.COMMITTED:
                self.oracle.fail(f"{delivery!r}: {outcome}")


# --- the story --------------------------------------------------------------------------------------------------------------


@dataclass
class Story:
    """A run."""

    plan: Plan
    env: VirtualEnvironment
    oracle: Oracle = field(init=False)
    number: int = 0
    is_calm: bool = False
    """Whether nothing is disturbed any more: members and their readers stay."""

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.plan, self.env)
        self.rng = random.Random(f"story {self.plan.program} {self.plan.seed}")
        self.members: list[Member] = []

    async def produce(self) -> None:
        """Write the records over time."""
        plan, rng, oracle = self.plan, self.rng, self.oracle
        config = ProducerConfig(chunking=True, max_chunk_size=1024)
        async with Producer(self.env.bootstrap_servers, config, clock=clock_of(self.env)) as producer:
            for number in range(plan.records):
                value = b"%06d" % number
                if rng.random() < plan.chunked:
                    value += b"x" * rng.choice([1500, 4000])
                key = None if rng.random() < 0.1 else b"k%d" % rng.randrange(plan.keys)
                partition = rng.randrange(rng.choice([1, PARTITIONS]))
                more = {"deliver_after": rng.uniform(0.1, 5.0)} if rng.random() < plan.delayed else {}
                # one at a time, so that the oracle knows a record before any reader gets it
                metadata = await producer.send(SOURCE, value, key=key, partition=partition, **more)
                at = (SOURCE, partition, metadata.offset)
                oracle.sent[value[:6]] = at
                oracle.first[at] = metadata.first_offset
                oracle.key_of[at] = key
                if metadata.offset not in oracle.order[at[:2]]:
                    oracle.order[at[:2]].append(metadata.offset)
                    oracle.order[at[:2]].sort()
                if rng.random() < 0.05:
                    await asyncio.sleep(plan.seconds / plan.records * 20)

    async def disturb(self) -> None:
        """Make requests fail, cut connections, move coordinators, until cancelled."""
        rng, plan, faults = self.rng, self.plan, self.env.cluster.faults
        if not plan.faults:
            await asyncio.sleep(1e6)
        while True:
            await asyncio.sleep(rng.expovariate(plan.faults))
            name = rng.choice(self.members).name if self.members else "m1"
            kind = rng.randrange(7)
            if kind == 0:
                if name in self.env._hosts:
                    self.oracle.write(f"cut {name}")
                    self.env.network.cut(self.env._hosts[name])
                continue
            if kind == 1 and rng.random() < 0.3:
                self.env.cluster.move_coordinator("g", rng.randint(1, 3))
                continue
            api = rng.choice(COPY_APIS if rng.random() < 0.5 else APIS)
            fault = faults.on(api, client_id=name, times=rng.randint(1, 3)).optional()
            self.oracle.write(f"fault {kind} {api} {name}")
            match kind:
                case 2:
                    fault.disconnect("before")
                case 3:
                    fault.disconnect("after")
                case 4:
                    fault.drop()
                case 5:
                    fault.delay(rng.uniform(0.1, 8.0))
                case _:
                    fault.delay(rng.uniform(0.0, 0.3))

    async def run_members(self, ending: asyncio.Event) -> None:
        """Run one member after another."""
        rng, plan = self.rng, self.plan
        while not ending.is_set():
            self.number += 1
            member = Member(self, f"m{self.number}")
            self.members.append(member)
            task = asyncio.create_task(member.run(), name=member.name)
            await member.opened.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(3.0, plan.seconds)):
                    await ending.wait()
            if self.is_calm:
                await ending.wait()
            if not ending.is_set() and rng.random() < plan.crashes:
                self.oracle.write(f"{member.name} dies")
                self.oracle.crashes += 1
                member.is_dead = True
                if member.name in self.env._hosts:
                    cut_off(self.env, member.name)
            member.ending.set()
            await asyncio.wait([task])
            self.members.remove(member)
            try:
                task.result()
            except TransportError as error:
                self.oracle.write(f"{member.name}: {error!r}")
            except AsyncGroupError as error:
                if not member.is_dead:
                    self.oracle.fail(f"{member.name} raised {error!r}")

    async def run(self) -> None:
        """The whole story."""
        oracle, env = self.oracle, self.env
        ending = asyncio.Event()
        disturbing = asyncio.create_task(self.disturb(), name="disturb")
        living = [
            asyncio.create_task(self.run_members(ending), name="members") for _ in range(self.plan.members)
        ]
        await self.produce()
        await asyncio.sleep(self.plan.seconds / 2)
        disturbing.cancel()
        env.cluster.faults.clear()
        await asyncio.wait([disturbing])
        oracle.write("faults end")
        if self.rng.random() < 0.5 and not (self.plan.locals and self.plan.ranges):  # ranges may have gaps
            self.is_calm = True
            await self.until_done(600.0, "by themselves")
        ending.set()
        await asyncio.wait(living)
        for task in living:
            task.result()
        last = Member(self, "last", is_last=True)
        task = asyncio.create_task(last.run(), name="last")
        await last.opened.wait()
        await self.until_done(600.0, "by the last member")
        last.ending.set()
        await asyncio.wait([task])
        task.result()
        await self.check_end()

    async def until_done(self, limit: float, who: str) -> None:
        """Wait until all records are acknowledged by commits."""
        oracle, env = self.oracle, self.env
        began = oracle.time()
        left: Any = None
        while oracle.time() < began + limit:
            left = None
            for topic, partitions in ((SOURCE, PARTITIONS), *(((RETRY, 2),) if self.plan.has_retry else ())):
                for number in range(partitions):
                    done = set(await acked(env, number, topic))
                    for at in self.known(topic, number):
                        if at not in done:
                            left = (topic, number, at)
                    if topic == SOURCE:
                        self.check_committed(number, done)
            if left is None or oracle.broken:
                break
            await asyncio.sleep(1.0)
        oracle.write(f"done {who} after {oracle.time() - began}: {left}")
        oracle.counts["stall" if left else "done"] += 1
        if left and not oracle.broken:
            states = [
                repr(member.queue) + repr(member.queue and core_of(member.queue).dispatcher.works)
                for member in self.members
            ]
            oracle.fail(
                f"{who}: {left} is not acknowledged; {[*map(str, oracle.visits[left])][-3:]} {states}"
            )

    def known(self, topic: str, partition: int) -> list[int]:
        """The offsets of the records of a partition."""
        if topic == SOURCE:
            return self.oracle.order[topic, partition]
        part = self.env.cluster.topic(topic).partitions[partition]
        return list(range(part.high_watermark - 1)) if part.high_watermark else []

    def check_committed(self, partition: int, done: set[int]) -> None:
        """Nothing is committed that was not acknowledged, copied or skipped."""
        oracle = self.oracle
        for offset in oracle.order[SOURCE, partition]:
            at = (SOURCE, partition, offset)
            if offset in done and not oracle.is_done(at):
                states = [each.state for each in oracle.all_deliveries[at]]
                if (
                    DeliveryState.PUBLISHING in states
                    or DeliveryState.LOST in states
                    or DeliveryState.EXPIRED in states
                ):
                    continue  # a copy whose outcome its member does not know: the copies are checked at the end
                oracle.fail(
                    f"{at} is committed, and no reader has acknowledged it: {[*map(str, oracle.visits[at])]}"
                )

    async def check_end(self) -> None:
        """Each record is handled or a dead letter."""
        oracle, plan = self.oracle, self.plan
        dead = await self.copies(DLQ) if plan.max_redeliveries is not None else []
        again = await self.copies(RETRY) if plan.has_retry else []
        ends: defaultdict[bytes, set[str]] = defaultdict(set)
        for at, deliveries in oracle.all_deliveries.items():
            for each in deliveries:
                if each.state is DeliveryState.ACKED and at not in oracle.dead:
                    ends[(each.value or b"")[:6]].add("acked")
        numbers = Counter((record.value or b"")[:6] for record in dead)
        for value in oracle.sent:
            at = oracle.sent[value]
            if not numbers[value] and value not in ends and at not in oracle.skipped:
                oracle.fail(f"{value!r} at {at} was neither acknowledged nor a dead letter")
        if plan.is_transactional and not oracle.has_sought:
            if twice := {value: count for value, count in numbers.items() if count > 1}:
                oracle.fail(f"dead letters twice: {twice}")
            names = Counter(((r.value or b"")[:6], dict(r.headers).get("RECONSUMETIMES")) for r in again)
            if more := {name: count for name, count in names.items() if count > 1}:
                oracle.fail(f"retry copies twice: {more}")
        for record in dead:
            value, headers = (record.value or b"")[:6], dict(record.headers)
            count = int(headers.get("__dlq.errors.delivery.count") or b"-1")
            is_last = count == plan.last_attempt
            if value not in oracle.sent:
                oracle.fail(f"an unknown dead letter {record}")
            elif not is_last and value not in oracle.rejected:
                oracle.fail(f"dead letter {value!r} after {count} deliveries: {headers}")
            if len(record.value or b"") != 6 and set((record.value or b"")[6:]) != {ord("x")}:
                oracle.fail(f"dead letter {value!r} is not complete")
        oracle.counts["dead"] += len(dead)
        oracle.counts["again"] += len(again)

    async def copies(self, topic: str) -> list[Any]:
        """What readers with read_committed see."""
        found = []
        config = ConsumerConfig(isolation_level="read_committed", chunks="assemble")
        parts = self.env.cluster.topic(topic).partitions
        async with asyncio.timeout(100.0):
            while any(
                part.last_stable_offset != part.high_watermark
                for part in self.env.cluster.topic(topic).partitions
            ):
                await asyncio.sleep(1.0)
        async with Consumer(self.env.bootstrap_servers, config) as consumer:
            for number in range(len(parts)):
                reader = await consumer.partition(topic, number, 0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        async for record in reader:
                            found.append(record)  # noqa: PERF401  those before the timeout count
        return found


# --- running ----------------------------------------------------------------------------------------------------------------


async def _story(plan: Plan, found: list[Story]) -> None:
    async with made_for(plan.protocol, nodes=3) as env:
        story = Story(plan, env)
        found.append(story)
        await story.run()
    for _ in range(20):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        story.oracle.fail(f"tasks are left: {describe_tasks(left)}")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the random generators and the UUIDs of the clients."""
    rng = random.Random(seed)
    seeded = SimpleNamespace(Random=lambda: random.Random(rng.random()))
    with (
        patch.object(network_client, "random", seeded),
        patch.object(partitioners, "random", seeded),
        patch.object(os, "urandom", rng.randbytes),
    ):
        yield


def run_seed(program: str, seed: int) -> tuple[Story, list[str]]:
    """Run a seed; return the story and what is broken."""
    plan = plan_of(program, seed)
    found: list[Story] = []
    broken: list[str] = []
    with deterministic_scope_hashes(), _seeded(seed):
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(max_virtual_time=20_000.0)) as runner:
            runner.get_loop().set_exception_handler(
                lambda _loop, context: broken.append(f"asyncio: {context}")
            )
            try:
                runner.run(_story(plan, found))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                broken.append("".join(traceback.format_exception(error)[-4:]))
    return found[0], [*found[0].oracle.broken, *broken]


def main() -> int:
    """Run a range of seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("seeds")
    parser.add_argument("--story", action="store_true")
    given = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    first, _, last = given.seeds.partition(":")
    totals: Counter[str] = Counter()
    failed = []
    for seed in range(int(first), int(last or int(first) + 1)):
        story, broken = run_seed(given.program, seed)
        totals += story.oracle.counts
        if given.story:
            print(*story.oracle.story, sep="\n")
        if broken:
            failed.append(seed)
            plan = story.plan
            print(
                f"seed {seed}: {plan.mode} {plan.protocol} {plan.styles} locals={plan.locals}: {broken[0][:900]}",
                flush=True,
            )
    print(f"{given.program} {given.seeds}: {len(failed)} failed: {failed}; {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

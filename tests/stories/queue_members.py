"""Work queues of the stories: consumers that record what they handle, what they read, and what the group has committed.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from asyncgroup import Consumer, ConsumerConfig, Producer, TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.model import MillisClock, Record, wall_clock
from asyncgroup.offsets import GROUP_LANE
from asyncgroup.offsets.commit_metadata import CommitMetadata, decode_metadata
from asyncgroup.offsets.fetch_offsets import StoredCommit, fetch_commits
from asyncgroup.workqueue import Delivery, Mode, WorkQueue
from asyncgroup.workqueue.group_engine.claim_window import _restore
from tests.stories.environment import Environment
from tests.stories.virtual import VirtualEnvironment
from tests.work_queues import core_of, group_queue

__all__ = [
    "Gates",
    "QueueMember",
    "Work",
    "acked",
    "clock_of",
    "cut_off",
    "label",
    "metadata_of",
    "no_work",
    "opened",
    "read_topic",
    "send",
    "stored",
    "window_of",
    "working",
]

Work: TypeAlias = Callable[[Delivery], Awaitable[object]]


def label(delivery: Delivery) -> str:
    """Return partition, offset and attempt of a delivery, as `0@5#1`."""
    record = delivery.record
    return f"{record.partition}@{record.offset}#{delivery.attempt}"


async def no_work(_delivery: Delivery) -> None:
    """Do nothing."""


class Gates:
    """Work that blocks at each delivery until the gate of its offset is opened."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._changed = asyncio.Event()
        self.all = False

    def open(self, *offsets: int) -> None:
        """Let the deliveries of these offsets pass; without offsets all."""
        self._open.update(offsets)
        self.all = self.all or not offsets
        self._changed.set()
        self._changed = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        while not self.all and delivery.record.offset not in self._open:
            await self._changed.wait()


class QueueMember:
    """A work queue with a handler that runs `work` and records `begin`, `end`, `error` and `cancelled` in `calls`."""

    def __init__(self, env: Environment, name: str, queue: WorkQueue, work: Work) -> None:
        self.env = env
        self.name = name
        self.queue = queue
        self.work = work
        self.calls: list[str] = []
        self.deliveries: dict[str, Delivery] = {}
        self.run: asyncio.Task[None] | None = None

    def note(self, call: str) -> None:
        """Record a call."""
        self.calls.append(call)
        self.env.bell.ring()

    async def until(self, *calls: str) -> None:
        """Wait until `calls` contains each of these."""

        def missing() -> list[str]:
            return [call for call in calls if self.calls.count(call) < calls.count(call)]

        await self.env.bell.until(lambda: not missing(), f"{calls} among {self.calls}", self.env.limit)

    async def until_count(self, kind: str, count: int) -> None:
        """Wait until `calls` has this many of this kind."""
        await self.env.bell.until(
            lambda: len(self.of(kind)) >= count, f"{count} times {kind}: {self.calls}", self.env.limit
        )

    def of(self, kind: str) -> list[str]:
        """Return the labels of the calls of this kind."""
        return [call.removeprefix(f"{kind} ") for call in self.calls if call.startswith(f"{kind} ")]

    async def handle(self, delivery: Delivery) -> None:
        """The handler."""
        text = label(delivery)
        self.deliveries[text] = delivery
        self.note(f"begin {text}")
        try:
            await self.work(delivery)
        except asyncio.CancelledError:
            self.note(f"cancelled {text}")
            raise
        except BaseException:
            self.note(f"error {text}")
            raise
        self.note(f"end {text}")


def source_of(env: Environment, name: str) -> AbstractContextManager[None]:
    """Return the context in which a member connects: in virtual time from a host of its own."""
    if not isinstance(env, VirtualEnvironment):
        return contextlib.nullcontext()
    return env.network.source(env._hosts.setdefault(name, f"10.1.0.{len(env._hosts) + 1}"))


def cut_off(env: VirtualEnvironment, name: str) -> None:
    """Drop all packets of the member, and abort its connections."""
    host = env._hosts[name]
    env.network.blackhole(host)
    env.network.cut(host)


_BEGIN: Final = wall_clock()


def clock_of(env: Environment) -> MillisClock:
    """Return the time of day; in virtual time it goes with the loop's, so that delivery times are exact."""
    if not isinstance(env, VirtualEnvironment):
        return wall_clock
    time = asyncio.get_running_loop().time
    return lambda: _BEGIN + int(time() * 1000)


@contextlib.asynccontextmanager
async def opened(
    env: Environment,
    member: str = "ann",
    /,
    *,
    config: dict[str, Any] | None = None,
    topics: Any = None,
    **options: Any,
) -> AsyncIterator[WorkQueue]:
    """Open a work queue on the topic and the group of the story; `config` is added to the group's configuration."""
    settings = ConsumerConfig(**env.config(member, **(config or {})))
    if not (
        settings.assignors
        or settings.group_protocol == "consumer"
        or options.get("mode", Mode.SHARED).in_order
    ):
        settings = dataclasses.replace(
            settings, assignors=("range",)
        )  # eager; a queue's default is cooperative
    queue = group_queue(
        env.bootstrap_servers,
        env.group_id,
        topics or env.topic,
        config=settings,
        hooks=[env.bell],
        **{"clock": clock_of(env), **options},
    )
    with source_of(env, member):
        async with queue:
            core_of(queue).engine.cluster._inner.random.seed(member)
            yield queue


@contextlib.asynccontextmanager
async def working(
    env: Environment, member: str = "ann", work: Work = no_work, /, **options: Any
) -> AsyncIterator[QueueMember]:
    """Open a work queue whose handler runs `work`; at the end of the block it is closed, and its failure raised."""
    async with opened(env, member, **options) as queue:
        worker = QueueMember(env, member, queue, work)
        worker.run = asyncio.create_task(queue.run(worker.handle), name=f"queue {member}")
        try:
            yield worker
        finally:
            await queue.aclose()
            await asyncio.wait([worker.run])
    if not worker.run.cancelled():
        await worker.run


async def send(
    env: Environment,
    *values: bytes | tuple[bytes | None, bytes],
    partition: int | None = 0,
    topic: str | None = None,
    **more: Any,
) -> None:
    """Write records in order, values or pairs of key and value."""
    pairs = [value if isinstance(value, tuple) else (None, value) for value in values]
    async with Producer(env.bootstrap_servers, clock=clock_of(env)) as producer:
        sending = [
            producer.send(topic or env.topic, value, key=key, partition=partition, **more)
            for key, value in pairs
        ]
        await asyncio.gather(*sending)


# --- what the group has committed ---------------------------------------------------------------------------------------


async def stored(env: Environment, partition: int = 0, topic: str | None = None) -> StoredCommit | None:
    """Return the group's commit of a partition."""
    tp = TopicPartition(topic or env.topic, partition)
    commits = await fetch_commits(env.admin.cluster, env.group_id, [tp], lane=GROUP_LANE)
    return commits.get(tp)


async def window_of(env: Environment, partition: int = 0, topic: str | None = None) -> AckWindow:
    """Return the window of the group's commit of a partition."""
    found = await stored(env, partition, topic)
    tp = TopicPartition(topic or env.topic, partition)
    return AckWindow(0) if found is None else _restore(env.group_id, tp, found, migrate_from=None)[0]


async def metadata_of(env: Environment, partition: int = 0) -> CommitMetadata:
    """Return the decoded metadata of the group's commit of a partition."""
    found = await stored(env, partition)
    assert found is not None
    return decode_metadata(TopicPartition(env.topic, partition), found.committed.offset, found.raw)


async def acked(env: Environment, partition: int = 0, topic: str | None = None) -> list[int]:
    """Return the offsets that the group's commit says are acknowledged."""
    window = await window_of(env, partition, topic)
    return [*range(window.base), *(offset for start, end in window.runs for offset in range(start, end))]


async def read_topic(env: Environment, topic: str, count: int) -> list[Record]:
    """Wait until a topic has `count` records, and return all, by partition and offset."""
    async with asyncio.timeout(env.limit), Consumer(env.bootstrap_servers) as consumer:
        while True:
            tps = [TopicPartition(topic, number) for number in await consumer.partitions(topic)]
            ends = {tp: end for tp, end in (await consumer.end_offsets(tps)).items() if end}
            if sum(ends.values()) >= count:
                return [record for tp in sorted(ends) for record in await _read(consumer, tp, ends[tp])]
            await asyncio.sleep(0.1)


async def _read(consumer: Consumer, tp: TopicPartition, end: int) -> list[Record]:
    found: list[Record] = []
    async for record in await consumer.partition(*tp, "earliest"):
        found.append(record)
        if record.offset == end - 1:
            break
    return found

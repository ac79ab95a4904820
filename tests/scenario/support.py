"""Helpers for tests with one member: a handler that records its calls, gates, and the member's requests.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Record, Session, TopicPartition
from asyncgroup.errors import SessionEnd
from asyncgroup.group.membership import Membership
from tests.stories.environment import Environment
from tests.stories.virtual import GROUP_APIS, VirtualEnvironment, transcript

__all__ = [
    "ClaimReturns",
    "Gate",
    "PartitionZeroReader",
    "Read",
    "SessionEndHook",
    "WorkHandler",
    "committed",
    "group_requests",
    "member",
    "now",
    "orders",
    "read_offsets",
    "read_with",
    "running",
    "stop",
    "stubborn",
    "working",
]

Read = Callable[[Claim], Awaitable[None]]
Work = Callable[[Session, Claim, Record], Awaitable[None]]


def now() -> float:
    """Return the event loop's time."""
    return asyncio.get_running_loop().time()


async def no_work(_session: Session, _claim: Claim, _record: Record) -> None:
    """Do nothing."""


class WorkHandler(Handler):
    """Runs `work(session, claim, record)` for each record, then marks it. `calls` lists all calls, in order."""

    def __init__(self, env: Environment, work: Work = no_work) -> None:
        self.env = env
        self.work = work
        self.calls: list[str] = []
        self.sessions: list[Session] = []

    def note(self, text: str) -> None:
        """Add an entry to `calls`."""
        self.calls.append(text)
        self.env.bell.ring()

    async def until(self, call: str, times: int = 1) -> None:
        """Wait until `calls` contains `call` this many times."""
        what = f"{call!r} ({times}) among {self.calls}"
        await self.env.bell.until(lambda: self.calls.count(call) >= times, what, self.env.limit)

    async def setup(self, session: Session) -> None:
        self.sessions.append(session)
        self.note("setup")

    async def on_assigned(self, session: Session, partitions: Any) -> None:
        self.note(f"assigned {[tp.partition for tp in partitions]}")

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        self.note(f"claim {claim.partition}@{claim.initial_offset}")
        try:
            async for record in claim:
                self.note(f"record {record.partition}@{record.offset}")
                await self.work(session, claim, record)
                claim.mark(record)
                self.note(f"done {record.partition}@{record.offset}")
        except asyncio.CancelledError:
            self.note(f"cancelled {claim.partition}")
            raise
        finally:
            self.note(f"end {claim.partition}")

    async def on_revoked(self, session: Session, partitions: Any) -> None:
        self.note(f"revoked {[tp.partition for tp in partitions]}")

    async def on_lost(self, session: Session, partitions: Any) -> None:
        self.note(f"lost {[tp.partition for tp in partitions]}")

    async def cleanup(self, session: Session) -> None:
        self.note("cleanup")


class ClaimReturns(WorkHandler):
    """Returns from `consume_claim` of partition 1 after the record at the offset `last`."""

    last = 0

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        if claim.partition != 1:
            await super().consume_claim(session, claim)
            return
        async for record in claim:
            claim.mark(record)
            if record.offset == self.last:
                return


class Gate:
    """Work that blocks at one record until `open` is set; `reached` is set when it gets there."""

    def __init__(self, partition: int, offset: int) -> None:
        self.place = (partition, offset)
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, _session: Session, _claim: Claim, record: Record) -> None:
        if (record.partition, record.offset) == self.place:
            self.reached.set()
            await self.open.wait()


def stubborn(seconds: float) -> Work:
    """Return work that ends this long after it was cancelled."""

    async def work(_session: Session, _claim: Claim, _record: Record) -> None:
        try:
            await asyncio.sleep(1000.0)
        except asyncio.CancelledError:
            await asyncio.sleep(seconds)

    return work


class SessionEndHook:
    """A hook that records the cause of every session's end."""

    def __init__(self) -> None:
        self.causes: list[SessionEnd] = []

    def on_session_end(self, _session: Session, cause: SessionEnd) -> None:
        self.causes.append(cause)

    @property
    def names(self) -> list[str]:
        return [type(cause).__name__ for cause in self.causes]


@contextlib.asynccontextmanager
async def member(
    env: VirtualEnvironment,
    name: str = "ann",
    hooks: tuple[object, ...] = (),
    membership: Membership | None = None,
    host: str = "10.2.0.1",
    **config: Any,
) -> AsyncIterator[ConsumerGroup]:
    """Yield an open ConsumerGroup that connects from `host`, so tests can cut it off from the network.

    `membership` is its group protocol, if not the classic one.
    """
    full = ConsumerConfig(**env.config(name, **config))
    group = ConsumerGroup(env.bootstrap_servers, env.group_id, full, hooks=[env.bell, *hooks])
    if membership is not None:
        group._make_membership = lambda *_arguments: membership
    group.cluster._inner.random.seed(name)
    with env.network.source(host):
        async with group:
            yield group


@contextlib.asynccontextmanager
async def running(call: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `call` in a task and cancel it at the end of the block; its exception stays in the task."""
    task = asyncio.create_task(call)
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def working(
    env: VirtualEnvironment, how: str = "run", **options: Any
) -> AsyncIterator[tuple[ConsumerGroup, asyncio.Task[None], WorkHandler, Gate]]:
    """A `member` in `consume` or `run` (`how`) whose handler works on the record at offset 2 of partition 0."""
    gate = Gate(0, 2)
    handler = WorkHandler(env, gate)
    await env.produce(5, [0])
    async with (
        member(env, **options) as group,
        running(getattr(group, how)("orders", handler)) as consuming,
    ):
        await gate.reached.wait()
        yield group, consuming, handler, gate


async def stop(group: ConsumerGroup, run: asyncio.Task[None], *, by_cancellation: bool) -> None:
    """End `run`, a task in `group.run()`, by cancelling it or by closing the group."""
    if by_cancellation:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    else:
        await group.aclose()
        await run


def group_requests(env: VirtualEnvironment, name: str = "ann") -> list[str]:
    """Return the transcript of the member's requests to coordinators, without its name."""
    exchanges = env.cluster.history.of(*GROUP_APIS, client_id=name)
    return [line.removeprefix(f"{name} ") for line in transcript(exchanges)]


def committed(env: VirtualEnvironment) -> dict[int, int]:
    """Return the group's committed offsets of the topic, by partition."""
    offsets = env.cluster.group(env.group_id).offsets
    return {tp.partition: c.offset for tp, c in sorted(offsets.items()) if tp.topic == env.topic}


def orders(partition: int) -> TopicPartition:
    """Return a TopicPartition of the topic `orders`."""
    return TopicPartition("orders", partition)


class PartitionZeroReader(WorkHandler):
    """Reads partition 0 with the function `read`, then sets `done`; the session continues after that."""

    def __init__(self, env: VirtualEnvironment, read: Read) -> None:
        super().__init__(env)
        self.read = read
        self.done = asyncio.Event()

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        if claim.partition == 0:
            await self.read(claim)
            self.done.set()
        await claim.wait_ended()


async def read_with(env: VirtualEnvironment, read: Read, **config: object) -> None:
    """Run a member that reads partition 0 with `read`; raise what `read` raises."""
    async with member(env, **config) as group:
        reader = PartitionZeroReader(env, read)
        async with running(group.run("orders", reader)) as consuming:
            done = asyncio.create_task(reader.done.wait())
            await asyncio.wait([done, consuming], return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
            if consuming.done():
                await consuming


async def read_offsets(claim: Claim, count: int) -> list[int]:
    """Return the next `count` offsets, read in a loop that ends with `break`."""
    offsets = []
    async for record in claim:
        offsets.append(record.offset)
        if len(offsets) == count:
            break
    return offsets

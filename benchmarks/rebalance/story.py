"""The story of one run: three members, a joiner, a leaver, while records flow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from asyncgroup import Producer
from benchmarks.rebalance.member import Settings
from benchmarks.running import ClientFailed, worker

__all__ = ["LEAVER", "Outcome", "Receipt", "Story", "Told"]


class Receipt(NamedTuple):
    """A record that a member was given; `at` is the monotonic time in nanoseconds."""

    partition: int
    offset: int
    at: int
    member: int


LEAVER: Final = 0
"""The member that leaves."""

FOUNDERS: Final = 3
TICK: Final = 0.01
"""Seconds between two lots of records."""
WAIT_LIMIT: Final = 60.0
LINE_LIMIT: Final = 16 << 20
NANO: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is to happen: `rate` records a second; `settle` seconds of quiet before and behind each change of members.

    `delay` more before it: a change at another time of the members' heartbeats.
    """

    partitions: int
    rate: int
    settle: float
    spread: bool
    delay: float = 0.0


@dataclass
class Outcome:
    """What happened: from when to when nobody came or went, one joined, one left (monotonic, nanoseconds); the records
    sent to each partition, and all receipts.
    """

    quiet: tuple[int, int] = (0, 0)
    join: tuple[int, int] = (0, 0)
    leave: tuple[int, int] = (0, 0)
    sent: dict[int, int] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)


class Member:
    """A member's process, and how many partitions it says it has."""

    def __init__(self, process: asyncio.subprocess.Process, index: int) -> None:
        self._process, self.index = process, index
        self.assigned = 0
        self._ready = asyncio.Event()
        self._receipts: list[Receipt] | None = None
        self._errors: list[str] = []
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._hear_errors())]

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(b"ready"):
                self._ready.set()
            elif line.startswith(b"assigned"):
                self.assigned = int(line.split()[1])
            elif line.startswith(b"["):
                self._receipts = [
                    Receipt(partition, offset, at, self.index) for partition, offset, at in json.loads(line)
                ]
        self._ready.set()

    async def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._errors.append(line.decode())

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def ready(self) -> None:
        """Wait until its imports are done."""
        await self._ready.wait()

    def tell(self) -> None:
        """Go on: join, or leave."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def receipts(self) -> list[Receipt]:
        """Wait for its end; raises ClientFailed if it was a bad one."""
        async with asyncio.timeout(WAIT_LIMIT):
            await asyncio.gather(self._process.wait(), *self._tasks)
        if self._receipts is None:
            raise ClientFailed(f"member {self.index} failed:\n{''.join(self._errors[-30:])}")
        return self._receipts

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Story:
    """One client's run; `client` is what the member process is told."""

    def __init__(self, client: str, settings: Settings, told: Told) -> None:
        self._client, self._settings, self._told = client, settings, told
        self.outcome = Outcome()

    async def run(self, say: Callable[[str], None]) -> Outcome:
        """Start everybody, let them join and leave, gather what they got. Raises ClientFailed."""
        outcome, told = self.outcome, self._told
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(self._settings.bootstrap_servers))
            members = [await self._member(stack, index) for index in range(FOUNDERS + 1)]
            founders, joiner = members[:FOUNDERS], members[FOUNDERS]
            say("waiting for imports")
            await asyncio.gather(*(member.ready() for member in members))
            for member in founders:
                member.tell()
            producing = asyncio.create_task(self._produce(producer))
            stack.push_async_callback(_cancel, producing)
            say("three members")
            await self._settled(founders)
            await asyncio.sleep(told.settle)
            outcome.quiet = await self._change(founders, None)
            say("one joins")
            await self._spread(founders)
            outcome.join = await self._change(members, joiner)
            say("one leaves")
            leaver, stayers = members[LEAVER], members[LEAVER + 1 :]
            await self._spread(members)
            outcome.leave = await self._change(stayers, leaver)
            await _cancel(producing)
            await producer.flush()
            await asyncio.sleep(told.settle / 2)
            for member in stayers:
                member.tell()
            for member in members:
                outcome.receipts += await member.receipts()
        return outcome

    async def _change(self, members: list[Member], changing: Member | None) -> tuple[int, int]:
        """Let a member come or go, and wait until the others are settled; returns from when to when that was."""
        await asyncio.sleep(self._told.delay)
        begun = time.monotonic_ns()
        if changing is not None:
            changing.tell()
        await self._settled(members)
        await asyncio.sleep(self._told.settle)
        return begun, time.monotonic_ns()

    async def _member(self, stack: AsyncExitStack, index: int) -> Member:
        settings = json.dumps(asdict(self._settings))
        command = (sys.executable, "-m", "benchmarks.rebalance.member", self._client, settings)
        process = await stack.enter_async_context(worker(*command, limit=LINE_LIMIT))
        member = Member(process, index)
        stack.push_async_callback(member.aclose)
        return member

    async def _produce(self, producer: Producer) -> None:
        """The same number of records for every partition, evenly over time."""
        loop = asyncio.get_running_loop()
        told, sent = self._told, self.outcome.sent
        begun, count = loop.time(), 0
        while True:
            due = int((loop.time() - begun) * told.rate)
            for number in range(count, due):
                partition = number % told.partitions
                producer.send_nowait(self._settings.topic, b"%d" % number, partition=partition)
                sent[partition] = sent.get(partition, 0) + 1
            count = max(count, due)
            await asyncio.sleep(TICK)

    async def _settled(self, members: Iterable[Member]) -> None:
        """Wait until these members have all partitions between them, each its share."""
        everybody = list(members)
        share = self._told.partitions // len(everybody)
        try:
            async with asyncio.timeout(WAIT_LIMIT):
                while not (
                    sum(member.assigned for member in everybody) == self._told.partitions
                    and all(member.assigned >= share for member in everybody)
                ):
                    if failed := [member for member in everybody if member.has_ended]:
                        await failed[0].receipts()
                    await asyncio.sleep(TICK)
        except TimeoutError:
            counts = ", ".join(str(member.assigned) for member in everybody)
            raise ClientFailed(f"{self._client}: no assignment within {WAIT_LIMIT:g} s: {counts}") from None

    async def _spread(self, members: list[Member]) -> None:
        """Stop each process for one heartbeat interval and a further part of it: its overdue heartbeat goes out when it
        goes on, so that the heartbeats of n members come one n-th of an interval after another from then on.

        Without `spread` the same time passes with nobody stopped.
        """
        interval = self._settings.heartbeat
        if self._told.spread:
            for member in members:
                member.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(interval)
            for member in members:
                await asyncio.sleep(interval / len(members))
                member.signal(signal.SIGCONT)
        finally:
            for member in members:
                member.signal(signal.SIGCONT)
        await asyncio.sleep(self._told.settle)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()

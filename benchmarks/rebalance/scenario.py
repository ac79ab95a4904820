"""The story of one run: three members, a joiner, a leaver, while records flow."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from asyncgroup import Producer
from benchmarks.common import ClientFailed
from benchmarks.member import Settings
from benchmarks.member_process import LIMIT, MemberProcess, start_member

__all__ = ["LEAVER", "Outcome", "Receipt", "Scenario", "ScenarioPlan"]


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
NANO: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class ScenarioPlan:
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


class Scenario:
    """One client's run; `client` is what the member process is plan."""

    def __init__(self, client: str, settings: Settings, plan: ScenarioPlan) -> None:
        self._client, self._settings, self._plan = client, settings, plan
        self.outcome = Outcome()

    async def run(self, say: Callable[[str], None]) -> Outcome:
        """Start everybody, let them join and leave, gather what they got. Raises ClientFailed."""
        outcome, plan = self.outcome, self._plan
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(self._settings.bootstrap_servers))
            members = [await start_member(stack, self._client, self._settings) for _ in range(FOUNDERS + 1)]
            founders, joiner = members[:FOUNDERS], members[FOUNDERS]
            say("waiting for imports")
            await asyncio.gather(*(member.ready() for member in members))
            for member in founders:
                member.tell()
            producing = asyncio.create_task(self._produce(producer))
            stack.push_async_callback(_cancel, producing)
            say("three members")
            await self._settled(founders)
            await asyncio.sleep(plan.settle)
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
            await asyncio.sleep(plan.settle / 2)
            for member in stayers:
                member.tell()
            for index, member in enumerate(members):
                result = await member.result()
                outcome.receipts += [Receipt(p, offset, at, index) for p, offset, at in result["receipts"]]
        return outcome

    async def _change(self, members: list[MemberProcess], changing: MemberProcess | None) -> tuple[int, int]:
        """Let a member come or go, and wait until the others are settled; returns from when to when that was."""
        await asyncio.sleep(self._plan.delay)
        begun = time.monotonic_ns()
        if changing is not None:
            changing.tell()
        await self._settled(members)
        await asyncio.sleep(self._plan.settle)
        return begun, time.monotonic_ns()

    async def _produce(self, producer: Producer) -> None:
        """The same number of records for every partition, evenly over time."""
        loop = asyncio.get_running_loop()
        plan, sent = self._plan, self.outcome.sent
        begun, count = loop.time(), 0
        while True:
            due = int((loop.time() - begun) * plan.rate)
            for number in range(count, due):
                partition = number % plan.partitions
                producer.send_nowait(self._settings.topic, b"%d" % number, partition=partition)
                sent[partition] = sent.get(partition, 0) + 1
            count = max(count, due)
            await asyncio.sleep(TICK)

    async def _settled(self, members: Iterable[MemberProcess]) -> None:
        """Wait until these members have all partitions between them, each its share."""
        everybody = list(members)
        share = self._plan.partitions // len(everybody)
        try:
            async with asyncio.timeout(LIMIT):
                while not (
                    sum(member.assigned for member in everybody) == self._plan.partitions
                    and all(member.assigned >= share for member in everybody)
                ):
                    if failed := [member for member in everybody if member.has_ended]:
                        await failed[0].result()
                    await asyncio.sleep(TICK)
        except TimeoutError:
            counts = ", ".join(str(member.assigned) for member in everybody)
            raise ClientFailed(f"{self._client}: no assignment within {LIMIT:g} s: {counts}") from None

    async def _spread(self, members: list[MemberProcess]) -> None:
        """Stop each process for one heartbeat interval and a further part of it: its overdue heartbeat goes out when it
        goes on, so that the heartbeats of n members come one n-th of an interval after another from then on.

        Without `spread` the same time passes with nobody stopped.
        """
        interval = self._settings.heartbeat
        if self._plan.spread:
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
        await asyncio.sleep(self._plan.settle)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()

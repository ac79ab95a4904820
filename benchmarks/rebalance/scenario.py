"""The scenario of one run: three members consume while records are produced; one member joins, then one leaves."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from asyncgroup import Producer
from benchmarks.common import ClientFailed
from benchmarks.member import Settings
from benchmarks.member_process import LIMIT, MemberProcess, start_member

__all__ = ["LEAVER", "Outcome", "Receipt", "Scenario", "ScenarioPlan"]


class Receipt(NamedTuple):
    """A record that a member received; `at` is the monotonic time in nanoseconds."""

    partition: int
    offset: int
    at: int
    member: int


LEAVER: Final = 0
"""The index of the member that leaves."""

FOUNDERS: Final = 3
TICK: Final = 0.01
"""Seconds between two sends of records, and between two checks of assignments."""
REGULAR_INTERVALS: Final = 2
"""Heartbeat intervals between a rebalance and the next change, at least: some clients send heartbeats early at first."""
NANO: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class ScenarioPlan:
    """The parameters of a scenario: `rate` records per second, `settle` seconds before and after each change of members.

    `spread` spreads the members' heartbeats over their interval before each change. A change comes at `phase`, from 0 to 1,
    of the heartbeat interval, which begins with the rebalance before.
    """

    partitions: int
    rate: int
    settle: float
    spread: bool
    phase: float = 0.5


@dataclass
class Outcome:
    """The result of a scenario: begin and end of each phase (monotonic, nanoseconds), records sent, and receipts.

    `quiet`: no member joins or leaves; `join`, `leave`: one does. `sent` maps partitions to numbers of records.
    """

    quiet: tuple[int, int] = (0, 0)
    join: tuple[int, int] = (0, 0)
    leave: tuple[int, int] = (0, 0)
    sent: dict[int, int] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)


class Scenario:
    """One run of the scenario with one client."""

    def __init__(
        self, client: str, settings: Settings, plan: ScenarioPlan, program: Path | None = None
    ) -> None:
        self._client = client
        self._program = program
        self._settings = settings
        self._plan = plan
        self._settled_at = 0.0
        """Loop time at which the members had the assignment of the last rebalance."""
        self.outcome = Outcome()

    async def run(self, say: Callable[[str], None]) -> Outcome:
        """Start the members, let them join and leave, and collect their receipts. Raises ClientFailed."""
        outcome, plan = self.outcome, self._plan
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(self._settings.bootstrap_servers))
            members = [
                await start_member(stack, self._client, self._settings, self._program)
                for _ in range(FOUNDERS + 1)
            ]
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
            await self._prepare(founders)
            outcome.join = await self._change(members, joiner)
            say("one leaves")
            leaver, stayers = members[LEAVER], members[LEAVER + 1 :]
            await self._prepare(members)
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
        """Make a member join or leave, wait for the new assignment; return begin and end of the phase."""
        begun = time.monotonic_ns()
        if changing is not None:
            changing.tell()
            await self._settled(members)
        await asyncio.sleep(self._plan.settle)
        return begun, time.monotonic_ns()

    async def _produce(self, producer: Producer) -> None:
        """Produce records at an even rate, to all partitions in turn, until cancelled."""
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
        """Wait for a rebalance: until these members have all partitions, each its share."""
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
        self._settled_at = asyncio.get_running_loop().time()

    async def _prepare(self, members: list[MemberProcess]) -> None:
        """Wait until the members' heartbeats are regular, or spread them, and then for the phase of the change."""
        plan, interval = self._plan, self._settings.heartbeat
        if plan.spread:
            await self._spread(members)
            await asyncio.sleep(plan.settle + plan.phase * interval)
            return
        loop = asyncio.get_running_loop()
        change_at = self._settled_at + (REGULAR_INTERVALS + plan.phase) * interval
        while change_at < loop.time() + plan.settle:
            change_at += interval
        await asyncio.sleep(change_at - loop.time())

    async def _spread(self, members: list[MemberProcess]) -> None:
        """Spread the members' heartbeats over their interval.

        Each process is stopped for one heartbeat interval and a further part of it. Its overdue heartbeat is sent when
        it resumes, so from then on the heartbeats of n members are one n-th of an interval apart.
        """
        interval = self._settings.heartbeat
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


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()

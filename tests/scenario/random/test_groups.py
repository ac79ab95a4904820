"""Random faults of members, nodes, leaders and connections of a group, determined by a seed.

Afterwards the group must recover: it is stable, every record is handled, everything is committed, and no commit
ever went backward.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from asyncgroup.broker import Fault
from tests.profiles import soak
from tests.stories.members import Member
from tests.stories.virtual import VirtualEnvironment

PARTITIONS = 6
APIS = (
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "OffsetCommit",
    "OffsetFetch",
    "ListOffsets",
    "Fetch",
)


class RandomRun:
    """Random faults for one group; `rng` is the only source of randomness."""

    def __init__(self, env: VirtualEnvironment, seed: int) -> None:
        self.env = env
        self.rng = random.Random(seed)
        self.members: list[Member] = []
        self.suspended: list[Member] = []
        self.down: set[int] = set()
        self._joined = 0

    @property
    def _up(self) -> list[int]:
        return [node for node in (1, 2, 3) if node not in self.down]

    def _pick(self) -> Member:
        return self.members.pop(self.rng.randrange(len(self.members)))

    async def join(self) -> None:
        if len(self.members) < PARTITIONS:
            self._joined += 1
            interval, timeout = self.rng.choice([0.5, 3.0, 100.0]), self.rng.choice([10.0, 30.0])
            self.members.append(
                await self.env.member(
                    f"m{self._joined}", auto_commit_interval=interval, rebalance_timeout=timeout
                )
            )

    async def leave(self) -> None:
        if len(self.members) > 1:
            await self._pick().leave()

    async def crash(self) -> None:
        if len(self.members) > 1:
            await self.env.crash(self._pick())

    async def suspend(self) -> None:
        if len(self.members) > 1:
            self.suspended.append(self._pick())
            await self.env.suspend(self.suspended[-1])

    async def resume(self) -> None:
        if self.suspended:
            self.members.append(self.suspended.pop())
            await self.env.resume(self.members[-1])

    async def kill_node(self) -> None:
        if not self.down:
            self.down.add(self.rng.randint(1, 3))
            await self.env.kill_node(*self.down)

    async def start_node(self) -> None:
        if self.down:
            await self.env.cluster.start_node(self.down.pop())

    async def move_coordinator(self) -> None:
        self.env.cluster.move_coordinator("g", self.rng.choice(self._up))

    async def move_leader(self) -> None:
        self.env.cluster.move_leader("orders", self.rng.randrange(PARTITIONS), self.rng.choice(self._up))

    async def fault(self) -> None:
        what: Callable[[Fault], Fault] = self.rng.choice(
            [
                Fault.drop,
                lambda fault: fault.disconnect("before"),
                lambda fault: fault.disconnect("after"),
                lambda fault: fault.disconnect("mid-frame"),
                lambda fault: fault.delay(8.0),
            ]
        )
        what(self.env.cluster.faults.on(self.rng.choice(APIS), times=self.rng.randint(1, 4)))

    async def produce(self) -> None:
        await self.env.produce(self.rng.randint(1, 20), [self.rng.randrange(PARTITIONS)])

    async def inject_faults(self, steps: int) -> None:
        """Inject this number of faults, with pauses that are shorter than some timeouts and longer than others."""
        events: list[Callable[[], Awaitable[None]]] = [
            self.join,
            self.leave,
            self.crash,
            self.suspend,
            self.resume,
            self.kill_node,
            self.start_node,
            self.move_coordinator,
            self.move_leader,
            self.fault,
            self.produce,
            self.produce,
        ]
        for _ in range(steps):
            await self.rng.choice(events)()
            await asyncio.sleep(self.rng.choice([0.0, 0.1, 1.0, 5.0, 20.0]))

    async def stop_faults(self) -> None:
        """End all faults; resume all members and start all nodes."""
        self.env.cluster.faults.clear()
        while self.suspended:
            await self.resume()
        while self.down:
            await self.start_node()


def committed_in_order(env: VirtualEnvironment) -> dict[int, list[int]]:
    """Return all committed offsets by partition, in order of their commits."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for exchange in env.cluster.history.of("OffsetCommit"):
        if exchange.response is None:
            continue
        for topic, answered in zip(exchange.request.topics, exchange.response.topics, strict=True):
            for partition, answer in zip(topic.partitions, answered.partitions, strict=True):
                if not answer.error_code:
                    found[partition.partition_index].append(partition.committed_offset)
    return found


async def run_random(seed: int, steps: int) -> None:
    async with VirtualEnvironment.made(
        partitions=PARTITIONS, history_limit=1_000_000, history_bytes=1 << 30
    ) as env:
        run = RandomRun(env, seed)
        await run.join()
        await run.join()
        await run.inject_faults(steps)
        await run.stop_faults()
        await env.settled(*run.members)
        await env.produce(1, range(PARTITIONS))
        await env.all_handled()
        await asyncio.sleep(100.0)  # the longest auto_commit_interval
        await env.all_committed()
        for offsets in committed_in_order(env).values():
            assert offsets == sorted(offsets)
        assert [member.log.failure for member in env.members] == [None] * len(env.members)


@pytest.mark.parametrize("seed", [7, 23])
async def test_short_random_run(seed: int):
    await run_random(seed, 10)


@pytest.mark.parametrize("seed", soak(range(40)))
async def test_long_random_run(seed: int):
    await run_random(seed, 40)

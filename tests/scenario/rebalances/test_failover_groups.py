"""Failover groups: members of the highest priority share the partitions, the others stand by and take over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest_asyncio

from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.workqueue.group_engine.failover_assignor import FailoverAssignor
from tests.scenario.support import committed, member, now, running
from tests.stories.traffic import PARTITIONS, STEP, Handled, Reader, completed_traffic, partitions_of
from tests.stories.virtual import VirtualEnvironment

HEARTBEAT = 0.5
TIMEOUT = 10.0
EVERYTHING = list(range(PARTITIONS))
HOSTS = {"ann": "10.2.0.1", "bob": "10.2.0.2", "cid": "10.2.0.3"}


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    async with VirtualEnvironment.made(nodes=1, partitions=PARTITIONS) as environment:
        yield environment


class Scene:
    """A failover group, and which member handled which records."""

    def __init__(self, env: VirtualEnvironment) -> None:
        self.env = env
        self.handled: Handled = {number: [] for number in EVERYTHING}
        self.readers: dict[str, Reader] = {}

    @contextlib.asynccontextmanager
    async def joined(self, name: str, priority: int, **config: Any) -> AsyncIterator[ConsumerGroup]:
        """Run a member that has this priority, on its own host."""
        self.readers[name] = reader = Reader(self.env, name, self.handled)
        options: dict[str, Any] = {
            "assignors": (FailoverAssignor(priority, name),),
            "heartbeat_interval": HEARTBEAT,
            "session_timeout": TIMEOUT,
            **config,
        }
        async with contextlib.AsyncExitStack() as exits:
            with self.env.network.source(HOSTS[name]):
                group = await exits.enter_async_context(member(self.env, name, host=HOSTS[name], **options))
                await exits.enter_async_context(running(group.run("orders", reader)))
            yield group

    async def until(self, **expected: list[int]) -> None:
        """Wait until each partition was handled by its member in its present claim."""
        start = now()
        owners = {number: name for name, numbers in expected.items() for number in numbers}

        def is_so() -> bool:
            return all(
                records and records[-1][1] == owners[number] and records[-1][0] > start
                for number, records in self.handled.items()
            )

        await self.env.bell.until(is_so, f"{expected}", self.env.limit)

    def gap(self, number: int) -> float:
        """Return the longest time between two records of a partition."""
        return max(after - before for (before, *_), (after, *_) in pairwise(self.handled[number]))

    async def finished(self) -> None:
        """Wait until all records are handled, and check that each was handled once and in order."""
        ends = {number: len(self.env.cluster.records("orders", number)) for number in EVERYTHING}
        await self.env.bell.until(
            lambda: all(len(self.handled[number]) >= end for number, end in ends.items()),
            "all",
            self.env.limit,
        )
        for number, records in self.handled.items():
            assert [offset for _, _, offset in records] == list(range(ends[number]))


async def test_a_standby_takes_over_when_the_active_member_leaves(env: VirtualEnvironment) -> None:
    scene = Scene(env)
    async with scene.joined("bob", 0) as active, scene.joined("ann", 1) as standby:
        async with completed_traffic(env, EVERYTHING):
            await scene.until(bob=EVERYTHING)
            assert partitions_of(standby) == []
            left = now()
            await active.aclose()
            await scene.until(ann=EVERYTHING)
            assert now() - left < 3 * HEARTBEAT
        await scene.finished()
        assert scene.readers["ann"].calls.count("setup") == 1, "it stood by in the same session"
        await standby.aclose()
    assert committed(env) == {number: len(scene.handled[number]) for number in EVERYTHING}


async def test_a_standby_takes_over_after_the_session_timeout_of_a_dead_one(env: VirtualEnvironment) -> None:
    scene = Scene(env)
    async with (
        scene.joined("ann", 0, auto_commit_interval=1.0) as active,
        scene.joined("bob", 1) as standby,
        completed_traffic(env, EVERYTHING),
    ):
        await scene.until(ann=EVERYTHING)
        env.network.blackhole(HOSTS["ann"])
        died = now()
        await scene.until(bob=EVERYTHING)
        assert TIMEOUT - HEARTBEAT <= now() - died <= TIMEOUT + 3 * HEARTBEAT
        for records in scene.handled.values():
            offsets = [offset for at, name, offset in records if name == "bob"]
            last = max(offset for _, name, offset in records if name == "ann")
            assert offsets[0] <= last + 1, "no record is skipped"
            assert last + 1 - offsets[0] <= 1.5 / STEP, "only what was not committed is repeated"
        # the former one is back, with its higher priority
        env.network.heal(HOSTS["ann"])
        await scene.until(ann=EVERYTHING)
        assert partitions_of(standby) == []
        assert partitions_of(active) == EVERYTHING


async def test_a_higher_priority_takes_over_when_it_joins(env: VirtualEnvironment) -> None:
    scene = Scene(env)
    async with scene.joined("ann", 1) as first:
        async with completed_traffic(env, EVERYTHING):
            await scene.until(ann=EVERYTHING)
            joined_at = now()
            async with scene.joined("bob", 0) as second:
                await scene.until(bob=EVERYTHING)
                assert now() - joined_at < 4 * HEARTBEAT
                assert partitions_of(first) == []
                assert f"revoked {EVERYTHING}" in scene.readers["ann"].calls
                assert "cleanup" not in scene.readers["ann"].calls, "it stands by in the same session"
                await second.aclose()
            await scene.until(ann=EVERYTHING)
        await scene.finished()
    assert max(scene.gap(number) for number in EVERYTHING) < 4 * HEARTBEAT


async def test_a_member_of_equal_priority_moves_only_its_share(env: VirtualEnvironment) -> None:
    scene = Scene(env)
    async with scene.joined("ann", 0) as first, scene.joined("cid", 7) as standby:
        async with completed_traffic(env, EVERYTHING):
            await scene.until(ann=EVERYTHING)
            session = first.session
            async with scene.joined("bob", 0) as second:
                await scene.until(ann=[0, 2, 4], bob=[1, 3, 5])
                assert first.session is session
                assert partitions_of(standby) == []
                await second.aclose()
            await scene.until(ann=EVERYTHING)
        await scene.finished()
        assert [call for call in scene.readers["ann"].calls if call.startswith("claim")] == [
            *(f"claim {number}" for number in EVERYTHING),
            *(f"claim {number}" for number in (1, 3, 5)),
        ]
        assert max(scene.gap(number) for number in (0, 2, 4)) < 3 * STEP, "no interruption"
        assert scene.readers["cid"].calls.count("setup") == 1
        assert not [call for call in scene.readers["cid"].calls if call.startswith("claim")]


async def test_a_standby_that_joins_and_leaves_interrupts_none(env: VirtualEnvironment) -> None:
    scene = Scene(env)
    async with scene.joined("bob", 0) as first:
        async with completed_traffic(env, EVERYTHING):
            await scene.until(bob=EVERYTHING)
            async with scene.joined("ann", 1) as standby:
                await env.bell.until(lambda: standby.session is not None, "it stands by", env.limit)
                await scene.until(bob=EVERYTHING)
                await standby.aclose()
            await scene.until(bob=EVERYTHING)
        await scene.finished()
        assert partitions_of(first) == EVERYTHING
    assert max(scene.gap(number) for number in EVERYTHING) < 3 * STEP

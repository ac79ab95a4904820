"""The event loop of a classic member is blocked while it joins: what its heartbeat thread sends keeps it in its group.

In virtual time: the network holds back all bytes from and to the member, and the stand-in that the thread would run sends
from another host.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import pytest_asyncio

from asyncgroup import ClientConfig, ConsumerGroup
from asyncgroup.broker import Fault
from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, EventLoopBlocked, MemberLost
from asyncgroup.group.liveness.heartbeat_snapshot import HeartbeatSnapshot
from asyncgroup.group.liveness.thread_heartbeats import ThreadHeartbeats
from tests.group.internals import membership_of
from tests.scenario.support import SessionEndHook, WorkHandler, member, running
from tests.scenario.three_protocols import PROTOCOLS, made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

HOST = "10.3.0.1"
"""Of the member that is blocked."""

BLOCKED = 25.0
"""Seconds of a block: longer than two session timeouts, shorter than `rebalance_timeout`."""


@pytest_asyncio.fixture(params=["eager", "cooperative"])
async def env(request: pytest.FixtureRequest) -> AsyncIterator[VirtualEnvironment]:
    async with made_for(str(request.param)) as environment:
        yield environment


class Ann:
    """A member with a JoinGroup or SyncGroup that is parked in the coordinator, as that of another member is held."""

    def __init__(self, env: VirtualEnvironment, group: ConsumerGroup, ends: SessionEndHook) -> None:
        self.env = env
        self.group = group
        self.ends = ends
        self.session = group.session
        self.member_id = group.health().member_id
        self.others: Fault
        """Release it to let the group go on."""
        self.all_members = [group]

    @property
    def is_cooperative(self) -> bool:
        return self.env.protocol == PROTOCOLS["cooperative"]

    @property
    def snapshot(self) -> HeartbeatSnapshot | None:
        """What a heartbeat thread knows of it."""
        return membership_of(self.group).heartbeats.handover.snapshot

    @contextmanager
    def blocked(self, error: AsyncGroupError | None = None) -> Iterator[ThreadHeartbeats]:
        """Block the member, and let the group go on; yield what its heartbeat thread would run.

        With `error` that has to leave at once.
        """

        def make_cluster() -> ClusterClient:
            return ClusterClient(self.env.bootstrap_servers, ClientConfig(client_id="stand-in"))

        network = self.env.network
        network.blackhole(HOST)
        self.others.release()
        with network.source("10.4.0.1"):
            yield ThreadHeartbeats(
                membership_of(self.group).heartbeats.handover, make_cluster, lambda _now: error, 1.0
            )
        network.heal(HOST)

    async def until_shared(self) -> None:
        """Wait until each member has its share, and everything produced then is committed."""

        def shares() -> list[int]:
            return sorted(len(partitions_of(one)) for one in self.all_members)

        await self.env.bell.until(lambda: shares() == [1, 1, 2], "shares", self.env.limit)
        await self.env.produce(3, range(4))
        await self.env.all_committed()

    @property
    def is_same_member(self) -> bool:
        """Whether it was never lost; with a cooperative protocol its session has not ended."""
        names = [] if self.is_cooperative else ["Rebalanced"]
        return self.group.health().member_id == self.member_id and self.ends.names[:1] == names


@asynccontextmanager
async def parked(env: VirtualEnvironment, api: str) -> AsyncIterator[Ann]:
    """Run ann, with bob, who leads the group, and carl, who joins: her request is parked, as that of bob is held."""
    ends = SessionEndHook()
    async with member(env, "bob") as bob, running(bob.run("orders", WorkHandler(env))):
        await env.bell.until(lambda: len(partitions_of(bob)) == 4, "all partitions", env.limit)
        async with (
            member(env, "ann", hooks=(ends,), host=HOST) as group,
            running(group.run("orders", WorkHandler(env))),
            member(env, "carl") as carl,
        ):
            await env.bell.until(
                lambda: len(partitions_of(bob)) == 2 == len(partitions_of(group)), "halves", env.limit
            )
            await asyncio.sleep(env.heartbeat_interval)
            ann = Ann(env, group, ends)
            ann.all_members += bob, carl
            ann.others = env.cluster.faults.on(api, client_id="bob").hold()
            sent = env.cluster.faults.on(api, client_id="ann")
            async with running(carl.run("orders", WorkHandler(env))):
                await sent.wait_hit()
                await ann.others.wait_hit()
                yield ann


APIS = pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])


@APIS
async def test_a_member_stays_in_its_group(env: VirtualEnvironment, api: str) -> None:
    """The generation after the join is accepted from the stand-in, before the member has read of it."""
    async with parked(env, api) as ann:
        with ann.blocked() as thread_heartbeats:
            async with running(thread_heartbeats.run()):
                await asyncio.sleep(BLOCKED)
        await ann.until_shared()
        assert ann.is_same_member
        generation = ann.group.health().generation_id
        assert isinstance(generation, int)
        assert ann.snapshot is not None
        assert ann.snapshot.request().generation_id == generation


@APIS
async def test_without_the_heartbeats_it_is_lost(env: VirtualEnvironment, api: str) -> None:
    """The proof that they keep it."""
    async with parked(env, api) as ann:
        with ann.blocked():
            await asyncio.sleep(BLOCKED)
        await ann.until_shared()
        assert not ann.is_same_member


async def test_a_refusal_does_not_end_the_join(env: VirtualEnvironment) -> None:
    """The stand-in decides nothing: the response to JoinGroup does."""
    async with parked(env, "JoinGroup") as ann:
        refused = env.cluster.faults.on("Heartbeat", client_id="stand-in", times=None)
        refused.error("UNKNOWN_MEMBER_ID")
        with ann.blocked() as thread_heartbeats:
            async with running(thread_heartbeats.run()) as standing:
                await asyncio.wait([standing])  # refused twice
                assert refused.hits == 2
        await ann.until_shared()
        assert ann.is_same_member


async def test_a_member_that_has_left_joins_as_another(env: VirtualEnvironment) -> None:
    """The event loop is blocked for `max_poll_interval`."""
    async with parked(env, "JoinGroup") as ann:
        with ann.blocked(EventLoopBlocked("g", 300.0)) as thread_heartbeats:
            await thread_heartbeats.run()
            await asyncio.sleep(BLOCKED)
        await ann.until_shared()
        assert not ann.is_same_member
        if ann.is_cooperative:
            (cause,) = ann.ends.causes
            assert isinstance(cause, MemberLost)
            assert isinstance(cause.__cause__, EventLoopBlocked)


async def test_a_member_that_has_left_begins_no_session(env: VirtualEnvironment) -> None:
    """It reads the response to SyncGroup after the block, and others have its partitions."""
    async with parked(env, "SyncGroup") as ann:
        with ann.blocked() as thread_heartbeats:
            async with running(thread_heartbeats.run()):
                await asyncio.sleep(BLOCKED / 2)
            thread_heartbeats._find_stuck = lambda _now: EventLoopBlocked("g", 300.0)
            await thread_heartbeats.run()
            await asyncio.sleep(BLOCKED / 2)
        await ann.until_shared()
        assert not ann.is_same_member
        assert ann.ends.names == (["MemberLost"] if ann.is_cooperative else ["Rebalanced"])


@APIS
async def test_nothing_is_sent_for_a_member_that_leaves(env: VirtualEnvironment, api: str) -> None:
    async with parked(env, api) as ann:
        assert ann.snapshot is not None
        await ann.group.aclose()
        assert ann.snapshot is None
        ann.others.release()


async def test_nothing_is_sent_for_a_member_that_was_lost(env: VirtualEnvironment) -> None:
    async with parked(env, "JoinGroup") as ann:
        seen: list[HeartbeatSnapshot | None] = []
        env.cluster.faults.on("SyncGroup", client_id="ann").error("UNKNOWN_MEMBER_ID")
        again = env.cluster.faults.on(
            "JoinGroup", client_id="ann", where=lambda request: not request.member_id
        )
        again.observe(lambda _exchange: seen.append(ann.snapshot))
        ann.others.release()
        await again.wait_hit()
        assert seen == [None]
        await ann.until_shared()

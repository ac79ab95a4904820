"""A cooperative member's coordinator fails over during a rebalance: claims go on, and the join goes to the new one.

Claims are given up only if no broker at all answers for the session timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from asyncgroup import ConsumerGroup, ErrorCode
from asyncgroup.broker import Fault
from tests.scenario.brokers.frozen_coordinator import FrozenCoordinator
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running
from tests.scenario.three_protocols import made_for
from tests.stories.traffic import partitions_of
from tests.stories.virtual import HOST, VirtualEnvironment


class Rebalance(NamedTuple):
    """Ann owns all partitions and joins again, as bob joins."""

    env: VirtualEnvironment
    ann: ConsumerGroup
    bob: ConsumerGroup
    work: WorkHandler
    ends: SessionEndHook
    held: Fault
    """Holds ann's JoinGroup, or heartbeat."""
    ended: list[str]
    """Why ann's session has ended before: with the eager protocol, because of the rebalance."""

    async def goes_on(self) -> None:
        """Check that ann reads all the time."""
        await self.env.produce(1, range(4))
        for partition in range(4):
            await self.work.until(f"done {partition}@1")
        assert self.ann.session is not None

    async def halves(self) -> None:
        """Wait until both share the partitions."""
        await self.env.bell.until(
            lambda: len(partitions_of(self.ann)) == 2 == len(partitions_of(self.bob)),
            "halves",
            self.env.limit,
        )

    async def ends_well(self) -> None:
        """Check that ann's session lasts until then."""
        await self.halves()
        assert self.ends.names == self.ended, "its session goes on"
        assert not [call for call in self.work.calls if call.startswith("lost")]


@asynccontextmanager
async def rebalancing(protocol: str = "cooperative", **config: Any) -> AsyncIterator[Rebalance]:
    """Yield when ann's JoinGroup has arrived, and waits; with the consumer protocol, a heartbeat."""
    api = "ConsumerGroupHeartbeat" if protocol == "consumer" else "JoinGroup"
    ends = SessionEndHook()
    async with made_for(protocol, nodes=3) as env:
        lead_elsewhere(env)
        work = WorkHandler(env)
        await env.produce(1, range(4))
        async with (
            member(env, "ann", hooks=(ends,), **config) as ann,
            running(ann.run("orders", work)),
            member(env, "bob", host="10.2.0.2") as bob,
        ):
            for partition in range(4):
                await work.until(f"done {partition}@0")
            await asyncio.sleep(env.heartbeat_interval)
            held = env.cluster.faults.on(api, client_id="ann").hold()
            async with running(bob.run("orders", WorkHandler(env))):
                await held.wait_hit()
                yield Rebalance(env, ann, bob, work, ends, held, list(ends.names))


def lead_elsewhere(env: VirtualEnvironment) -> None:
    """Move the partitions away from the coordinator's node."""
    node = env.cluster.coordinator("g")
    for partition in range(4):
        env.cluster.move_leader("orders", partition, node % 3 + 1)


@pytest.mark.parametrize("protocol", ["cooperative", pytest.param("consumer", marks=pytest.mark.full)])
async def test_a_coordinator_that_refuses_connections(protocol: str) -> None:
    """For 5 s, as long as brokers take to elect another one: until then they name the node that is gone."""
    async with rebalancing(protocol) as story:
        env, node = story.env, story.env.cluster.coordinator("g")
        port = env.cluster.nodes[node].port
        env.network.refuse(HOST, port)
        env.network.cut(HOST, port)
        story.held.release()
        await story.goes_on()
        await asyncio.sleep(5.0)
        env.cluster.move_coordinator("g", node % 3 + 1)
        await story.ends_well()
        env.network.heal(HOST, port)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ErrorCode.NOT_COORDINATOR, marks=pytest.mark.full),
        pytest.param(ErrorCode.COORDINATOR_NOT_AVAILABLE, marks=pytest.mark.full),
        pytest.param(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, marks=pytest.mark.full),
    ],
)
async def test_refusals_that_are_retriable(code: ErrorCode) -> None:
    async with rebalancing() as story:
        refused = story.env.cluster.faults.on("JoinGroup", client_id="ann", times=12).error(code)
        story.held.cancel()
        story.held.release()
        await story.goes_on()
        await refused.wait_hit(12)
        await story.ends_well()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ErrorCode.NOT_COORDINATOR, marks=pytest.mark.full),
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        pytest.param(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, marks=pytest.mark.full),
        pytest.param(ErrorCode.REBALANCE_IN_PROGRESS, marks=pytest.mark.full),
    ],
)
async def test_refusals_of_a_sync(code: ErrorCode) -> None:
    async with rebalancing() as story:
        refused = story.env.cluster.faults.on("SyncGroup", client_id="ann", times=8).error(code)
        story.held.release()
        await story.goes_on()
        await refused.wait_hit(8)
        await story.ends_well()


@pytest.mark.parametrize("api", ["JoinGroup", pytest.param("SyncGroup", marks=pytest.mark.full)])
async def test_refusals_of_a_lookup(api: str) -> None:
    """No broker knows who coordinates; for less than a session timeout, after which a coordinator removes the member."""
    async with rebalancing() as story:
        on = story.env.cluster.faults.on
        refused = on("FindCoordinator", client_id="ann", times=6).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        on(api, client_id="ann").error(ErrorCode.NOT_COORDINATOR)
        story.held.release()
        await story.goes_on()
        await refused.wait_hit(6)
        await story.ends_well()


@pytest.mark.full
async def test_no_broker_answers_for_the_session_timeout() -> None:
    async with rebalancing() as story:
        began = now()
        story.env.network.blackhole("10.2.0.1")
        await story.env.bell.until(lambda: bool(story.ends.causes), "the loss", story.env.limit)
        assert story.ends.names == ["MemberLost"]
        assert story.env.session_timeout - 3.0 <= now() - began <= story.env.session_timeout + 1.0
        story.env.network.heal("10.2.0.1")
        story.held.release()


CLASSIC = ["cooperative", pytest.param("eager", marks=pytest.mark.full)]


# --- requests that wait at the coordinator -----------------------------------------------------------------------------


async def test_a_join_that_waits_at_a_frozen_coordinator_goes_to_the_new_one() -> None:
    """Today's clients wait for the whole rebalance timeout: 60 s and more."""
    async with rebalancing() as story:
        frozen = FrozenCoordinator(story.env)
        frozen.freeze()
        began = now()
        await story.goes_on()
        await asyncio.sleep(6.0)
        frozen.fail_over(frozen.node % 3 + 1)
        await story.ends_well()
        assert now() - began < 6.0 + 8.0
        frozen.thaw()
        story.held.release()


@pytest.mark.full
async def test_a_first_join_that_waits_at_a_frozen_coordinator() -> None:
    async with made_for("eager", nodes=3) as env:
        work = WorkHandler(env)
        held = env.cluster.faults.on("JoinGroup", where=lambda request: bool(request.member_id)).hold()
        async with member(env) as ann, running(ann.run("orders", work)):
            await held.wait_hit()
            frozen = FrozenCoordinator(env)
            frozen.freeze()
            began = now()
            frozen.fail_over()
            await work.until("setup")
            assert now() - began < 8.0
            frozen.thaw()
            held.release()


async def lose_sync(story: Rebalance) -> Fault:
    """Let ann's JoinGroup through; return when the response to its SyncGroup is lost, on a connection that stays open."""
    lost = story.env.cluster.faults.on("SyncGroup", client_id="ann").drop()
    story.held.release()
    await lost.wait_hit()
    return lost


@pytest.mark.full
@pytest.mark.parametrize("protocol", CLASSIC)
async def test_a_lost_sync_while_the_group_goes_on(protocol: str) -> None:
    """The coordinator has sent the assignment, and heartbeats are answered."""
    async with rebalancing(protocol) as story:
        await lose_sync(story)
        began = now()
        await story.ends_well()
        assert now() - began < 2 * story.env.session_timeout


@pytest.mark.parametrize("protocol", CLASSIC)
async def test_a_lost_sync_while_the_group_rebalances(protocol: str) -> None:
    """A heartbeat says so, and the SyncGroup is sent again at once."""
    async with rebalancing(protocol) as story:
        env = story.env
        await lose_sync(story)
        began = now()
        async with (
            member(env, "carl", host="10.2.0.3") as carl,
            running(carl.run("orders", WorkHandler(env))),
        ):
            members = (story.ann, story.bob, carl)
            await env.bell.until(
                lambda: sorted(len(partitions_of(one)) for one in members) == [1, 1, 2], "shares", env.limit
            )
            assert now() - began < env.heartbeat_interval + 2.0
            assert story.ends.names == story.ended


@pytest.mark.parametrize("protocol", CLASSIC)
async def test_a_lost_sync_of_a_member_that_is_removed(protocol: str) -> None:
    """A heartbeat says so: claims that were kept have ended, and the member joins again."""
    async with rebalancing(protocol) as story:
        env = story.env
        removed = env.cluster.faults.on("Heartbeat", client_id="ann", times=None)
        removed.error(ErrorCode.UNKNOWN_MEMBER_ID)
        await lose_sync(story)
        began = now()
        joins = env.cluster.faults.on("JoinGroup", client_id="ann")
        await joins.wait_hit()
        assert now() - began < env.heartbeat_interval + 2.0
        assert story.ends.names == ["Rebalanced" if protocol == "eager" else "MemberLost"]
        removed.cancel()
        await story.halves()

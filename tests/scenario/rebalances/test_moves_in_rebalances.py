"""The coordinator changes during a rebalance: in each of its steps, by a crash or by moving the offsets partition.

The new one knows the last generation whose assignment is in the log; members of a later one join again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest

from asyncgroup.broker import Fault
from tests.broker.internals import log_of
from tests.profiles import soak, thinned
from tests.scenario.brokers.coordinator_checks import (
    OFFSETS,
    check_acknowledged_offsets,
    check_generations,
    offsets_partition_of,
)
from tests.stories.environment import Group
from tests.stories.members import Member
from tests.stories.virtual import VirtualEnvironment

APPEND_DELAY = 0.5


# -- the times -----------------------------------------------------------------------------------------------------


async def a_join_is_parked(env: VirtualEnvironment) -> None:
    await env.bell.until(
        lambda: env.cluster.group("g").state == "PreparingRebalance", "a parked join", env.limit
    )


def the_plan(env: VirtualEnvironment) -> Fault:
    """Hold the leader's SyncGroup at this point."""
    return env.cluster.faults.on("SyncGroup", where=lambda request: bool(request.assignments)).hold()


async def the_plan_is_awaited(env: VirtualEnvironment) -> None:
    fault = the_plan(env)
    await fault.wait_hit()
    assert env.cluster.group("g").state == "CompletingRebalance"
    fault.cancel()


async def the_plan_is_on_its_way(env: VirtualEnvironment) -> None:
    fault = the_plan(env)
    await fault.wait_hit()
    fault.cancel()
    await asyncio.sleep(APPEND_DELAY / 2)
    assert env.cluster.group("g").state == "CompletingRebalance"


async def the_plan_is_in_the_log(env: VirtualEnvironment) -> None:
    fault = the_plan(env)
    await fault.wait_hit()
    log = log_of(env.cluster, OFFSETS, offsets_partition_of(env))
    before = log.end_offset
    env.cluster.hold_followers(OFFSETS, offsets_partition_of(env))
    fault.cancel()
    await asyncio.sleep(2 * APPEND_DELAY)
    assert log.end_offset > before
    assert env.cluster.group("g").state == "CompletingRebalance"


MOMENTS = (a_join_is_parked, the_plan_is_awaited, the_plan_is_on_its_way, the_plan_is_in_the_log)


# -- what happens then ---------------------------------------------------------------------------------------------


async def it_dies(env: VirtualEnvironment) -> None:
    await env.kill_node(env.cluster.coordinator("g"))


async def it_hands_over(env: VirtualEnvironment) -> None:
    env.cluster.move_leader(OFFSETS, offsets_partition_of(env), env.cluster.coordinator("g") % 3 + 1)


async def it_hands_over_and_back(env: VirtualEnvironment) -> None:
    old = env.cluster.coordinator("g")
    await it_hands_over(env)
    env.cluster.move_leader(OFFSETS, offsets_partition_of(env), old)


async def it_hands_over_to_one_that_dies(env: VirtualEnvironment) -> None:
    await it_hands_over(env)
    await it_dies(env)


TURNS = (it_dies, it_hands_over, it_hands_over_and_back, it_hands_over_to_one_that_dies)


def check_shared(group: Group, members: int) -> None:
    """Check that each member has partitions and together they have all."""
    parts = [assignment["orders"] for assignment in group.assignment.values()]
    assert len(parts) == members
    assert sorted(number for part in parts for number in part) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("moment", "turn"), thinned(itertools.product(MOMENTS, TURNS), every=5), ids=lambda one: one.__name__
)
async def test_the_coordinator_changes(
    moment: Callable[[VirtualEnvironment], Awaitable[None]],
    turn: Callable[[VirtualEnvironment], Awaitable[None]],
):
    delay = APPEND_DELAY if moment is the_plan_is_on_its_way else 0.0
    async with VirtualEnvironment.made(offsets_append_delay=delay) as env:
        ann, bob = await env.member("ann"), await env.member("bob")
        before = await env.settled(ann, bob)
        await env.produce(5, range(4))
        await env.all_handled()
        coming = asyncio.create_task(env.member("carl"))
        await moment(env)
        await turn(env)
        env.cluster.release_followers(OFFSETS, offsets_partition_of(env))
        env.admin.cluster.coordinators.mark_unknown("g")
        group = await env.settled(ann, bob, await coming)
        assert group.generation > before.generation
        check_shared(group, 3)
        await env.produce(5, range(4))
        await env.all_handled()
        await env.all_committed()
        check_acknowledged_offsets(env)
        check_generations(env)


# -- at random times -----------------------------------------------------------------------------------------------


async def weather(seed: int, steps: int) -> None:
    """Members join and leave, and the coordinator changes between any two of their requests."""
    rng = random.Random(seed)
    delays = {
        "offsets_append_delay": rng.choice([0.0, 0.05, 0.5]),
        "offsets_load_delay": rng.choice([0.0, 0.3]),
        "initial_rebalance_delay": rng.choice([0.0, 1.0]),
    }
    async with VirtualEnvironment.made(**delays) as env:
        members: list[Member] = [await env.member("m0"), await env.member("m1")]
        await env.settled(*members)
        for step in range(2, steps + 2):
            await env.produce(2, range(4))
            if len(members) < 3 or (len(members) < 4 and rng.random() < 0.5):
                members.append(await env.member(f"m{step}"))
            else:
                await members.pop(rng.randrange(len(members))).leave()
            await asyncio.sleep(rng.choice([0.0, 0.01, 0.3, 3.0]) * rng.random())
            if rng.random() < 0.3:
                env.cluster.hold_followers(OFFSETS, offsets_partition_of(env))
                await asyncio.sleep(rng.random() * 2)
            down = env.cluster.coordinator("g")
            await rng.choice([it_dies, it_hands_over, it_hands_over_and_back])(env)
            env.cluster.release_followers(OFFSETS, offsets_partition_of(env))
            env.admin.cluster.coordinators.mark_unknown("g")
            await asyncio.sleep(rng.random() * 5)
            if not env.cluster.nodes[down].running:
                await env.cluster.start_node(down)
            check_acknowledged_offsets(env)
            check_generations(env)
        await env.all_handled()
        await env.all_committed()
        check_shared(await env.settled(*members), len(members))


@pytest.mark.parametrize("seed", thinned(range(4)))
async def test_at_random_times(seed: int):
    await weather(seed, 6)


@pytest.mark.parametrize("seed", soak(range(100, 300)))
async def test_at_random_times_many_seeds(seed: int):
    await weather(seed, 25)

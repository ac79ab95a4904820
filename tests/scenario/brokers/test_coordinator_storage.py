"""Groups whose coordinator writes and loads `__consumer_offsets` slowly, and moves to other nodes in the meantime."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from tests.profiles import soak, thinned
from tests.scenario.brokers.coordinator_checks import (
    OFFSETS,
    check_acknowledged_offsets,
    offsets_partition_of,
)
from tests.scenario.support import now
from tests.stories import failover
from tests.stories.environment import Group
from tests.stories.virtual import VirtualEnvironment

SLOW = {"offsets_append_delay": 0.05, "offsets_load_delay": 2.0}


async def test_a_coordinator_dies_and_the_next_one_loads_slowly():
    """The members wait, then continue in the same generation."""
    async with VirtualEnvironment.made(**SLOW) as env:
        await failover.coordinator_dies(env)
        answers = env.cluster.history.of("OffsetCommit")
        errors = {
            p.error_code for e in answers if e.response for t in e.response.topics for p in t.partitions
        }
        assert 14 in errors  # COORDINATOR_LOAD_IN_PROGRESS
        check_acknowledged_offsets(env)


async def test_the_offsets_partition_moves_through_the_cluster():
    async with VirtualEnvironment.made(offsets_append_delay=0.05, offsets_load_delay=0.3) as env:
        ann = await env.member("ann")
        bob = await env.member("bob")
        before = await env.settled(ann, bob)
        offsets_partition = offsets_partition_of(env)
        for _ in range(6):
            await env.produce(5, range(4))
            await asyncio.sleep(0.05)
            env.cluster.move_leader(OFFSETS, offsets_partition, env.cluster.coordinator(env.group_id) % 3 + 1)
            await env.all_handled()
            await env.all_committed()
            check_acknowledged_offsets(env)
        assert await env.settled(ann, bob) == before
        assert env.cluster.partition(OFFSETS, offsets_partition).leader_epoch == 6


async def wait_for_commit(env: VirtualEnvironment) -> None:
    """Wait for the next OffsetCommit, at most 3 s: there may be no coordinator."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3.0):
            await env.cluster.history.wait_for("OffsetCommit", since=now())


async def inject_faults(env: VirtualEnvironment, rng: random.Random, steps: int, append_delay: float) -> None:
    """Stop and start nodes and move the partition, mostly while a commit is being written."""
    offsets_partition = offsets_partition_of(env)
    down: int | None = None
    for _ in range(steps):
        await env.produce(2, range(4))
        if rng.random() < 0.8:
            await wait_for_commit(env)
            await asyncio.sleep(rng.random() * append_delay)
        else:
            await asyncio.sleep(rng.random() * 4)
        if down is not None:
            await env.cluster.start_node(down)
            down = None
        elif rng.random() < 0.5:
            down = rng.choice([env.cluster.coordinator(env.group_id), 1, 2, 3])
            await env.cluster.stop_node(down)
        else:
            env.cluster.move_leader(OFFSETS, offsets_partition, rng.choice([1, 2, 3]))
        check_acknowledged_offsets(env)
    if down is not None:
        await env.cluster.start_node(down)


async def run_random(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    delays = {
        "offsets_append_delay": rng.choice([0.01, 0.05, 0.2]),
        "offsets_load_delay": rng.choice([0.0, 0.3, 2.0]),
    }
    async with VirtualEnvironment.made(**delays) as env:
        ann, bob = await env.member("ann"), await env.member("bob")
        await env.settled(ann, bob)
        await inject_faults(env, rng, steps, delays["offsets_append_delay"])
        await env.all_handled()
        await env.all_committed()
        group = await env.settled(ann, bob)
        assert isinstance(group, Group)
        check_acknowledged_offsets(env)


@pytest.mark.parametrize("seed", thinned(range(4)))
async def test_random_faults(seed: int):
    await run_random(seed, 6)


@pytest.mark.parametrize("seed", soak(range(100, 300)))
async def test_many_random_faults(seed: int):
    await run_random(seed, 30)

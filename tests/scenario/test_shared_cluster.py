"""Several members on one Cluster object: they share connections, and must not wait for each other on them."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup import Cluster, ConsumerConfig, ConsumerGroup
from tests.scenario.support import Script, running
from tests.stories.virtual import VirtualEnvironment

pytestmark = pytest.mark.asyncio


def config(env: VirtualEnvironment) -> ConsumerConfig:
    return ConsumerConfig(**env.config("ann"))


async def test_two_members_of_one_group(env: VirtualEnvironment):
    """A join of the one is parked until the other's has come: not behind it on the same connection."""
    first, second = Script(env), Script(env)
    async with (
        Cluster(env.bootstrap_servers, config(env), hooks=[env.bell]) as cluster,
        ConsumerGroup(cluster, "g", config(env)) as ann,
        ConsumerGroup(cluster, "g", config(env)) as bob,
        running(ann.run("orders", first)),
        running(bob.run("orders", second)),
    ):
        await env.bell.until(
            lambda: {len(group.session.claims) if group.session else 0 for group in (ann, bob)} == {2},
            "both share",
            env.limit,
        )
        # one sees the other's coming at its next heartbeat, and that is all that it takes
        assert asyncio.get_running_loop().time() < 2 * env.heartbeat_interval
        await env.produce(5, range(4))
        await env.bell.until(
            lambda: len([c for c in first.calls + second.calls if c.startswith("done")]) == 20,
            "all handled",
            env.limit,
        )


async def test_two_groups(env: VirtualEnvironment):
    first, second = Script(env), Script(env)
    await env.produce(5, range(4))
    async with Cluster(env.bootstrap_servers, config(env), hooks=[env.bell]) as cluster:
        async with (
            ConsumerGroup(cluster, "g", config(env)) as ann,
            ConsumerGroup(cluster, "h", config(env)) as bob,
        ):
            async with running(ann.run("orders", first)), running(bob.run("orders", second)):
                await first.until("done 3@4")
                await second.until("done 3@4")
                await ann.aclose()
                await env.produce(5, range(4))
                await second.until("done 3@9")
                await bob.aclose()
        assert cluster.is_open, "it was not theirs to close"
    assert env.cluster.group("h").offsets != {}

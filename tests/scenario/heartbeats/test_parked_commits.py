"""Brokers park commits for seconds: heartbeats do not wait for them, as they go over a connection of their own then.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from asyncgroup import Cluster, ConsumerConfig, ConsumerGroup
from tests.cluster.support import lanes_of
from tests.scenario.support import SessionEndHook, WorkHandler, member, now, running
from tests.scenario.three_protocols import made_for
from tests.stories.virtual import VirtualEnvironment

FULL = pytest.mark.full
EACH = [pytest.param("cooperative", marks=FULL), pytest.param("eager", marks=FULL), "consumer"]
PARKED = 5.0


def purposes(cluster: Cluster) -> list[str]:
    """Return the purposes of the open connections, sorted."""
    return sorted(lane.purpose for lane in lanes_of(cluster._inner) if lane.is_open)


def longest_pause(env: VirtualEnvironment, protocol: str) -> float:
    """Return the longest time between two heartbeats of ann, but for the first one."""
    api = "ConsumerGroupHeartbeat" if protocol == "consumer" else "Heartbeat"
    beats = [each.time for each in env.cluster.history.of(api, client_id="ann")][1:]
    return max(after - before for before, after in itertools.pairwise(beats))


@pytest.mark.parametrize("protocol", EACH)
async def test_heartbeats_go_on(ends: SessionEndHook, protocol: str) -> None:
    """Commits follow each other all the time, 5 s each; the session timeout is 10 s."""
    async with made_for(protocol) as env:
        handler = WorkHandler(env)
        async with (
            member(env, hooks=(ends,), auto_commit_interval=0.5) as group,
            running(group.run("orders", handler)),
        ):
            await handler.until("setup")
            await asyncio.sleep(2 * env.heartbeat_interval)
            parked = env.cluster.faults.on("OffsetCommit", client_id="ann", times=None).delay(PARKED)
            for _ in range(60):
                await env.produce(1, [0])
                await asyncio.sleep(0.5)
            assert longest_pause(env, protocol) < env.heartbeat_interval + 0.5
            assert parked.hits > 3
            assert purposes(group.cluster).count("heartbeat") == 1
            assert not ends.causes
            parked.cancel()


@pytest.mark.parametrize("protocol", EACH)
async def test_heartbeats_do_not_wait_for_a_lookup(ends: SessionEndHook, protocol: str) -> None:
    """Of the committed offset of a new partition, on the same connection: it takes 20 s, the session timeout is 10 s."""
    async with made_for(protocol) as env:
        handler = WorkHandler(env)
        async with member(env, hooks=(ends,)) as group, running(group.run("orders", handler)):
            await handler.until("assigned [0, 1, 2, 3]")
            slow = env.cluster.faults.on("OffsetFetch", client_id="ann").delay(20.0)
            env.cluster.create_partitions("orders", 5)
            await slow.wait_hit()
            began = now()
            await handler.until("claim 4@0")
            assert now() - began > env.session_timeout
            assert longest_pause(env, protocol) < env.heartbeat_interval + 0.5
            # by the eager protocol a new partition is a rebalance
            assert ends.names == (["PartitionsChanged"] if protocol == "eager" else [])


@pytest.mark.full
@pytest.mark.parametrize("protocol", ["cooperative", "eager", "consumer"])
async def test_idle_members_need_no_further_connection(protocol: str) -> None:
    """This holds for one group, and for two groups that share a cluster and whose heartbeats coincide."""
    async with (
        made_for(protocol) as env,
        Cluster(env.bootstrap_servers, ConsumerConfig(**env.config("ann"))) as cluster,
    ):
        groups = [ConsumerGroup(cluster, name, ConsumerConfig(**env.config("ann"))) for name in ("g", "h")]
        handlers = [WorkHandler(env), WorkHandler(env)]
        async with (
            groups[0],
            groups[1],
            running(groups[0].run("orders", handlers[0])),
            running(groups[1].run("orders", handlers[1])),
        ):
            for handler in handlers:
                await handler.until("setup")
            with env.network.source("10.2.0.1"):
                await asyncio.sleep(5 * env.heartbeat_interval)
            assert "heartbeat" not in purposes(cluster)


@pytest.mark.full
async def test_the_connection_of_heartbeats_closes_with_the_group(env: VirtualEnvironment) -> None:
    async with Cluster(env.bootstrap_servers, ConsumerConfig(**env.config("ann"))) as cluster:
        handler = WorkHandler(env)
        async with (
            ConsumerGroup(
                cluster, "g", ConsumerConfig(**env.config("ann"), auto_commit_interval=0.5)
            ) as group,
            running(group.run("orders", handler)),
        ):
            parked = env.cluster.faults.on("OffsetCommit", client_id="ann").delay(2 * env.heartbeat_interval)
            await env.produce(1, [0])
            await parked.wait_hit()
            await asyncio.sleep(2 * env.heartbeat_interval)
            assert "heartbeat" in purposes(cluster)
        await asyncio.sleep(1.0)
        assert "heartbeat" not in purposes(cluster)

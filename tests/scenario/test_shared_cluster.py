"""Several members on one Cluster object share connections without delaying each other.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import Cluster, Consumer, ConsumerConfig, ConsumerGroup, TopicPartition
from asyncgroup.cluster import connection_pool
from asyncgroup.cluster.connecting import connect
from tests.cluster.support import lanes_of
from tests.scenario.support import WorkHandler, running
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.virtual import VirtualEnvironment


def config(env: VirtualEnvironment) -> ConsumerConfig:
    return ConsumerConfig(**env.config("ann"))


@in_each_protocol
async def test_two_members_of_one_group(env: VirtualEnvironment):
    """A join of one waits for the other's join, so they need separate connections."""
    first, second = WorkHandler(env), WorkHandler(env)
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
        # one member learns of the other's join from its next heartbeat, so no more time than that is needed
        assert asyncio.get_running_loop().time() < 2 * env.heartbeat_interval
        await env.produce(5, range(4))
        await env.bell.until(
            lambda: len([c for c in first.calls + second.calls if c.startswith("done")]) == 20,
            "all handled",
            env.limit,
        )


@in_each_protocol
async def test_two_groups(env: VirtualEnvironment):
    first, second = WorkHandler(env), WorkHandler(env)
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
        assert cluster.is_open, "closing a group must not close a shared Cluster"
    assert env.cluster.group("h").offsets != {}


def purposes(cluster: Cluster) -> set[str]:
    """Return the purposes of the open connections of a cluster."""
    return {lane.purpose for lane in lanes_of(cluster._inner) if lane.is_open}


@in_each_protocol
async def test_the_connections_of_closed_groups_close(env: VirtualEnvironment):
    """They close at once, not after `connections_max_idle`; other connections stay open."""
    first, second = WorkHandler(env), WorkHandler(env)
    await env.produce(5, range(4))
    async with Cluster(env.bootstrap_servers, config(env), hooks=[env.bell]) as cluster:
        await cluster.refresh()
        before = purposes(cluster)
        async with ConsumerGroup(cluster, "h", config(env)) as bob, running(bob.run("orders", second)):
            await second.until("done 3@4")
            alone = purposes(cluster)
            async with ConsumerGroup(cluster, "g", config(env)) as ann, running(ann.run("orders", first)):
                await first.until("done 3@4")
                assert purposes(cluster) > alone
            await asyncio.sleep(1)
            assert purposes(cluster) == alone
            kept = [lane.connection for lane in lanes_of(cluster._inner) if lane.is_open]
            await env.produce(5, range(4))
            await second.until("done 3@9")
            assert all(connection.is_open for connection in kept)
        await asyncio.sleep(1)
        assert purposes(cluster) == before == {"control"}


async def test_the_connections_of_a_closed_consumer_close(env: VirtualEnvironment):
    await env.produce(1, range(4))
    async with Cluster(env.bootstrap_servers, config(env)) as cluster:
        async with Consumer(cluster, config(env)) as reader, Consumer(cluster, config(env)) as other:
            for consumer in (reader, other):
                for number in range(4):
                    await anext(await consumer.partition("orders", number, "earliest"))
            both = purposes(cluster)
            await reader.aclose()
            await asyncio.sleep(1)
            assert len(purposes(cluster)) < len(both)
            await env.produce(1, range(4))
            for number in range(4):
                await anext(other._partitions[TopicPartition("orders", number)])
        await asyncio.sleep(1)
        assert purposes(cluster) == {"control"}


async def test_a_connection_opened_while_its_consumer_closes_is_closed(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch
):
    async with Cluster(env.bootstrap_servers, config(env)) as cluster:
        await cluster.refresh()

        async def slowly(*args: Any) -> Any:
            await asyncio.sleep(2)
            return await connect(*args)

        monkeypatch.setattr(connection_pool, "connect", slowly)
        async with Consumer(cluster, config(env)) as reader:
            await reader.partition("orders", 0, 0)
            await asyncio.sleep(1)
        await asyncio.sleep(10)
        assert purposes(cluster) == {"control"}


async def test_fetchers_of_nodes_that_lead_nothing_end(env: VirtualEnvironment):
    await env.produce(1, range(4))
    async with Consumer(env.bootstrap_servers, config(env)) as reader:
        consumers = [await reader.partition("orders", number, "earliest") for number in range(4)]
        for consumer in consumers:
            await anext(consumer)
        assert len(reader._fetcher._tasks) > 1
        tasks = len(asyncio.all_tasks())
        for number in range(4):
            env.cluster.move_leader("orders", number, 1)
        await asyncio.sleep(30)
        assert list(reader._fetcher._tasks) == [1]
        assert len(asyncio.all_tasks()) < tasks
        fetching = {
            lane.address.node_id
            for lane in lanes_of(reader.cluster._inner)
            if lane.is_open and lane.purpose.startswith("fetch")
        }
        assert fetching == {1}
        env.cluster.move_leader("orders", 0, 2)
        await env.produce(1, range(4))
        for consumer in consumers:
            await asyncio.wait_for(anext(consumer), 5)

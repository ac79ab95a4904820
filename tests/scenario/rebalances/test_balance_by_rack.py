"""`balance_by_rack`: members get partitions with a replica in their rack, and again when replicas move (KIP-881)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import ConsumerGroup
from asyncgroup.wire import messages as m
from tests.scenario.support import WorkHandler, member, running
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

RACKS = ("rack-a", "rack-b", "rack-c")
PARTITIONS = 12
ASSIGNORS = ["range", "sticky", "cooperative-sticky"]


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    """Three nodes in three racks, one replica of each partition."""
    async with VirtualEnvironment.made(nodes=3, partitions=PARTITIONS, racks=RACKS) as environment:
        await move_replicas(environment, {number: number // 2 % 3 + 1 for number in range(PARTITIONS)})
        yield environment


async def move_replicas(env: VirtualEnvironment, nodes: dict[int, int]) -> None:
    """Let each of these partitions have its only replica on that node."""
    partition = m.AlterPartitionReassignmentsRequest.ReassignablePartition
    topic = m.AlterPartitionReassignmentsRequest.ReassignableTopic(
        env.topic, [partition(number, [node_id]) for number, node_id in nodes.items()]
    )
    request = m.AlterPartitionReassignmentsRequest(topics=[topic])
    response = await env.admin.cluster.network.request(1, request)
    assert not any(part.error_code for entry in response.responses for part in entry.partitions)


@contextlib.asynccontextmanager
async def members(env: VirtualEnvironment, **config: Any) -> AsyncIterator[dict[str, ConsumerGroup]]:
    """One member in each rack."""
    groups: dict[str, ConsumerGroup] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, rack in zip(("ann", "bob", "cat"), RACKS, strict=True):
            group = await stack.enter_async_context(member(env, name, rack_id=rack, **config))
            await stack.enter_async_context(running(group.run(env.topic, WorkHandler(env))))
            groups[rack] = group
        yield groups


def near(groups: dict[str, ConsumerGroup], nodes: dict[int, int]) -> bool:
    """Whether each member has the partitions on the node in its rack."""
    return all(
        partitions_of(groups[rack]) == [number for number in nodes if nodes[number] == node_id]
        for node_id, rack in enumerate(RACKS, 1)
    )


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_members_read_in_their_racks(env: VirtualEnvironment, assignor: str) -> None:
    """At first, and after a move of replicas to other racks, without a member that joins or leaves."""
    nodes = {number: number // 2 % 3 + 1 for number in range(PARTITIONS)}
    async with members(env, assignors=(assignor,), balance_by_rack=True) as groups:
        await env.bell.until(lambda: near(groups, nodes), "each in its rack", env.limit)
        moved = {number: node_id % 3 + 1 for number, node_id in nodes.items()}
        await move_replicas(env, moved)
        await env.bell.until(lambda: near(groups, moved), "again in its rack", env.limit)


async def test_a_broker_that_is_down_for_a_while_moves_nothing(env: VirtualEnvironment) -> None:
    nodes = {number: number // 2 % 3 + 1 for number in range(PARTITIONS)}
    async with members(env, assignors=("cooperative-sticky",), balance_by_rack=True) as groups:
        await env.bell.until(lambda: near(groups, nodes), "each in its rack", env.limit)
        await asyncio.sleep(2.0)  # all claims have started
        generation = env.cluster.group(env.group_id).generation
        other = next(node for node in (1, 2, 3) if node != env.cluster.coordinator(env.group_id))
        await env.cluster.stop_node(other)
        await asyncio.sleep(3 * env.refresh_interval)
        await env.cluster.start_node(other)
        await asyncio.sleep(3 * env.refresh_interval)
        assert env.cluster.group(env.group_id).generation == generation
        assert near(groups, nodes)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_racks_alone_do_not_change_assignments(env: VirtualEnvironment, assignor: str) -> None:
    """`rack_id` is for fetching from a replica in the rack; the assignment has its own setting."""
    nodes = {number: number // 2 % 3 + 1 for number in range(PARTITIONS)}
    async with members(env, assignors=(assignor,)) as groups:
        await env.bell.until(
            lambda: [len(partitions_of(group)) for group in groups.values()] == [PARTITIONS // 3] * 3,
            "thirds",
            env.limit,
        )
        assert not near(groups, nodes)


async def test_the_default_assignor_and_one_without_racks(env: VirtualEnvironment) -> None:
    nodes = {number: number // 2 % 3 + 1 for number in range(PARTITIONS)}
    async with members(env, balance_by_rack=True) as groups:
        await env.bell.until(lambda: near(groups, nodes), "each in its rack", env.limit)
    async with members(env, assignors=("roundrobin",), balance_by_rack=True) as groups:
        await env.bell.until(
            lambda: (
                [partitions_of(group) for group in groups.values()]
                == [list(range(first, PARTITIONS, 3)) for first in range(3)]
            ),
            "in turn",
            env.limit,
        )

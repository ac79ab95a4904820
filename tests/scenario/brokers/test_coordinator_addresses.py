"""The metadata names a wrong port for the coordinator's node: its response to FindCoordinator counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import Producer, ProducerConfig
from tests.scenario.support import WorkHandler, committed, member, running
from tests.scenario.three_protocols import made_for
from tests.stories.virtual import VirtualEnvironment

CLOSED_PORT = 19999


def lead_elsewhere(env: VirtualEnvironment, node_id: int) -> int:
    """Move all partitions away from a node, and let the metadata name a closed port for it."""

    def rename(response: Any) -> Any:
        for broker in response.brokers:
            if broker.node_id == node_id:
                broker.port = CLOSED_PORT
        return response

    env.cluster.faults.on("Metadata", client_id="ann", times=None).mutate(rename)
    other = next(node for node in env.cluster.nodes if node != node_id)
    for partition in range(4):
        env.cluster.move_leader("orders", partition, other)
    return other


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "protocol", ["cooperative", pytest.param("eager", marks=FULL), pytest.param("consumer", marks=FULL)]
)
async def test_a_member_joins_and_commits(protocol: str) -> None:
    async with made_for(protocol, nodes=3) as env:
        lead_elsewhere(env, env.cluster.coordinator("g"))
        await env.produce(1, range(4))
        handler = WorkHandler(env)
        async with member(env) as group, running(group.run("orders", handler)):
            await env.bell.until(lambda: committed(env) == dict.fromkeys(range(4), 1), "commits", 30.0)


async def test_a_transactional_producer_commits(env: VirtualEnvironment) -> None:
    node_id = env.cluster.transaction_coordinator("t")
    other = lead_elsewhere(env, node_id)
    server = f"{env.cluster.nodes[other].host}:{env.cluster.nodes[other].port}"
    config = ProducerConfig(client_id="ann", transactional_id="t")
    async with asyncio.timeout(30.0), Producer(server, config) as producer:
        async with producer.transaction():
            await producer.send("orders", b"a", partition=0)
    assert [record.value for record in env.cluster.records("orders")] == [b"a"]

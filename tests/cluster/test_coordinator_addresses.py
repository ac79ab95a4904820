"""The address of a coordinator comes from the response to FindCoordinator, as in Java, not from the metadata."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.cluster.coordinators import GROUP, TRANSACTION, CoordinatorMoved
from asyncgroup.errors import BrokerError
from asyncgroup.wire import messages as m
from tests.cluster.scripted import Call, ScriptedCluster, no_answer
from tests.cluster.support import HOSTS, LIST_GROUPS, answer_list_groups, cluster_of

pytestmark = pytest.mark.virtual

MOVED = 9099
"""The port at which node 2 listens, or came back; the metadata has 9092."""


def name_coordinator(scripted: ScriptedCluster, node_id: int, host: str, port: int) -> None:
    """Let every broker return this node at this address as the coordinator of every key."""

    def answer(call: Call) -> None:
        each = [
            m.FindCoordinatorResponse.Coordinator(key, node_id, host, port)
            for key in call.request.coordinator_keys
        ]
        call.answer(m.FindCoordinatorResponse(coordinators=each))

    for broker in scripted.brokers.values():
        broker.script["FindCoordinator"] = answer


def with_node_2_at(port: int) -> ScriptedCluster:
    """Return brokers whose metadata names port 9092 for node 2, which listens at this one."""
    scripted = ScriptedCluster(*HOSTS)
    scripted[2].port = port

    def answer(call: Call) -> None:
        response = scripted.metadata(call.request, call.version)
        for broker in response.brokers:
            broker.port = 9092
        call.answer(response)

    for broker in scripted.brokers.values():
        broker.script["Metadata"] = answer
        broker.script["ListGroups"] = answer_list_groups
    return scripted


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
async def test_requests_go_to_the_address_of_the_lookup(kind: int) -> None:
    async with with_node_2_at(MOVED) as scripted, cluster_of(scripted) as cluster:
        name_coordinator(scripted, 2, HOSTS[1], MOVED)
        for lane in ("group", "control"):
            await cluster.coordinators.request("g", LIST_GROUPS, kind=kind, lane=lane)
        assert await cluster.coordinators.find("g", kind) == 2
        assert len(scripted.requests_of("ListGroups", 2)) == 2
        assert len(scripted.requests_of("FindCoordinator")) == 1, "the address stays known"


async def test_a_coordinator_that_the_metadata_lacks(three: ScriptedCluster) -> None:
    """It is looked up again once the metadata that is newer than the lookup lacks it, and not for each request."""
    three.listed = {1, 3}
    three[2].script["ListGroups"] = answer_list_groups
    async with cluster_of(three) as cluster:
        name_coordinator(three, 2, HOSTS[1], 9092)
        for lookups in (1, 2):
            for _ in range(3):
                await cluster.coordinators.request("g", LIST_GROUPS)
            assert len(three.requests_of("FindCoordinator")) == lookups
            await asyncio.sleep(1.0)
            await cluster.refresh()


async def test_two_addresses_of_a_node_do_not_disturb_each_other() -> None:
    """Requests to the node go to the address in the metadata, on a connection of the same purpose."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        name_coordinator(three, 2, HOSTS[2], 9092)  # another place
        for node in (2, 3):
            three[node].script["ListGroups"] = answer_list_groups
        three[3].script["JoinGroup"] = no_answer
        parked = asyncio.create_task(cluster.coordinators.request("g", m.JoinGroupRequest(), timeout=300.0))
        await asyncio.sleep(1.0)
        for _ in range(3):
            await cluster.network.request(2, LIST_GROUPS)
            assert not parked.done()
        assert len({asked.connection for asked in three.requests_of("ListGroups", 2)}) == 1
        assert len(three.requests_of("JoinGroup", 3)) == 1
        parked.cancel()


async def test_requests_at_the_former_address_are_cancelled() -> None:
    """The coordinator came back under another port: a request that waits at the former one is sent again."""
    async with with_node_2_at(MOVED) as scripted, cluster_of(scripted) as cluster:
        scripted[3].script["JoinGroup"] = no_answer
        name_coordinator(scripted, 2, HOSTS[2], 9092)
        parked = asyncio.create_task(
            cluster.coordinators.request("g", m.JoinGroupRequest(), lane="join", timeout=300.0)
        )
        await asyncio.sleep(1.0)
        before = cluster.coordinators.lookup_number("g")
        name_coordinator(scripted, 2, HOSTS[1], MOVED)
        cluster.coordinators.mark_unknown("g")
        await cluster.coordinators.find("g")
        with pytest.raises(CoordinatorMoved, match="node 2"):
            await parked
        assert cluster.coordinators.lookup_number("g") != before


async def test_without_an_address_that_of_the_metadata_counts() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three[2].script["ListGroups"] = answer_list_groups
        name_coordinator(three, 2, "", -1)
        await cluster.coordinators.request("g", LIST_GROUPS)
        name_coordinator(three, 9, "", -1)
        with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
            await cluster.coordinators.find("other")

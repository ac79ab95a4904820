"""CoordinatorClient: lookups, the cache, and coordinators that move."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.coordinators import TRANSACTION, CoordinatorMoved
from asyncgroup.errors import BrokerError, ConnectionLost, ErrorCode, ProtocolError
from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message
from tests.cluster.scripted import Call, ScriptedCluster, no_answer
from tests.cluster.support import HOSTS, LIST_GROUPS, answer_list_groups, cluster_of

pytestmark = pytest.mark.virtual


def coordinate(scripted: ScriptedCluster, node_id: int, error_code: int = 0, port: int = 9092) -> None:
    """Let every broker return `node_id` as the coordinator of every key."""

    def answer(call: Call) -> None:
        host = HOSTS[(node_id - 1) % 3]
        if call.version < 4:
            found = m.FindCoordinatorResponse(
                error_code=error_code, error_message="not available", node_id=node_id, host=host, port=port
            )
        else:
            each = [
                m.FindCoordinatorResponse.Coordinator(
                    key=key,
                    node_id=node_id,
                    host=host,
                    port=port,
                    error_code=error_code,
                    error_message="not available",
                )
                for key in call.request.coordinator_keys
            ]
            found = m.FindCoordinatorResponse(coordinators=each)
        call.answer(found)

    for broker in scripted.brokers.values():
        broker.script["FindCoordinator"] = answer


@pytest.mark.parametrize("version", [0, 1, 3, 4, 6])
async def test_every_find_coordinator_version(version: int) -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        for broker in three.brokers.values():
            broker.versions["FindCoordinator"] = (0, version)
        coordinate(three, 2)
        assert await cluster.coordinators.find("g") == 2
        request = three.requests_of("FindCoordinator")[0].request
        assert request.coordinator_keys == (["g"] if version >= 4 else [])
        assert request.key == ("" if version >= 4 else "g")


@pytest.mark.parametrize(("version", "asked"), [(6, [["a", "b"], ["c"]]), (3, ["a", "b", "c"])])
async def test_several_coordinators_are_looked_up_at_once(version: int, asked: list[object]) -> None:
    """KIP-699; brokers before Kafka 3.0 take one key in a request."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        for broker in three.brokers.values():
            broker.versions["FindCoordinator"] = (0, version)
        coordinate(three, 2)
        for keys in (["a", "b", "a"], ["b", "c"]):
            found = await cluster.coordinators.locate_all(keys, TRANSACTION)
            assert {key: address.node_id for key, address in found.items()} == dict.fromkeys(keys, 2)
        requests = [asked.request for asked in three.requests_of("FindCoordinator")]
        assert [each.coordinator_keys or each.key for each in requests] == asked
        assert {each.key_type for each in requests} == {TRANSACTION}


async def test_one_of_several_coordinators_is_not_available() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:

        def answer(call: Call) -> None:
            codes = {"b": ErrorCode.COORDINATOR_NOT_AVAILABLE}
            found = [
                m.FindCoordinatorResponse.Coordinator(key, 1, HOSTS[0], 9092, codes.get(key, 0))
                for key in call.request.coordinator_keys
                if key != "c"
            ]
            call.answer(m.FindCoordinatorResponse(coordinators=found))

        for broker in three.brokers.values():
            broker.script["FindCoordinator"] = answer
        with pytest.raises(BrokerError, match=r"coordinator of 'b': COORDINATOR_NOT_AVAILABLE"):
            await cluster.coordinators.locate_all(["a", "b"])
        assert cluster.coordinators.lookup_number("a") is not None, "it is not asked for again"
        with pytest.raises(ProtocolError, match="FindCoordinator has no entry for 'c'"):
            await cluster.coordinators.locate_all(["c", "d"])


async def test_the_coordinator_is_cached_until_it_is_marked_unknown() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        assert [await cluster.coordinators.find("g") for _ in range(3)] == [2, 2, 2]
        assert len(three.requests_of("FindCoordinator")) == 1
        cluster.coordinators.mark_unknown("g", node_id=3)
        await cluster.coordinators.find("g")
        assert len(three.requests_of("FindCoordinator")) == 1, "node 3 is not the cached coordinator"
        coordinate(three, 3)
        cluster.coordinators.mark_unknown("g", node_id=2)
        assert await cluster.coordinators.find("g") == 3


async def test_lookups_and_requests_of_the_public_cluster() -> None:
    async with ScriptedCluster(*HOSTS) as scripted, Cluster(scripted.servers) as cluster:
        coordinate(scripted, 2)
        scripted[2].script["ListGroups"] = answer_list_groups
        assert await cluster.coordinators.request("g", LIST_GROUPS) == m.ListGroupsResponse()
        assert await cluster.coordinators.find("g", TRANSACTION) == 2
        assert [asked.request.key_type for asked in scripted.requests_of("FindCoordinator")] == [0, 1]
        coordinate(scripted, 3)
        cluster.coordinators.mark_unknown("g", 1)
        assert await cluster.coordinators.find("g") == 2
        cluster.coordinators.mark_unknown("g", 2)
        assert await cluster.coordinators.find("g") == 3
        assert await cluster.coordinators.find("g", TRANSACTION) == 2
        cluster.coordinators.mark_unknown("g", kind=TRANSACTION)
        assert await cluster.coordinators.find("g", TRANSACTION) == 3


async def test_coordinators_are_cached_by_type_and_key() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 1)
        await cluster.coordinators.find("g")
        await cluster.coordinators.find("g", TRANSACTION)
        await cluster.coordinators.find("h")
        assert [asked.request.key_type for asked in three.requests_of("FindCoordinator")] == [0, 1, 0]


async def test_a_find_coordinator_error_is_raised(three: ScriptedCluster, cluster: ClusterClient) -> None:
    coordinate(three, -1, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(
        BrokerError, match=r"coordinator of 'g': COORDINATOR_NOT_AVAILABLE \(15\): not available"
    ):
        await cluster.coordinators.find("g")


async def test_an_unknown_coordinator_node_without_an_address_triggers_a_metadata_refresh() -> None:
    async with ScriptedCluster(*HOSTS) as three:
        three.listed = {1, 2}
        async with cluster_of(three) as cluster:
            three.listed = {1, 2, 3}
            coordinate(three, 3, port=-1)
            assert await cluster.coordinators.find("g") == 3
            coordinate(three, 9, port=-1)
            with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
                await cluster.coordinators.find("other")


async def test_a_coordinator_that_left_the_cluster_is_looked_up_again() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 3)
        await cluster.coordinators.find("g")
        three.listed = {1, 2}
        await cluster.refresh()
        coordinate(three, 1)
        assert await cluster.coordinators.find("g") == 1


async def test_the_coordinator_is_looked_up_again_after_a_failed_request() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        three[2].script["Heartbeat"] = Call.cut
        three[1].script["Heartbeat"] = lambda call: call.answer(m.HeartbeatResponse())
        with pytest.raises(ConnectionLost):
            await cluster.coordinators.request("g", m.HeartbeatRequest(), lane="heartbeat")
        coordinate(three, 1)
        await cluster.coordinators.request("g", m.HeartbeatRequest(), lane="heartbeat")
        assert len(three.requests_of("FindCoordinator")) == 2


async def test_a_cancelled_request_does_not_make_the_coordinator_unknown() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        three[2].script["JoinGroup"] = no_answer
        join = asyncio.create_task(cluster.coordinators.request("g", m.JoinGroupRequest(), timeout=300.0))
        await asyncio.sleep(5)
        join.cancel()
        await asyncio.wait([join])
        await cluster.coordinators.find("g")
        assert len(three.requests_of("FindCoordinator")) == 1


async def test_find_coordinator_goes_to_the_least_loaded_node() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        for node in (1, 2):
            three[node].script["JoinGroup"] = no_answer
        parked = [
            asyncio.create_task(cluster.network.request(node, m.JoinGroupRequest(), lane="join"))
            for node in (1, 2)
        ]
        await asyncio.sleep(1)
        for number in range(5):
            await cluster.coordinators.find(f"group {number}")
        assert {asked.node_id for asked in three.requests_of("FindCoordinator")} == {3}
        for task in parked:
            task.cancel()


# --- a coordinator that has moved -------------------------------------------------------------------------------------


async def test_requests_at_a_former_coordinator_are_cancelled_when_another_is_found() -> None:
    """On all lanes; but not requests of other groups, and not if the lookup returns the same node."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        for api in ("JoinGroup", "OffsetCommit"):
            three[2].script[api] = no_answer
        request = cluster.coordinators.request
        join = asyncio.create_task(request("g", m.JoinGroupRequest(), lane="join", timeout=300.0))
        commit = asyncio.create_task(request("g", m.OffsetCommitRequest(), lane="group"))
        other = asyncio.create_task(request("h", m.OffsetCommitRequest(), lane="group"))
        await asyncio.sleep(5)
        cluster.coordinators.mark_unknown("g")
        await cluster.coordinators.find("g")
        await asyncio.sleep(1)
        assert not any(task.done() for task in (join, commit, other)), "the lookup returned the same node"
        coordinate(three, 3)
        cluster.coordinators.mark_unknown("g")
        begun = asyncio.get_running_loop().time()
        await cluster.coordinators.find("g")
        await asyncio.wait([join, commit])
        assert asyncio.get_running_loop().time() - begun < 0.1
        for task in (join, commit):
            with pytest.raises(CoordinatorMoved, match="node 2 is no longer the coordinator of 'g'"):
                await task
        assert not other.done()
        assert await cluster.coordinators.find("g") == 3, (
            "cancelling them does not make the new coordinator unknown"
        )
        other.cancel()


async def commit_before_a_move(scripted: ScriptedCluster, cluster: ClusterClient) -> asyncio.Task[Message]:
    """Send a commit to the coordinator, and find the new one after a second."""
    commit = asyncio.create_task(cluster.coordinators.request("g", m.OffsetCommitRequest(), lane="group"))
    await asyncio.sleep(1)
    coordinate(scripted, 3)
    cluster.coordinators.mark_unknown("g")
    await cluster.coordinators.find("g")
    return commit


async def test_requests_waiting_to_connect_to_a_former_coordinator_are_cancelled() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        three[2].script["ApiVersions"] = no_answer
        commit = await commit_before_a_move(three, cluster)
        with pytest.raises(CoordinatorMoved, match="OffsetCommit was cancelled before a response arrived"):
            await commit


async def test_the_next_request_to_that_node_does_not_wait_for_the_cancelled_one() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        three[2].script["OffsetCommit"] = no_answer
        commit = await commit_before_a_move(three, cluster)
        await asyncio.wait([commit])
        commit.exception()
        assert cluster.pool.in_flight(2, "group") == 0


async def test_lookups_are_numbered(three: ScriptedCluster, cluster: ClusterClient) -> None:
    """Each lookup of a key has its own number, also if it returns the same node."""
    coordinators = cluster.coordinators
    assert coordinators.lookup_number("g") is None
    coordinate(three, 2)
    await coordinators.find("g")
    first = coordinators.lookup_number("g")
    await coordinators.find("g")
    assert coordinators.lookup_number("g") == first is not None
    coordinators.mark_unknown("g")
    assert coordinators.lookup_number("g") is None
    await asyncio.gather(coordinators.find("g"), coordinators.find("g"))
    assert coordinators.lookup_number("g") not in (None, first)


async def test_a_stale_coordinator_is_asked_last(three: ScriptedCluster, cluster: ClusterClient) -> None:
    coordinate(three, 2)
    for number in range(20):
        cluster.random.seed(number)
        await cluster.coordinators.find("g")
        asked = len(three.requests_of("FindCoordinator"))
        cluster.coordinators.mark_stale("g")
        await cluster.coordinators.find("g")
        assert three.requests_of("FindCoordinator")[asked].node_id != 2
        cluster.coordinators.mark_unknown("g")


async def test_a_stale_coordinator_is_asked_if_no_other_broker_answers() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        coordinate(three, 2)
        await cluster.coordinators.find("g")
        for node in (1, 3):
            three[node].script["FindCoordinator"] = Call.cut
        cluster.coordinators.mark_stale("g")
        assert await cluster.coordinators.find("g") == 2

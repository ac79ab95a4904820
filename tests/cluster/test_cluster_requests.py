"""Requests to one node: lanes, timeouts, reconnects, and one failing broker among others."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from asyncgroup import errors
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from tests.cluster.scripted import Call, ScriptedCluster, no_answer
from tests.cluster.support import HOSTS, LIST_GROUPS, answer_list_groups, cluster_of, now

pytestmark = pytest.mark.virtual


async def test_each_lane_has_its_own_connection(three: ScriptedCluster, cluster: ClusterClient) -> None:
    """A request held by the broker (JoinGroup, Fetch) does not delay requests on other lanes."""
    three[1].script["ListGroups"] = no_answer
    three[1].script["Heartbeat"] = lambda call: call.answer(m.HeartbeatResponse())
    parked = asyncio.create_task(cluster.network.request(1, LIST_GROUPS, lane="join", timeout=300.0))
    await asyncio.sleep(1)
    await cluster.network.request(1, m.HeartbeatRequest(), lane="heartbeat")
    assert now() == pytest.approx(1.0)
    join, beat = three.requests_of("ListGroups")[0], three.requests_of("Heartbeat")[0]
    assert join.connection != beat.connection
    assert await cluster.network.connection(1, "join") is await cluster.network.connection(1, "join")
    parked.cancel()


async def test_concurrent_callers_share_a_connection_attempt() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        before = three[3].accepted
        three[3].script["ListGroups"] = answer_list_groups
        await asyncio.gather(*(cluster.network.request(3, LIST_GROUPS, lane="new") for _ in range(10)))
        assert three[3].accepted == before + 1


async def test_a_caller_cancelled_while_connecting_does_not_stop_the_others(network: Network) -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three[2].script["ListGroups"] = answer_list_groups
        network.set_latency(1.0, HOSTS[1])
        tasks = [asyncio.create_task(cluster.network.request(2, LIST_GROUPS, lane="slow")) for _ in range(2)]
        await asyncio.sleep(0.5)
        tasks[0].cancel()
        await tasks[1]
        assert tasks[0].cancelled()


async def test_each_request_has_its_own_timeout() -> None:
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, request_timeout=30.0) as cluster:
        scripted[1].script["ListGroups"] = no_answer
        with pytest.raises(errors.RequestTimedOut, match="within 5 s"):
            await cluster.network.request(1, LIST_GROUPS, timeout=5.0)
        with pytest.raises(errors.RequestTimedOut, match="within 30 s"):
            await cluster.network.request(1, LIST_GROUPS)
        assert now() == pytest.approx(35.0)
        scripted[1].script["ListGroups"] = answer_list_groups
        await cluster.network.request(1, LIST_GROUPS)


async def test_a_broker_that_does_not_answer_does_not_delay_requests_to_others(network: Network) -> None:
    """aiokafka has one lock around all connects, so there such a broker delays the others by its whole timeout."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        network.blackhole(HOSTS[0], connect="accept")
        for node in (2, 3):
            three[node].script["ListGroups"] = answer_list_groups
        started = now()
        stuck = [
            asyncio.create_task(cluster.network.request(1, LIST_GROUPS, lane=lane))
            for lane in ("a", "b", "control")
        ]
        await asyncio.sleep(0)
        await asyncio.gather(*(cluster.network.request(node, LIST_GROUPS, lane="new") for node in (2, 3)))
        assert now() == started
        for task in stuck:
            with pytest.raises(errors.TransportError):
                await task
        network.heal()


async def test_a_request_to_an_unknown_node(cluster: ClusterClient) -> None:
    with pytest.raises(errors.NoBrokersError, match=r"node 7 is not among the cluster's brokers \[1, 2, 3\]"):
        await cluster.network.request(7, LIST_GROUPS)


async def test_a_request_is_built_for_the_negotiated_version() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three[1].script["ListGroups"] = answer_list_groups
        built: list[int] = []

        def build(version: int) -> m.ListGroupsRequest:
            built.append(version)
            return m.ListGroupsRequest()

        await cluster.network.request_versioned(1, m.ListGroupsRequest, build)
        await cluster.network.request_versioned(1, m.ListGroupsRequest, build, highest=3)
        assert built == [5, 3]
        three[1].versions["ListGroups"] = (0, 1)
        with pytest.raises(errors.UnsupportedVersionError):
            await cluster.network.request(1, m.ListGroupsRequest(states_filter=["Empty"]), highest=2)


async def test_an_unsupported_api_makes_the_client_request_api_versions_again() -> None:
    """On a new connection, as the node may be a different broker by then; in-flight requests are still answered."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three[1].script["ListGroups"] = answer_list_groups
        three[1].versions["ListGroups"] = (90, 99)
        held: list[Call] = []
        three[1].script["Heartbeat"] = held.append
        beat = asyncio.create_task(cluster.network.request(1, m.HeartbeatRequest(), lane="new"))
        await asyncio.sleep(1)
        with pytest.raises(errors.UnsupportedVersionError, match=r"node 1 .* offers 90-99"):
            await cluster.network.request(1, LIST_GROUPS, lane="new")
        three[1].versions["ListGroups"] = (0, 5)
        await cluster.network.request(1, LIST_GROUPS, lane="new")
        held[0].answer(m.HeartbeatResponse())
        assert (await beat).error_code == 0


async def test_failed_connects_are_retried_with_growing_delays(network: Network) -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, retry_backoff=1.0, retry_backoff_max=4.0) as cluster,
    ):
        await scripted[2].stop()
        times = []
        for _ in range(5):
            with pytest.raises(
                errors.ConnectError, match=r"node 2 \(10\.0\.0\.2:9092\): Connection refused$"
            ):
                await cluster.network.request(2, LIST_GROUPS, lane="new")
            times.append(now())
        pauses = [round(after - before, 1) for before, after in itertools.pairwise(times)]
        for pause, middle in zip(pauses, [1, 2, 4, 4], strict=True):
            assert 0.8 * middle <= pause <= 1.2 * middle
        await scripted[2].start()
        scripted[2].script["ListGroups"] = answer_list_groups
        await cluster.network.request(2, LIST_GROUPS, lane="new")


async def test_a_lost_connection_is_reopened(three: ScriptedCluster, cluster: ClusterClient) -> None:
    three[1].script["ListGroups"] = Call.cut
    with pytest.raises(errors.ConnectionLost):
        await cluster.network.request(1, LIST_GROUPS)
    three[1].script["ListGroups"] = answer_list_groups
    await cluster.network.request(1, LIST_GROUPS)


async def test_a_broker_that_moved_is_reached_at_its_new_address(network: Network) -> None:
    async with ScriptedCluster(*HOSTS, "10.0.0.4") as scripted:
        scripted.listed = {1, 2}
        async with cluster_of(scripted) as cluster:
            scripted[2].script["ListGroups"] = scripted[4].script["ListGroups"] = answer_list_groups
            await cluster.network.request(2, LIST_GROUPS)
            old = await cluster.network.connection(2)
            scripted[2].host, scripted[4].host = "10.0.0.4", "10.0.0.2"
            await cluster.refresh()
            await cluster.network.request(2, LIST_GROUPS)
            assert scripted.requests_of("ListGroups")[-1].node_id == 4
            assert not old.is_open


async def test_a_broker_that_moves_while_a_connection_is_opened(network: Network) -> None:
    """The connection to the old address must be closed as soon as it is open."""
    async with ScriptedCluster(*HOSTS, "10.0.0.4") as scripted:
        scripted.listed = {1, 2}
        async with cluster_of(scripted) as cluster:
            scripted[4].script["ListGroups"] = answer_list_groups
            network.set_latency(1.0, HOSTS[1])
            late = asyncio.create_task(cluster.network.request(2, LIST_GROUPS, lane="x"))
            await asyncio.sleep(0.5)
            scripted[2].host, scripted[4].host = "10.0.0.4", "10.0.0.2"
            await cluster.refresh()
            await cluster.network.request(2, LIST_GROUPS, lane="x")
            with pytest.raises(errors.ConnectError, match="closed while connecting"):
                await late
            await asyncio.sleep(5)
            assert not scripted[2].open
            assert len(scripted[4].open) == 1


async def test_idle_connections_are_closed() -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, connections_max_idle=300.0, metadata_refresh_interval=0.0) as cluster,
    ):
        scripted[1].script["ListGroups"] = answer_list_groups
        for number in range(10):
            await cluster.network.request(1, LIST_GROUPS, lane="busy")
            if not number:
                await cluster.network.request(1, LIST_GROUPS, lane="idle")
            await asyncio.sleep(100)
        assert len(scripted[1].open) == 1
        await asyncio.sleep(500)
        assert not scripted[1].open


async def test_a_connection_with_a_request_in_flight_is_not_idle() -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, connections_max_idle=60.0) as cluster,
    ):
        held: list[Call] = []
        scripted[1].script["ListGroups"] = held.append
        parked = asyncio.create_task(cluster.network.request(1, LIST_GROUPS, timeout=1000.0))
        await asyncio.sleep(900)
        held[0].answer(m.ListGroupsResponse())
        await parked


async def test_the_reconnect_backoff_can_be_limited(network: Network) -> None:
    """The smallest limit applies, to all lanes."""
    config = {"retry_backoff": 10.0, "retry_backoff_max": 10.0}
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, **config) as cluster:
        scripted[2].script["ListGroups"] = answer_list_groups
        cluster.pool.limit_reconnect_backoff(0.5)
        cluster.pool.limit_reconnect_backoff(3.0)
        network.refuse(HOSTS[1])
        with pytest.raises(errors.ConnectError):
            await cluster.network.request(2, LIST_GROUPS, lane="group")
        network.heal()
        begun = now()
        await cluster.network.request(2, LIST_GROUPS, lane="group")
        assert now() - begun == pytest.approx(0.5)

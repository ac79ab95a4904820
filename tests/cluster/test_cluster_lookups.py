"""Requests that any node can answer, rebootstrapping, and metadata refreshes."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.cluster import Cluster, ClusterClient
from asyncgroup.errors import (
    BrokerError,
    ConnectionLost,
    ErrorCode,
    NoBrokersError,
)
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from tests.cluster.scripted import Call, ScriptedCluster, no_answer
from tests.cluster.support import HOSTS, LIST_GROUPS, cluster_of, lanes_of, now

pytestmark = pytest.mark.virtual


# --- requests that any node can answer --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_a_lookup_asks_another_broker_after_a_second_without_an_answer(
    seed: int, network: Network
) -> None:
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, seed) as cluster:
        network.blackhole(HOSTS[seed % 3], connect="accept")
        for number in range(20):
            started = now()
            await cluster.refresh()
            assert now() - started <= 1.0, number
            await asyncio.sleep(1)
        network.heal()


async def test_a_broker_that_does_not_answer_is_asked_once_and_then_last(network: Network) -> None:
    """The first request waits a second for it; afterwards it ranks last because of the request in flight."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        network.blackhole(HOSTS[0], connect="accept")
        delays = []
        for _ in range(30):
            started = now()
            await cluster.refresh()
            delays.append(now() - started)
            await asyncio.sleep(0.5)
        assert sum(delay > 0 for delay in delays) <= 2
        network.heal()


async def test_a_connection_being_opened_counts_as_load(network: Network) -> None:
    """Otherwise every lookup would ask the unreachable broker, as the least loaded one, until the connect has failed."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        network.blackhole(HOSTS[0], connect="accept")
        for node in (2, 3):
            three[node].script["ListGroups"] = no_answer
        parked = [
            asyncio.create_task(cluster.network.request(node, LIST_GROUPS, lane="join")) for node in (2, 3)
        ]
        delays = []
        for _ in range(5):
            started = now()
            await cluster.refresh()
            delays.append(now() - started)
        assert sum(delays) <= 1.0
        for task in parked:
            task.cancel()
        network.heal()


async def test_a_node_that_refused_a_connection_is_asked_last() -> None:
    """Otherwise the lookup would wait for the reconnect backoff."""
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, retry_backoff=0.9) as cluster:
        for node in (1, 3):
            scripted[node].script["ListGroups"] = no_answer
        await scripted[2].stop()
        parked = [
            asyncio.create_task(cluster.network.request(node, LIST_GROUPS, lane="join")) for node in (1, 3)
        ]
        await asyncio.sleep(0.1)
        started = now()
        for _ in range(20):
            await cluster.refresh()
        assert now() == started
        for task in parked:
            task.cancel()


async def test_a_node_whose_connections_were_lost_is_asked_last() -> None:
    """A killed broker has no requests in flight, but must not rank as the least loaded one."""
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        for node in (1, 2, 3):
            three[node].script["ListGroups"] = no_answer
        parked = [
            asyncio.create_task(cluster.network.request(node, LIST_GROUPS, lane="fetch"))
            for node in (1, 2, 3)
        ]
        await asyncio.sleep(0.1)
        await three[2].stop()
        await asyncio.wait(parked[1:2])
        for _ in range(20):
            await cluster.refresh()
        assert isinstance(parked[1].exception(), ConnectionLost)
        failed = [lane for lane in lanes_of(cluster) if lane.backoff.failures]
        assert failed == [], "no connect was attempted"
        for task in parked:
            task.cancel()


async def test_a_slow_node_is_asked_last_until_it_answers(network: Network) -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        for node in (1, 2, 3):
            await cluster.network.request(node, m.MetadataRequest())
        network.blackhole(HOSTS[0], connect="accept")
        cluster.pool.mark_slow(1)
        start = now()
        for _ in range(20):
            await cluster.refresh()
        assert now() == start
        network.heal()
        three.received.clear()
        await cluster.network.request(1, m.MetadataRequest())
        for _ in range(20):
            await cluster.refresh()
        assert {asked.node_id for asked in three.requests_of("Metadata")} == {1, 2, 3}


async def test_the_least_loaded_node_is_asked(three: ScriptedCluster, cluster: ClusterClient) -> None:
    for node in (1, 3):
        three[node].script["ListGroups"] = no_answer
    parked = [asyncio.create_task(cluster.network.request(node, LIST_GROUPS)) for node in (1, 3)]
    await asyncio.sleep(1)
    three.received.clear()
    for _ in range(5):
        await cluster.refresh()
    assert {asked.node_id for asked in three.requests_of("Metadata")} == {2}
    for task in parked:
        task.cancel()


async def test_rebootstrap_when_every_known_node_is_gone(network: Network) -> None:
    """KIP-899: the cluster came back on other hosts, under the same bootstrap name."""
    network.hosts["kafka"] = ["10.0.0.1"]
    async with ScriptedCluster("10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2") as scripted:
        scripted.listed = {1, 2}
        async with Cluster("kafka:9092") as cluster:
            assert sorted(cluster.view.brokers) == [1, 2]
            for node in (1, 2):
                await scripted[node].stop()
            scripted.listed = {3, 4}
            network.hosts["kafka"] = ["10.0.1.1"]
            await cluster.refresh()
            assert sorted(cluster.view.brokers) == [3, 4]


async def test_rebootstrap_at_rebootstrap_required(three: ScriptedCluster, network: Network) -> None:
    """KIP-1102: error 129 means that the known brokers belong to another cluster."""
    async with ClusterClient("10.0.0.1:9092") as cluster:
        refused = m.MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)

        def answer(call: Call) -> None:
            at_bootstrap = call.connection.number == three[1].accepted - 1
            call.answer(three.metadata(call.request) if at_bootstrap else refused)

        for node in (1, 2, 3):
            three[node].script["Metadata"] = lambda call: call.answer(refused)
        three[1].script["Metadata"] = answer
        await cluster.network.connection(1, "other")
        await cluster.refresh()
        assert sorted(cluster.view.brokers) == [1, 2, 3]
        three[1].script["Metadata"] = lambda call: call.answer(refused)
        with pytest.raises(BrokerError, match="REBOOTSTRAP_REQUIRED"):
            await cluster.refresh()
        assert sorted(cluster.view.brokers) == [1, 2, 3], "the view is kept"


async def test_metadata_without_brokers_leaves_the_view_unchanged() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three.listed = set()
        with pytest.raises(NoBrokersError, match="lists no brokers"):
            await cluster.refresh()
        assert sorted(cluster.view.brokers) == [1, 2, 3]


async def test_a_malformed_metadata_response_makes_the_client_ask_another_broker() -> None:
    async with ScriptedCluster(*HOSTS) as three:
        for node in (1, 2):
            three[node].script["Metadata"] = lambda call: call.write(
                b"\x00\x00\x00\x08" + call.header.correlation_id.to_bytes(4, "big") + b"\x00\xff\xff\xff"
            )
        async with cluster_of(three) as cluster:
            await cluster.refresh()
            assert sorted(cluster.view.brokers) == [1, 2, 3]


# --- refreshes --------------------------------------------------------------------------------------------------------


async def test_refreshes_are_shared(three: ScriptedCluster, cluster: ClusterClient) -> None:
    three.received.clear()
    await asyncio.gather(*(cluster.refresh() for _ in range(50)))
    assert len(three.requests_of("Metadata")) == 1


async def test_metadata_is_refreshed_at_its_interval() -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, metadata_refresh_interval=300.0) as cluster,
    ):
        scripted.received.clear()
        await asyncio.sleep(1000)
        assert 2 <= len(scripted.requests_of("Metadata")) <= 3
        assert now() - cluster.view.updated_at <= 360


async def test_metadata_is_not_refreshed_with_interval_0() -> None:
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted, metadata_refresh_interval=0.0):
        scripted.received.clear()
        await asyncio.sleep(3600)
        assert not scripted.received


async def test_a_failed_periodic_refresh_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, metadata_refresh_interval=60.0) as cluster,
    ):
        for broker in scripted.brokers.values():
            await broker.stop()
        await asyncio.sleep(200)
        assert "metadata refresh failed: no broker answered Metadata" in caplog.text
        for broker in scripted.brokers.values():
            await broker.start()
        await asyncio.sleep(200)
        assert now() - cluster.view.updated_at <= 130


async def test_a_periodic_refresh_that_is_due_during_the_close_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedCluster(*HOSTS) as scripted:
        async with cluster_of(scripted, metadata_refresh_interval=10.0) as cluster:
            end = cluster._single_flight.aclose

            async def end_slowly() -> None:
                await asyncio.sleep(30)
                await end()

            monkeypatch.setattr(cluster._single_flight, "aclose", end_slowly)
            scripted.received.clear()
        assert not scripted.received
    assert caplog.text == ""


async def test_wait_updated_returns_after_the_next_refresh(cluster: ClusterClient) -> None:
    waiting = asyncio.create_task(cluster.wait_updated())
    await asyncio.sleep(1)
    assert not waiting.done()
    await cluster.refresh()
    await asyncio.wait_for(waiting, 1)


async def test_tracked_topics_are_in_every_refresh_until_the_last_untrack() -> None:
    async with ScriptedCluster(*HOSTS) as three, cluster_of(three) as cluster:
        three.topics = {"t": {0: (1, 0)}, "u": {0: (2, 0)}}
        for step, expected in [
            (lambda: cluster.track(["t", "u"]), ["t", "u"]),
            (lambda: cluster.track(["t"]), ["t", "u"]),
            (lambda: cluster.untrack(["t", "u"]), ["t"]),
            (lambda: cluster.untrack(["t", "never"]), []),
        ]:
            step()
            await cluster.refresh()
            assert [topic.name for topic in three.requests_of("Metadata")[-1].request.topics] == expected
            assert sorted(cluster.view.topics) == expected

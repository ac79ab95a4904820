"""Opening and closing a Cluster, at different moments and in different states."""

from __future__ import annotations

import asyncio
import gc
import random

import anyio
import pytest

from asyncgroup import errors
from asyncgroup.cluster import Cluster
from asyncgroup.testing import Network
from asyncgroup.wire import messages as m
from tests.cluster.scripted import ScriptedCluster, no_answer
from tests.cluster.support import HOSTS, LIST_GROUPS, cluster_of, now

pytestmark = pytest.mark.virtual


async def test_entering_requests_the_metadata() -> None:
    async with ScriptedCluster(*HOSTS) as scripted, cluster_of(scripted) as cluster:
        assert sorted(cluster.view.brokers) == [1, 2, 3]
        assert cluster.view.cluster_id == "scripted"
        assert cluster.is_open
        assert "open, 3 brokers, 0 topics" in repr(cluster)
        assert cluster.last_response_at == 0.0
    assert not cluster.is_open
    assert "closed" in repr(cluster)


async def test_one_reachable_server_of_many_is_enough() -> None:
    async with ScriptedCluster(*HOSTS):
        servers = ["10.9.9.1:9092", "10.9.9.2:9092", "10.0.0.2:9092"]
        async with Cluster(servers, rng=random.Random(3)) as cluster:
            assert sorted(cluster.view.brokers) == [1, 2, 3]
            assert now() == 0.0


async def test_the_error_lists_all_unreachable_servers() -> None:
    with pytest.raises(
        errors.NoBrokersError,
        match=r": 10\.9\.9\.\d:9092: Connection refused; 10\.9\.9\.\d:9092: Connection refused",
    ):
        async with Cluster("10.9.9.1:9092,10.9.9.2:9092"):
            pass


async def test_a_malformed_server_list_is_a_config_error() -> None:
    with pytest.raises(errors.ConfigError, match="bootstrap_servers"):
        Cluster("kafka")


async def test_a_cluster_is_entered_once_and_used_while_open(three: ScriptedCluster) -> None:
    cluster = cluster_of(three)
    for call in (
        cluster.refresh,
        lambda: cluster.network.request(1, LIST_GROUPS),
        lambda: cluster.network.connection(1),
    ):
        with pytest.raises(errors.ClosedError):
            await call()
    await cluster.aclose()
    async with cluster_of(three) as cluster:
        pass
    with pytest.raises(errors.ClosedError):
        await cluster.refresh()
    with pytest.raises(errors.ClosedError):
        await cluster.all_topics()
    with pytest.raises(errors.ClosedError, match="create a new one"):
        await cluster.__aenter__()
    await cluster.aclose()


@pytest.mark.parametrize("moment", [0.0, 0.5, 3.0])
async def test_entering_can_be_cancelled_at_any_moment(moment: float, network: Network) -> None:
    network.blackhole(HOSTS[0])
    cluster = Cluster(f"{HOSTS[0]}:9092")
    task = asyncio.create_task(cluster.__aenter__())
    await asyncio.sleep(moment)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not cluster.is_open
    network.heal()


@pytest.mark.parametrize("what", ["connecting", "refreshing", "asking", "throttled", "looking up"])
async def test_closing_during_work_leaves_no_tasks(what: str, network: Network) -> None:
    async with (
        ScriptedCluster(*HOSTS) as scripted,
        cluster_of(scripted, request_timeout=100.0, connect_timeout=50.0) as cluster,
    ):
        scripted[2].script["ListGroups"] = no_answer
        if what == "connecting":
            network.blackhole(HOSTS[1])
        if what in ("refreshing", "looking up"):
            for node in (1, 2, 3):
                scripted[node].script["Metadata"] = no_answer
        if what == "throttled":
            answer = m.ListGroupsResponse(throttle_time_ms=60_000)
            scripted[2].script["ListGroups"] = lambda call: call.answer(answer)
            await cluster.network.request(2, LIST_GROUPS)
        calls = {"refreshing": cluster.refresh, "looking up": lambda: cluster.topics(["t"])}
        work = calls.get(what, lambda: cluster.network.request(2, LIST_GROUPS))
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await asyncio.sleep(0.3)
        await cluster.aclose()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, (errors.ClosedError, errors.ConnectionLost)), end
        assert now() == pytest.approx(0.3)
        network.heal()
    gc.collect()  # a pending future or task would warn now, and warnings are errors


async def test_closing_completes_in_a_cancelled_anyio_scope(three: ScriptedCluster) -> None:
    three[1].script["ListGroups"] = no_answer
    cluster = cluster_of(three)
    with anyio.move_on_after(2):
        async with cluster:
            await cluster.network.request(1, LIST_GROUPS)
    assert not cluster.is_open
    assert now() == pytest.approx(2.0)

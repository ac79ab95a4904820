"""The history of requests and responses."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import ConfigError
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import connect
from tests.broker.requests import fetch, join, partitions_of, produce


async def test_exchanges_have_client_api_times_and_response():
    async with EmbeddedCluster(nodes=2) as cluster, connect(cluster, 2, client_id="app") as client:
        cluster.create_topic("t")
        await asyncio.sleep(3)
        await client.ask(m.MetadataRequest(topics=None), 7)
        await client.ask(fetch(cluster, 0, max_wait_ms=500))
        metadata, fetched = cluster.history
        assert (metadata.time, metadata.node_id, metadata.client_id) == (3.0, 2, "app")
        assert (metadata.api, metadata.version) == ("Metadata", 7)
        assert metadata.request.topics is None
        assert [broker.node_id for broker in metadata.response.brokers] == [1, 2]
        assert (fetched.time, fetched.answered_at) == (3.0, 3.5)
        assert metadata.request_bytes > 0
        assert metadata.response_bytes > metadata.request_bytes
        assert "Metadata v7 from 'app', answered" in repr(metadata)


async def test_requests_are_recorded_when_they_arrive_and_answered_later():
    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as other:
        cluster.create_topic("t")
        request = fetch(cluster, 0, max_wait_ms=500)
        sent = client.send(request)
        await asyncio.sleep(0.1)
        await other.ask(m.MetadataRequest())
        assert [e.api for e in cluster.history] == ["Fetch", "Metadata"]
        assert cluster.history[0].response is None
        assert "no answer" in repr(cluster.history[0])
        await client.receive(request, *sent)
        assert cluster.history[0].response is not None


@pytest.mark.parametrize("payloads", [False, True])
async def test_records_are_dropped_unless_wanted(payloads):
    async with EmbeddedCluster(history_payloads=payloads) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        data = batch(b"a")
        await client.ask(produce(cluster, data))
        answer = await client.ask(fetch(cluster, 0))
        assert len(partitions_of(answer)[0].records) == len(data)
        produced, fetched = cluster.history
        sent = produced.request.topic_data[0].partition_data[0].records
        got = partitions_of(fetched.response)[0].records
        assert (sent is not None, got is not None) == (payloads, payloads)
        assert not payloads or bytes(sent) == data
        assert fetched.response_bytes > len(data)


async def test_the_history_is_bounded():
    async with EmbeddedCluster(history_limit=3) as cluster, connect(cluster) as client:
        for version in range(6):
            await client.ask(m.MetadataRequest(), version)
        assert [e.version for e in cluster.history] == [3, 4, 5]
        assert len(cluster.history) == 3
        assert cluster.history[-1].version == 5
        cluster.history.clear()
        assert len(cluster.history) == 0
    async with EmbeddedCluster(history_limit=0) as cluster, connect(cluster) as client:
        await client.ask(m.MetadataRequest())
        assert len(cluster.history) == 0


async def test_the_history_is_bounded_in_bytes():
    """The limit counts memory of decoded messages: the response for 200 partitions is many times its frame."""
    async with EmbeddedCluster(history_bytes=1_000_000) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 200)
        history = cluster.history
        tracemalloc.start()
        for number in range(25):
            await client.ask(m.MetadataRequest(topics=None), 9)
            assert len(history) + history.dropped == number + 1
            assert history.bytes <= 1_000_000
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert 5 <= len(history) <= 20
        assert taken < 1_500_000
        assert f"{history.dropped} dropped" in repr(history)
        first, *lines = history.story().splitlines()
        assert (
            first
            == f"({history.dropped} earlier exchanges were dropped: history_limit=10000, history_bytes=1000000)"
        )
        assert len(lines) == len(history)
        assert history.story(2).splitlines() == lines[-2:]
        held = history.bytes
        await client.ask(m.HeartbeatRequest(group_id="g"))
        assert held < history.bytes < held + 10_000
        history.clear()
        assert (len(history), history.bytes, history.dropped) == (0, 0, 0)


async def test_an_exchange_dropped_before_its_response_is_not_counted():
    async with (
        EmbeddedCluster(history_limit=1) as cluster,
        connect(cluster) as client,
        connect(cluster) as other,
    ):
        cluster.create_topic("t")
        request = fetch(cluster, 0, max_wait_ms=500)
        sent = client.send(request)
        await asyncio.sleep(0.1)
        await other.ask(m.HeartbeatRequest(group_id="g"))
        held = cluster.history.bytes
        await client.receive(request, *sent)
        assert (cluster.history.bytes, cluster.history.dropped) == (held, 1)


@pytest.mark.parametrize("payloads", [False, True])
async def test_kept_records_count_toward_the_limit(payloads):
    async with EmbeddedCluster(history_payloads=payloads) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        data = batch(bytes(100_000))
        await client.ask(produce(cluster, data))
        assert (cluster.history.bytes > 100_000) == payloads
        await client.ask(fetch(cluster, 0))
        assert (cluster.history.bytes > 200_000) == payloads
        assert cluster.history.bytes > 200_000 or cluster.history.bytes < 10_000


async def test_an_exchange_larger_than_the_limit_is_not_kept():
    async with EmbeddedCluster(history_bytes=50_000) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 200)
        await client.ask(m.HeartbeatRequest(group_id="g"))
        await client.ask(m.MetadataRequest(topics=None))
        assert (len(cluster.history), cluster.history.bytes, cluster.history.dropped) == (0, 0, 2)


@pytest.mark.parametrize(("history_bytes", "allowed"), [(-1, "0 or more"), (1.5, "a whole number")])
async def test_invalid_history_limits(history_bytes, allowed):
    with pytest.raises(ConfigError, match=f"history_bytes={history_bytes} is not allowed: {allowed}"):
        EmbeddedCluster(history_bytes=history_bytes)


async def test_recording_can_be_switched(cluster, client):
    cluster.history.recording = False
    await client.ask(m.MetadataRequest())
    cluster.history.recording = True
    await client.ask(m.HeartbeatRequest(group_id="g"))
    assert [e.api for e in cluster.history] == ["Heartbeat"]


async def test_querying_exchanges():
    async with EmbeddedCluster(nodes=2) as cluster:
        async with connect(cluster, 1, client_id="a") as a, connect(cluster, 2, client_id="b") as b:
            cluster.move_coordinator("g", 1)
            await join(a)
            await b.ask(m.MetadataRequest())
            await b.ask(m.HeartbeatRequest(group_id="h"))
        history = cluster.history
        assert [e.api for e in history.of("JoinGroup", "Heartbeat")] == [
            "JoinGroup",
            "JoinGroup",
            "Heartbeat",
        ]
        assert [e.api for e in history.of(node=2)] == ["Metadata", "Heartbeat"]
        assert [e.api for e in history.of(client_id="a")] == ["JoinGroup", "JoinGroup"]
        assert [e.api for e in history.of(group="h")] == ["Heartbeat"]


async def test_querying_by_topic_error_time_and_response():
    async with EmbeddedCluster() as cluster, connect(cluster) as client, connect(cluster) as other:
        for name in "tu":
            cluster.create_topic(name)
        cluster.faults.on("Fetch").error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await client.ask(fetch(cluster, 0, version=12), 12)
        await client.ask(fetch(cluster, 0, topic="u", max_wait_ms=0))
        await asyncio.sleep(5)
        first = await client.ask(fetch(cluster, 0, session_epoch=0, max_wait_ms=0))
        await client.ask(produce(cluster, batch()))
        await client.ask(fetch(cluster, session_id=first.session_id, session_epoch=1))
        other.send(fetch(cluster, 0, topic="u", max_wait_ms=5000))
        await asyncio.sleep(1)
        await client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        history = cluster.history
        refused, of_u, opened, produced, reported, waiting, asked = history
        assert history.of(topic="t") == [
            refused,
            opened,
            produced,
            reported,
        ], "a request in a session matches by its response"
        assert history.of("Fetch", topic="u") == [of_u, waiting]
        assert history.of(error=ErrorCode.NOT_LEADER_OR_FOLLOWER) == [refused]
        assert history.of("Fetch", since=5.0) == [opened, reported, waiting]
        assert history.of("Fetch", answered=False) == [waiting]
        assert history.of(answered=True)[-1] is asked
        assert history.of(group="g") == [asked]
        assert (set(refused.errors), of_u.errors) == ({ErrorCode.NOT_LEADER_OR_FOLLOWER}, [])
        assert (of_u.duration, waiting.duration) == (0.0, None)


async def test_waiting_for_requests(cluster, client):
    cluster.create_topic("t")
    both = asyncio.create_task(cluster.history.wait_for("Heartbeat", count=2, group="g"))
    answered = asyncio.create_task(cluster.history.wait_for("Fetch", answered=True))
    given_up = asyncio.create_task(cluster.history.wait_for("Metadata"))
    await asyncio.sleep(0)
    given_up.cancel()
    await client.ask(m.HeartbeatRequest(group_id="h"))
    await client.ask(m.HeartbeatRequest(group_id="g"))
    await asyncio.sleep(0)
    assert not both.done()
    await client.ask(m.HeartbeatRequest(group_id="g"))
    assert len(await both) == 2
    sent = client.send(fetch(cluster, 0, max_wait_ms=500))
    await asyncio.sleep(0.4)
    assert not answered.done()
    assert (await answered)[0].answered_at == 0.5
    await client.receive(m.FetchRequest(), *sent)
    assert len(await cluster.history.wait_for("Fetch")) == 1  # past exchanges count


async def test_the_story():
    async with EmbeddedCluster() as cluster, connect(cluster, client_id="app") as client:
        await client.ask(m.MetadataRequest(), 7)
        await asyncio.sleep(2)
        await client.ask(m.HeartbeatRequest(group_id="g"), 4)
        cluster.faults.on("Heartbeat").drop()
        client.send(m.HeartbeatRequest(group_id="g"), 4)
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert cluster.history.story().splitlines() == [
            "     0.000  node 1  app  Metadata v7: ok after 0.000 s",
            "     2.000  node 1  app  Heartbeat v4 of g: UNKNOWN_MEMBER_ID after 0.000 s",
            "     2.000  node 1  app  Heartbeat v4 of g: no answer",
        ]
        assert cluster.history.story(1).endswith("no answer")

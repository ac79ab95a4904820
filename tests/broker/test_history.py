"""What the cluster remembers of requests and responses."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.wire import messages as m
from tests.broker.batches import batch
from tests.broker.client import connect
from tests.broker.requests import fetch, join, partitions_of, produce

pytestmark = [pytest.mark.asyncio, pytest.mark.virtual]


async def test_exchanges_tell_who_asked_what_when_and_the_answer():
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


async def test_recording_can_be_switched():
    async with EmbeddedCluster() as cluster, connect(cluster) as client:
        cluster.history.recording = False
        await client.ask(m.MetadataRequest())
        cluster.history.recording = True
        await client.ask(m.HeartbeatRequest(group_id="g"))
        assert [e.api for e in cluster.history] == ["Heartbeat"]


async def test_picking_exchanges():
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

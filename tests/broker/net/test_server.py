"""Connections: frames, the order of responses, and everything that Kafka answers by closing the connection."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncgroup.broker import EmbeddedCluster, handlers
from asyncgroup.error_codes import ErrorCode
from asyncgroup.testing import run_virtual
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode_request
from tests.broker.client import VERSIONS, Disconnected, connect, is_alive
from tests.broker.internals import node_of
from tests.profiles import examples


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_it_serves_on_both_kinds_of_loop(client):
    assert await is_alive(client)


async def test_pipelined_requests_are_answered_in_order(cluster, client):
    cluster.create_topic("t")
    requests = [m.MetadataRequest(), VERSIONS, m.HeartbeatRequest(group_id="g")] * 40
    sent = [(request, *client.send(request)) for request in requests]
    for request, version, correlation_id in sent:
        assert await client.receive(request, version, correlation_id)


async def test_a_parked_request_blocks_the_next_request_of_its_connection(cluster, client):
    cluster.create_topic("t")
    waiting = m.FetchRequest(
        max_wait_ms=5000,
        min_bytes=1,
        topics=[
            m.FetchRequest.FetchTopic(
                topic="t", partitions=[m.FetchRequest.FetchPartition(partition_max_bytes=1000)]
            )
        ],
    )
    first = (waiting, *client.send(waiting, 12))
    second = (VERSIONS, *client.send(VERSIONS))
    await client.receive(*first)
    await client.receive(*second)
    assert [exchange.api for exchange in cluster.history] == ["Fetch", "ApiVersions"]
    assert [exchange.time for exchange in cluster.history] == [0.0, 5.0]


async def test_frames_may_arrive_in_any_pieces(client):
    data = b"".join(encode_request(VERSIONS, 3, 7, "pieces")) * 3
    for i in range(len(data)):
        client.send_bytes(data[i : i + 1])
        await asyncio.sleep(0.001)
    for _ in range(3):
        frame = await client.receive_frame()
        assert decode_response(m.ApiVersionsResponse, 3, frame).api_keys


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client):
    client.send_frame(struct.pack(">hhihx", 18, 99, 41, -1) + b"whatever comes in version 99")
    frame = await client.receive_frame()
    assert frame[:4] == struct.pack(">i", 41)
    answer = decode_response(m.ApiVersionsResponse, 0, frame)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert ranges[18] == (0, 4)
    assert await is_alive(client)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", 68, 0, 1, -1),  # an API that is not served
        struct.pack(">hhih", 3, 14, 1, -1),
        struct.pack(">hhih", 0, 2, 1, -1),  # advertised for old librdkafka versions, but not served
        struct.pack(">hhih", 3, -1, 1, -1),
        b"",
        b"\x00\x03",
        struct.pack(">hhih", 3, 5, 1, 50) + b"short",
        struct.pack(">hhih", 3, 5, 1, -1) + b"\x00",
    ],
    ids=lambda frame: frame[:8].hex() or "empty",
)
async def test_invalid_frames_close_the_connection(frame, caplog):
    async with EmbeddedCluster() as cluster, connect(cluster) as other, connect(cluster) as client:
        with caplog.at_level(logging.WARNING, "asyncgroup.broker"):
            client.send_frame(frame)
            with pytest.raises(Disconnected):
                await client.receive_frame()
        assert "closes the connection" in caplog.text
        assert await is_alive(other)


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
async def test_frames_have_a_size_limit(cluster, size):
    node_of(cluster, 1).listener.max_request_bytes = 1000
    async with connect(cluster) as client:
        client.send_bytes(struct.pack(">i", size) + b"x" * 100)
        assert await client.disconnected() == b""


async def test_responses_before_the_invalid_frame_are_sent(client):
    first = (VERSIONS, *client.send(VERSIONS))
    client.send_frame(b"nonsense")
    assert (await client.receive(*first)).api_keys
    with pytest.raises(Disconnected):
        await client.receive_frame()


async def test_an_exception_in_a_handler_is_answered_with_unknown_server_error(client, monkeypatch, caplog):
    def fail(*_args):
        raise RuntimeError("a bug")

    async def fail_later(*_args):
        raise RuntimeError("a later bug")

    for handle in (fail, fail_later):
        broken = handlers.HANDLERS[12]._replace(handle=handle)
        monkeypatch.setitem(handlers.HANDLERS, 12, broken)
        answer = await client.ask(m.HeartbeatRequest(group_id="g"))
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a bug" in caplog.text
    assert "a later bug" in caplog.text
    assert await is_alive(client)


async def test_the_parked_fetch_of_a_disconnected_client_is_dropped(cluster):
    cluster.create_topic("t")
    async with connect(cluster) as client:
        fetch = m.FetchRequest.FetchTopic(
            topic="t", partitions=[m.FetchRequest.FetchPartition(partition_max_bytes=1000)]
        )
        client.send(m.FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[fetch]), 12)
        await asyncio.sleep(1)
        assert len(node_of(cluster, 1).purgatory) == 1
    await asyncio.sleep(1)
    assert len(node_of(cluster, 1).purgatory) == 0
    assert node_of(cluster, 1).listener.connections == set()


async def test_a_client_that_reads_no_responses_is_not_served_any_more(cluster, client):
    for number in range(50):
        cluster.create_topic(f"topic-{number}", 10)
    request = m.MetadataRequest(topics=None)
    for _ in range(100):
        client.send(request)
    await asyncio.sleep(1)
    served = len(cluster.history)
    assert served < 100
    for _ in range(100):
        await client.receive_frame()
    assert len(cluster.history) == 100


async def test_a_client_that_keeps_sending_while_its_request_waits_is_not_read_any_more(cluster, client):
    held = cluster.faults.on("ApiVersions").hold()
    data = b"".join(encode_request(VERSIONS, 3, 1, "x" * 1000))
    count = 4_000_000 // len(data)
    for _ in range(count):
        client.send_bytes(data)
    await asyncio.sleep(1)
    (connection,) = node_of(cluster, 1).listener.connections
    assert connection.unread < 2_000_000
    held.release()
    for _ in range(count):
        await client.receive_frame()
    assert connection.unread == 0
    assert await is_alive(client)


async def test_a_large_frame(client):
    topics = [m.MetadataRequest.MetadataRequestTopic(name="x" * 200) for _ in range(20_000)]
    answer = await client.ask(m.MetadataRequest(topics=topics))
    assert len(answer.topics) == 1


async def test_a_response_that_cannot_be_encoded_closes_the_connection(client, monkeypatch, caplog):
    def handle(*_args):
        return m.HeartbeatResponse(error_code=1 << 40)

    monkeypatch.setitem(handlers.HANDLERS, 12, handlers.HANDLERS[12]._replace(handle=handle))
    client.send(m.HeartbeatRequest(group_id="g"))
    with pytest.raises(Disconnected):
        await client.receive_frame()
    assert "cannot be encoded in version 4" in caplog.text


def test_every_served_version_can_be_encoded():
    assert len(handlers.HANDLERS) > 50
    for key, handler in handlers.HANDLERS.items():
        known = APIS[key].versions
        assert known.low <= handler.versions.low <= handler.versions.high <= known.high, handler.name
        assert handler.versions == known, handler.name


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.sampled_from(sorted(handlers.HANDLERS)))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_bytes_do_not_affect_other_connections(frames, key):
    """Random bytes, also after a valid header, at worst close their own connection; the node keeps running."""

    async def scenario():
        async with EmbeddedCluster() as cluster, connect(cluster) as other:
            async with connect(cluster) as client:
                for number, frame in enumerate(frames):
                    version = handlers.HANDLERS[key].versions.low + number % 3
                    header = struct.pack(">hhih", key, version, number, -1)
                    client.send_frame(header + frame if number % 2 else frame)
                await asyncio.sleep(1)
            assert await is_alive(other)

    logging.disable(logging.CRITICAL)
    try:
        run_virtual(scenario())
    finally:
        logging.disable(logging.NOTSET)


# --- a node that stops while it accepts -------------------------------------------------------------------------------


@pytest.mark.asyncio(loop_factories=["real", "uvloop"])
async def test_a_connection_accepted_as_the_node_stops_is_closed(recwarn: pytest.WarningsRecorder) -> None:
    """asyncio accepts in two turns of the loop; a server that is closed between them would lose the socket."""
    async with EmbeddedCluster() as cluster:
        node = node_of(cluster)
        listener, accepted = node.listener, asyncio.Event()
        connect = listener._connect

        def stop_and_connect(of: Any) -> asyncio.Protocol:
            halted.append(node.halt(reserve_port=True))
            accepted.set()
            return connect(of)

        halted = list[Any]()
        listener._connect = stop_and_connect
        with socket.create_connection((node.host, node.port), timeout=5) as client:
            await accepted.wait()
            await node.wait_stopped(halted[0])
            client.setblocking(False)
            async with asyncio.timeout(5):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        gc.collect()
        await node.start()
    assert [warning.message for warning in recwarn] == []

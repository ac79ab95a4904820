"""Malicious or broken clients: each affects only its own connection and takes little memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import struct

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asyncgroup.broker import EmbeddedCluster, handlers
from asyncgroup.broker.net.frames import FrameBuffer
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import DecodeError
from asyncgroup.testing import run_virtual
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import encode, encode_request
from asyncgroup.wire.records import BatchBuilder
from tests.broker.client import Client, Disconnected, connect, is_alive
from tests.broker.internals import node_of
from tests.memory_use import MEGABYTE, memory_under
from tests.profiles import examples, thinned
from tests.wire.batches import with_valid_crc
from tests.wire.test_decompression import BOMBS
from tests.wire.test_robustness import HOSTILE, full_message

PADDED = b"".join(encode_request(m.ApiVersionsRequest(), 0, 7, "x" * 300))
SENT_AHEAD = 5_000
"""Requests of more than 1 MiB together."""
SERVED = [
    (key, version) for key, handler in sorted(handlers.HANDLERS.items()) for version in handler.versions
]


# -- frames ----------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.data_too_large])
@given(
    st.lists(st.binary(max_size=30) | st.binary(min_size=5000, max_size=9000), max_size=8),
    st.lists(st.integers(1, 12_000), min_size=1, max_size=30),
)
def test_frames_do_not_depend_on_how_the_stream_is_split(bodies, cuts):
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    buffer, found, position = FrameBuffer(10_000), [], 0
    for turn in range(len(stream)):
        size = cuts[turn % len(cuts)]
        buffer.feed(stream[position : position + size])
        position += size
        if turn % 3:  # the server does not check after each piece
            while (frame := buffer.next_frame()) is not None:
                found.append(frame)
        if position >= len(stream):
            break
    while (frame := buffer.next_frame()) is not None:
        found.append(frame)
    assert found == bodies
    assert buffer.unread == 0
    assert all(type(frame) is bytes for frame in found)


def test_a_frame_received_byte_by_byte_takes_little_more_memory_than_its_size():
    buffer = FrameBuffer(100 * MEGABYTE)
    buffer.feed(struct.pack(">i", 100 * MEGABYTE))
    pieces = [bytes([n]) for n in range(256)]
    with memory_under(300_000):
        for number in range(200_000):
            buffer.feed(pieces[number & 255])
            assert number % 10_000 or buffer.next_frame() is None
    assert buffer.unread == 200_004


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_invalid_frame_sizes(size):
    buffer = FrameBuffer(1000)
    buffer.feed(struct.pack(">i", size))
    with pytest.raises(DecodeError, match=f"a frame of {size} bytes; at most 1000 are allowed"):
        buffer.next_frame()


# -- slow and silent clients ----------------------------------------------------------------------------


async def test_incomplete_frames_take_only_the_memory_of_their_bytes():
    async with EmbeddedCluster(history_limit=0) as cluster, connect(cluster) as other:
        assert await is_alive(other)
        async with contextlib.AsyncExitStack() as clients:
            slow = [await clients.enter_async_context(connect(cluster)) for _ in range(50)]
            with memory_under(2 * MEGABYTE):
                for client in slow:
                    client.send_bytes(struct.pack(">i", 100 * MEGABYTE - 1))
                for _ in range(200):
                    for client in slow:
                        client.send_bytes(b"x")
                    await asyncio.sleep(0.1)
                assert await is_alive(other)
            assert {connection.unread for connection in node_of(cluster, 1).listener.connections} == {0, 204}


async def test_a_client_that_never_reads_takes_little_memory(network):
    network.window = 64 * 1024
    async with EmbeddedCluster(history_limit=0) as cluster, connect(cluster) as other:
        for number in range(100):
            cluster.create_topic(f"topic-{number}", 20)
        size = len(encode(await other.ask(m.MetadataRequest(topics=None)), 13))
        async with connect(cluster) as client:
            with memory_under(5 * MEGABYTE):  # most of it is the decoded response
                assert size * 1000 > 50 * MEGABYTE
                for _ in range(1000):
                    client.send(m.MetadataRequest(topics=None))
                await asyncio.sleep(1)
                assert await is_alive(other)
            client._writer.transport.abort()


async def test_requests_stay_in_the_network_while_one_is_held(network):
    """However much a client sends ahead, the node holds only the size of one read."""
    network.window = 64 * 1024
    async with EmbeddedCluster(history_limit=0) as cluster, connect(cluster) as client:
        held = cluster.faults.on("ApiVersions").hold()
        for _ in range(SENT_AHEAD):
            client.send_bytes(PADDED)
        await asyncio.sleep(1)
        (connection,) = node_of(cluster, 1).listener.connections
        assert connection.unread < 512 * 1024
        held.release()
        for _ in range(SENT_AHEAD):
            await client.receive_frame()
        assert connection.unread == 0


# -- fairness ----------------------------------------------------------------------------


FLOOD = 4_000
"""More requests than may be served during 10 of the normal client."""


async def test_a_flooding_client_does_not_starve_others():
    """Between two requests of a normal client the flooding one is served at most a few turns."""
    async with EmbeddedCluster(history_limit=1_000_000, history_bytes=1 << 30) as cluster:
        async with (
            connect(cluster, client_id="flood") as flood,
            connect(cluster, client_id="modest") as modest,
        ):
            request = b"".join(encode_request(m.ApiVersionsRequest(), 0, 7, "flood"))
            flood.send_bytes(request * FLOOD)
            reading = asyncio.create_task(read_frames(flood, FLOOD))
            for _ in range(10):
                assert await is_alive(modest)
            (connection,) = (c for c in node_of(cluster, 1).listener.connections if c.unread)
            assert 0 < connection.unread < 150_000
            served = [exchange.client_id for exchange in cluster.history]
            turns = [number for number, name in enumerate(served) if name == "modest"]
            assert max(later - earlier for earlier, later in itertools.pairwise(turns)) < 12 * 32
            await reading
            assert sum(exchange.client_id == "flood" for exchange in cluster.history) == FLOOD


async def read_frames(client: Client, count: int) -> None:
    for _ in range(count):
        await client.receive_frame()


@pytest.mark.asyncio(loop_factories=["real", "virtual"])
async def test_many_requests_in_one_write_are_answered_once_each_and_in_order():
    async with EmbeddedCluster(history_limit=0) as cluster, connect(cluster) as client:
        frames = [b"".join(encode_request(m.ApiVersionsRequest(), 0, number, "x")) for number in range(5000)]
        client.send_bytes(b"".join(frames))
        for number in range(5000):
            assert (await client.receive_frame())[:4] == struct.pack(">i", number)


# -- well-formed requests with odd values ----------------------------------------------------------------------------


async def ask_anything(frames: list[bytes]) -> None:
    """Send each frame on its own connection: it gets a response, is parked, or the connection is closed."""
    async with EmbeddedCluster(nodes=2, auto_create_topics=True, history_limit=0) as cluster:
        cluster.create_topic("name", 4)
        async with connect(cluster) as other:
            for frame in frames:
                async with connect(cluster) as client:
                    client.send_frame(frame)
                    with contextlib.suppress(Disconnected, TimeoutError):
                        async with asyncio.timeout(700):
                            await client.receive_frame()
            assert await is_alive(other)


def header(key: int, version: int) -> bytes:
    tags = b"\x00" if version >= APIS[key].flexible_from else b""
    return struct.pack(">hhih", key, version, 1, 2) + b"me" + tags


@pytest.mark.parametrize("key", sorted(handlers.HANDLERS), ids=lambda key: APIS[key].name)
def test_odd_values_do_not_cause_server_errors(key, caplog):
    """In the highest and lowest version: with odd values in all fields, and with a hostile value in each field."""
    versions = handlers.HANDLERS[key].versions
    frames = []
    for version in thinned(dict.fromkeys([versions.high, versions.low])):
        body = encode(full_message(APIS[key].request.NAME, version), version)
        frames.append(header(key, version) + body)
        for place in range(len(body)):
            frames += [
                header(key, version) + body[:place] + hostile + body[place + len(hostile) :]
                for hostile in HOSTILE[:3]
            ]
    with caplog.at_level(logging.ERROR, "asyncgroup.broker"):
        run_virtual(ask_anything(frames), max_virtual_time=None)
    assert [record.getMessage()[:300] for record in caplog.records] == []


@given(data=st.data())
@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_requests_do_not_cause_server_errors(data):
    frames = []
    for _ in range(data.draw(st.integers(1, 6))):
        key, version = data.draw(st.sampled_from(SERVED))
        body = encode(full_message(APIS[key].request.NAME, version), version)
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(body)))
            inserted = data.draw(st.sampled_from(HOSTILE) | st.binary(max_size=6))
            body = body[:at] + inserted + body[at + data.draw(st.integers(0, 6)) :]
        frames.append(header(key, version) + body)
    complaints: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: complaints.append(record.getMessage()[:300])  # type: ignore[method-assign]
    log = logging.getLogger("asyncgroup.broker")
    log.addHandler(handler)
    try:
        run_virtual(ask_anything(frames), max_virtual_time=None)
    finally:
        log.removeHandler(handler)
    assert complaints == []


# -- decompression bombs ----------------------------------------------------------------------------


@pytest.mark.parametrize("bomb", ["snappy with a false size", "zstd of RLE blocks", "lz4"])
async def test_a_decompression_bomb_is_refused(bomb):
    """A batch of 100 kB that would decompress to gigabytes; the broker decompresses only up to a limit."""
    builder = BatchBuilder(bomb.split()[0])
    builder.append(0, b"k", b"v")
    content = BOMBS[bomb]()
    content = content * (2 if bomb == "lz4" else 1)
    head = bytearray(builder.build()[:61])
    struct.pack_into(">i", head, 8, 61 - 12 + len(content))
    batch = with_valid_crc(bytes(head) + content)
    part = m.ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    async with (
        EmbeddedCluster(history_limit=0) as cluster,
        connect(cluster) as client,
        connect(cluster) as other,
    ):
        cluster.create_topic("t", 1)
        with memory_under(130 * MEGABYTE):
            answer = await client.ask(m.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
        (result,) = answer.responses[0].partition_responses
        # Kafka's error for records that cannot be decompressed
        assert result.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert cluster.partition("t", 0).log_end_offset == 0
        assert await is_alive(other)

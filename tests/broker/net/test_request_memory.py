"""`queued_max_request_bytes` limits the memory of requests, and `connections_max_idle` closes idle connections."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import ConfigError
from tests.broker.batches import batch
from tests.broker.client import Client, Disconnected, connect, is_alive
from tests.broker.internals import node_of
from tests.broker.requests import fetch, now, put

MB = 1 << 20


def send_half(client: Client, size: int = 1 * MB) -> None:
    """Send the first `size` bytes of a request that has twice as many."""
    client.send_bytes(struct.pack(">i", 2 * size) + bytes(size))


async def is_closed(client: Client) -> bool:
    """Return whether the broker closes the connection within 0.1 s."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.disconnected()
        return True
    return False


async def test_the_memory_of_incomplete_requests_is_limited():
    async with (
        EmbeddedCluster(queued_max_request_bytes=10 * MB) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        memory = node_of(cluster, 1).listener.request_memory
        clients = [await stack.enter_async_context(connect(cluster)) for _ in range(40)]
        for client in clients:
            send_half(client)
            await asyncio.sleep(0.01)
            assert memory.held <= 10 * MB
        await asyncio.sleep(60)
        assert memory.held <= 10 * MB
        other = await stack.enter_async_context(connect(cluster))
        began = now()
        assert await is_alive(other)
        assert now() == began
    assert memory.held == 0


async def test_the_connections_without_data_for_the_longest_time_are_closed(caplog):
    size = 40_000
    async with (
        EmbeddedCluster(queued_max_request_bytes=10 * size) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(connect(cluster)) for _ in range(14)]
        for client in clients[:10]:
            send_half(client, size - 4)
            await asyncio.sleep(0.01)
        clients[0].send_bytes(b"more")
        await asyncio.sleep(0.01)
        for client in clients[10:]:
            send_half(client, size - 4)
            await asyncio.sleep(0.01)
        closed = [number for number, client in enumerate(clients) if await is_closed(client)]
        assert closed == [1, 2, 3, 4, 5]
        assert "unserved requests take more than 400000 bytes" in caplog.text
    caplog.clear()


async def test_a_request_larger_than_the_limit_closes_its_own_connection(caplog):
    async with EmbeddedCluster(queued_max_request_bytes=1 * MB) as cluster:
        async with connect(cluster) as client, connect(cluster) as other:
            send_half(client, 2 * MB)
            assert await is_closed(client)
            assert await is_alive(other)
    caplog.clear()


async def test_large_concurrent_requests_are_all_served():
    """Memory suffices for two: the others are read as memory is released."""
    async with (
        EmbeddedCluster(queued_max_request_bytes=8 * MB) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        cluster.create_topic("t", configs={"max.message.bytes": str(4 * MB)})
        memory, data = node_of(cluster, 1).listener.request_memory, batch(bytes(3 * MB))

        async def write(client: Client) -> int:
            (result,) = await put(client, cluster, data)
            return result.error_code

        clients = [await stack.enter_async_context(connect(cluster)) for _ in range(12)]
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, memory.held)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        assert await asyncio.gather(*map(write, clients)) == [0] * 12
        watching.cancel()
        assert 3 * MB < peak <= 8 * MB
        assert memory.held == 0


async def test_stalled_requests_do_not_block_others():
    async with (
        EmbeddedCluster(queued_max_request_bytes=8 * MB) as cluster,
        contextlib.AsyncExitStack() as stack,
    ):
        cluster.create_topic("t", configs={"max.message.bytes": str(4 * MB)})
        stalled = [await stack.enter_async_context(connect(cluster)) for _ in range(5)]
        for client in stalled:
            send_half(client)
            await asyncio.sleep(0.01)
        client = await stack.enter_async_context(connect(cluster))
        began = now()
        (result,) = await put(client, cluster, batch(bytes(2 * MB)))
        assert result.error_code == 0
        assert now() - began <= 15
        assert (await put(client, cluster, batch(b"small")))[0].error_code == 0
        assert not any([await is_closed(each) for each in stalled])


# -- idle connections ------------------------------------------------------------------------------------------


async def test_idle_connections_are_closed_after_ten_minutes(cluster):
    async with connect(cluster) as idle, connect(cluster) as unfinished, connect(cluster) as busy:
        assert await is_alive(idle)
        send_half(unfinished)
        for _ in range(5):
            await asyncio.sleep(119)
            assert await is_alive(busy)
        assert len(node_of(cluster, 1).listener.connections) == 3
        await asyncio.sleep(6)
        assert await is_closed(idle)
        assert await is_closed(unfinished)
        assert await is_alive(busy)
        assert node_of(cluster, 1).listener.request_memory.held == 0


async def test_the_idle_timeout_can_be_set():
    async with EmbeddedCluster(connections_max_idle=5.0) as cluster, connect(cluster) as client:
        for _ in range(4):
            await asyncio.sleep(4)
            assert await is_alive(client)
        await asyncio.sleep(5.1)
        assert await is_closed(client)
    async with EmbeddedCluster(connections_max_idle=None) as cluster, connect(cluster) as client:
        await asyncio.sleep(3600)
        assert await is_alive(client)


async def test_sent_responses_count_as_activity_but_parked_requests_do_not():
    async with EmbeddedCluster(connections_max_idle=5.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t")
        request = fetch(cluster, 0, max_wait_ms=4000)
        sent = client.send(request)
        await client.receive(request, *sent)
        await asyncio.sleep(4)
        assert await is_alive(client)
        client.send(fetch(cluster, 0, max_wait_ms=10_000))
        with pytest.raises(Disconnected):
            await client.receive_frame()
        assert now() == 13.0


async def test_a_client_that_reads_a_large_response_slowly_is_not_idle():
    async with EmbeddedCluster(connections_max_idle=5.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 6)
        for index in range(6):
            cluster.produce("t", bytes(1_000_000), partition=index)
        client.send(fetch(cluster, *range(6), max_bytes=7 * MB))
        received = 0
        while received < 6_000_000:
            data = await client.receive_bytes(100_000)
            assert data, f"connection closed after {received} bytes and {now()} s"
            received += len(data)
            await asyncio.sleep(1)
        assert now() >= 60


async def test_a_client_that_stops_reading_is_idle():
    async with EmbeddedCluster(connections_max_idle=5.0) as cluster, connect(cluster) as client:
        cluster.create_topic("t", 6)
        for index in range(6):
            cluster.produce("t", bytes(1_000_000), partition=index)
        client.send(fetch(cluster, *range(6), max_bytes=7 * MB))
        await client.receive_bytes(1)
        await asyncio.sleep(10.1)
        assert not node_of(cluster, 1).listener.connections


@pytest.mark.parametrize(
    "option",
    [
        {"connections_max_idle": 0},
        {"connections_max_idle": -1},
        {"connections_max_idle": float("nan")},
        {"queued_max_request_bytes": 0},
        {"retention_check_interval": 0},
        {"retention_check_interval": float("nan")},
        {"offsets_retention_check_interval": 0.0},
    ],
)
async def test_invalid_values_are_rejected(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        EmbeddedCluster(**option)

"""Cluster on a standard event loop with real sockets, for what the in-memory network cannot test."""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.cluster.connecting import connect
from asyncgroup.cluster.connection import Address
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ConnectError, ConnectionLost
from asyncgroup.hooks import Hooks
from asyncgroup.wire import messages as m


async def test_requests_over_real_sockets() -> None:
    async with EmbeddedCluster(nodes=3) as broker:
        broker.create_topic("t", 6)
        async with Cluster(broker.bootstrap_servers) as cluster:
            assert await cluster.partitions("t") == list(range(6))
            requests = (cluster.request(node, m.ListGroupsRequest()) for node in (1, 2, 3) for _ in range(50))
            assert len(await asyncio.gather(*requests)) == 150
            await broker.stop_node(2)
            with pytest.raises(ConnectError, match="Connection refused"):
                await cluster._inner.network.request(2, m.ListGroupsRequest(), lane="new")


async def test_a_large_response_over_real_sockets() -> None:
    """A frame of several megabytes is received into its own buffer."""
    async with EmbeddedCluster(nodes=1) as broker:
        for number in range(40):
            broker.create_topic(f"{number:03d}" + "x" * 200, 500)
        async with Cluster(broker.bootstrap_servers) as cluster:
            topics = await cluster.all_topics()
            assert sum(len(topic.partitions) for topic in topics.values()) == 20_000


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "two..dots"])
async def test_an_invalid_host_name(host: str) -> None:
    with pytest.raises(ConnectError, match="host name cannot be resolved"):
        await connect(Address(1, host, 9092), "control", ClientConfig(), Hooks())


async def test_an_invalid_port() -> None:
    """A broker may advertise any port; a resolver would truncate it to 16 bits, which is another port."""
    with pytest.raises(ConnectError, match="port 70000 is not allowed: 1 to 65535"):
        await connect(Address(1, "127.0.0.1", 70_000), "control", ClientConfig(), Hooks())


async def test_a_port_without_a_listener() -> None:
    async with EmbeddedCluster(nodes=1) as broker:
        port = broker.nodes[1].port
    with pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}: Connection refused"):
        await connect(Address(-1, "127.0.0.1", port), "control", ClientConfig(), Hooks())


async def test_nothing_is_written_to_a_transport_that_is_closing() -> None:
    """Regression test: after the broker's EOF the transport was written to, in the turn before the connection is lost."""
    async with EmbeddedCluster(nodes=1) as broker, Cluster(broker.bootstrap_servers) as cluster:
        connection = await cluster._inner.network.connection(1)
        assert connection.is_ready_to_send
        connection.protocol.transport.close()  # as asyncio does at EOF
        assert not connection.is_ready_to_send
        with pytest.raises(ConnectionLost):
            await connection.request(m.ListGroupsRequest(), 0, 5.0)
        assert (await cluster.request(1, m.ListGroupsRequest())).error_code == 0

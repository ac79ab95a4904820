"""Bootstrap servers from a function, which is asked again when no known broker answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncgroup import Consumer, ConsumerGroup, OffsetManager, Producer, ProducerConfig
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.cluster import Cluster
from asyncgroup.config import ClientConfig
from asyncgroup.errors import ErrorCode, NoBrokersError
from tests.group.internals import make_second_client

pytestmark = pytest.mark.virtual

TOPIC = "orders"


class Provider:
    """Returns `servers`, as a list, and counts its calls."""

    def __init__(self, servers: str = "") -> None:
        self.servers = servers
        self.calls = 0

    def __call__(self) -> list[str]:
        self.calls += 1
        return self.servers.split(",")

    async def later(self) -> str:
        self.calls += 1
        await asyncio.sleep(0.1)
        return self.servers


@pytest.mark.parametrize("name", ["__call__", "later"])
async def test_it_is_asked_once_while_brokers_answer(name: str) -> None:
    async with EmbeddedCluster(nodes=2, seed=1) as broker:
        provider = Provider(broker.bootstrap_servers)
        async with Cluster(getattr(provider, name)) as cluster:
            assert len(cluster.view.brokers) == 2
            for _ in range(3):
                await cluster.refresh()
            assert provider.calls == 1
            assert "open, 2 brokers" in repr(cluster)


async def test_a_producer_follows_to_another_cluster() -> None:
    provider = Provider()
    async with EmbeddedCluster(nodes=1, seed=1, host="10.1.0.1") as old:
        old.create_topic(TOPIC, 1)
        provider.servers = old.bootstrap_servers
        producer = Producer(provider, ProducerConfig(linger=0.0))
        await producer.__aenter__()
        await producer.send(TOPIC, b"old")
    async with EmbeddedCluster(nodes=1, seed=2, host="10.1.0.2") as new:
        new.create_topic(TOPIC, 1)
        late = producer.send_nowait(TOPIC, b"while no broker answers")
        await asyncio.sleep(5)
        assert not late.done()
        assert provider.calls > 1
        provider.servers = new.bootstrap_servers
        await asyncio.wait([late])
        assert (await producer.send(TOPIC, b"new")).offset == 0
        # it was accepted for the topic of the old cluster, which has another id
        assert "UNKNOWN_TOPIC_ID" in str(late.exception())
        await producer.aclose()


@pytest.mark.parametrize(
    "make",
    [
        lambda provider: Consumer(provider),
        lambda provider: ConsumerGroup(provider, "group"),
        lambda provider: OffsetManager(provider, "group"),
        lambda provider: Producer(provider),
    ],
    ids=["consumer", "group", "offsets", "producer"],
)
async def test_every_client_accepts_a_function(make: Callable[[Provider], Any]) -> None:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        provider = Provider(broker.bootstrap_servers)
        async with make(provider):
            pass
        assert provider.calls == 1


async def test_the_client_of_the_heartbeat_thread_asks_it_when_the_known_brokers_are_gone() -> None:
    """While the event loop was blocked the cluster may have moved. Known brokers are asked first, and in turn with it."""
    provider = Provider()
    async with EmbeddedCluster(nodes=1, seed=1, host="10.1.0.1") as old:
        provider.servers = old.bootstrap_servers
        group = ConsumerGroup(provider, "group")
        await group.__aenter__()
        make_client = make_second_client(group)
        async with make_client() as second:
            assert (provider.calls, len(second.view.brokers)) == (1, 1)
    make_client = make_second_client(group)
    async with EmbeddedCluster(nodes=1, seed=2, host="10.1.0.2") as new:
        provider.servers = new.bootstrap_servers
        for _ in range(2):
            with pytest.raises(NoBrokersError, match=r"10\.1\.0\.1"):
                async with make_client():
                    pass
            async with make_client() as second:
                assert second.view.brokers[1].host == "10.1.0.2"
        assert provider.calls == 3
        await group.aclose()


async def test_a_broker_that_asks_for_a_rebootstrap() -> None:
    """KIP-1102."""
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        provider = Provider(broker.bootstrap_servers)
        async with Cluster(provider) as cluster:
            broker.faults.on("Metadata").error(ErrorCode.REBOOTSTRAP_REQUIRED)
            await cluster.refresh()
            assert provider.calls == 2


async def test_a_provider_that_fails_is_asked_again() -> None:
    answers: list[Any] = [ValueError("no servers yet"), "not a server", [], None]

    def provider() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    for message in (
        r"no servers yet",
        r"bootstrap_servers='not a server'",
        r"bootstrap_servers=\[\]",
        "=None",
    ):
        with pytest.raises(NoBrokersError, match=f"the bootstrap provider failed: .*{message}"):
            async with Cluster(provider):
                pass


async def test_a_provider_that_hangs() -> None:
    async def provider() -> str:
        await asyncio.sleep(1e6)
        return ""

    with pytest.raises(NoBrokersError, match="no result within connect_timeout=3 s"):
        async with Cluster(provider, ClientConfig(connect_timeout=3.0)):
            pass

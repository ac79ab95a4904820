"""The admin API of the embedded Pulsar, by the client that tests use for a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.apache_pulsar import PulsarAdmin, PulsarAdminError
from tests.pulsar_broker.internals import runtime_of

pytestmark = pytest.mark.real


@asynccontextmanager
async def embedded() -> AsyncIterator[tuple[EmbeddedPulsar, PulsarAdmin, PulsarClient]]:
    async with EmbeddedPulsar(admin=True) as pulsar, PulsarClient(pulsar.service_url) as client:
        yield pulsar, PulsarAdmin(pulsar.admin_url), client


async def refused(status: int, *arguments: object, admin: PulsarAdmin, **query: object) -> str:
    with pytest.raises(PulsarAdminError) as raised:
        await admin.request(*arguments, **query)  # type: ignore[arg-type]
    assert raised.value.status == status
    return str(raised.value)


async def test_topics_and_partitions() -> None:
    async with embedded() as (_, admin, _client):
        await admin.create_topic("single")
        await admin.create_partitioned_topic("many", 2)
        assert [await admin.partitions(name) for name in ("single", "many")] == [0, 2]
        await admin.update_partitions("many", 3)
        assert await admin.topics() == [
            *(f"persistent://public/default/many-partition-{number}" for number in range(3)),
            "persistent://public/default/single",
        ]
        await admin.delete_topic("many")
        assert len(await admin.topics()) == 1
        await admin.create_namespace("public/other")
        await admin.create_topic("public/other/t")
        assert await admin.topics("public/other") == ["persistent://public/other/t"]


async def test_statistics_and_subscriptions() -> None:
    async with embedded() as (_, admin, client):
        await admin.create_partitioned_topic("t", 2)
        await admin.create_subscription("t", "early", "earliest")
        config = PulsarConsumerConfig(initial_position="earliest", receiver_queue_size=10, consumer_name="c")
        async with (
            client.producer("t") as producer,
            client.subscribe("t", "s", type="shared", config=config) as consumer,
        ):
            for number in range(4):
                await producer.send(b"%d" % number, key=f"k{number}")
            found = await admin.partitioned_stats("t")
            assert found["msgInCounter"] == 4
            assert found["subscriptions"]["early"]["msgBacklog"] == 4
            assert await admin.subscriptions("t") == ["early", "s"]
            for _ in range(4):
                consumer.ack(await consumer.receive())
            await consumer.flush()
            stats = await admin.stats("t-partition-0")
            assert stats["subscriptions"]["s"]["msgBacklog"] == 0
            assert stats["subscriptions"]["s"]["type"] == "Shared"
            [one] = stats["subscriptions"]["s"]["consumers"]
            assert (one["consumerName"], one["unackedMessages"]) == ("c", 0)
            internal = await admin.internal_stats("t-partition-0")
            last = internal["lastConfirmedEntry"]
            assert internal["cursors"]["s"]["markDeletePosition"] == last
            assert internal["cursors"]["early"]["markDeletePosition"].endswith(":-1")
        await admin.delete_subscription("t", "early")
        assert await admin.subscriptions("t") == ["s"]


async def test_unload_terminate_and_deduplication() -> None:
    async with embedded() as (pulsar, admin, client), client.producer("t") as producer:
        first = await producer.send(b"1")
        await admin.unload("t")
        second = await producer.send(b"2")
        assert second.ledger_id > first.ledger_id
        await admin.unload_namespace()
        third = await producer.send(b"3")
        assert await admin.terminate("t") == third[:2]
        await admin.set_policy("public/default", "deduplication", True)
        assert runtime_of(pulsar).nodes[1].deduplicates


async def test_refusals() -> None:
    async with embedded() as (_, admin, _client):
        await admin.create_topic("t")
        path = "persistent/public/default/t"
        assert "already exists" in await refused(409, "PUT", path, admin=admin)
        assert "not found" in await refused(404, "DELETE", "persistent/public/default/other", admin=admin)
        assert "Namespace not found" in await refused(404, "PUT", "persistent/public/other/t", admin=admin)
        await refused(409, "PUT", "namespaces/public/default", admin=admin)
        await refused(406, "PUT", "persistent/public/default/p/partitions", 0, admin=admin)
        await refused(412, "POST", f"{path}/compaction", admin=admin)
        await refused(412, "POST", "namespaces/public/default/messageTTL", 5, admin=admin)
        await refused(404, "GET", "clusters", admin=admin)
        await refused(404, "DELETE", f"{path}/subscription/none", admin=admin)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PUT /admin/v2/x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{x",
    ],
)
async def test_requests_that_are_none(data: bytes) -> None:
    async with embedded() as (pulsar, _, _client):
        host, port = pulsar.admin_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 4")
        writer.close()
        await writer.wait_closed()


async def test_a_connection_that_is_open_at_the_end() -> None:
    async with embedded() as (pulsar, _, _client):
        host, port = pulsar.admin_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /admin")
        await writer.drain()
        await asyncio.sleep(0.05)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_without_an_admin_api() -> None:
    async with EmbeddedPulsar() as pulsar:
        with pytest.raises(UsageError, match=r"EmbeddedPulsar\(admin=True\)"):
            _ = pulsar.admin_url

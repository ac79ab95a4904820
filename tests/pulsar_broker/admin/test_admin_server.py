"""The admin API of the embedded Pulsar, by the client that tests use for a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncgroup.errors import UsageError
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.consumer.config import PulsarConsumerConfig
from asyncgroup.pulsar.producer.config import PulsarProducerConfig
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
        assert runtime_of(pulsar).topic("t").deduplicates


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
        await refused(412, "POST", "namespaces/public/default/dispatchRate", 5, admin=admin)
        await refused(404, "GET", "functions", admin=admin)
        await refused(404, "DELETE", f"{path}/subscription/none", admin=admin)


async def test_namespaces_and_tenants() -> None:
    async with embedded() as (pulsar, admin, _client):
        await admin.create_namespace("public/other")
        await admin.create_topic("public/other/t")
        await admin.create_partitioned_topic("public/other/p", 2)
        pulsar.create_topic("non-persistent://public/other/n")
        names = [f"persistent://public/other/{name}" for name in ("p-partition-0", "p-partition-1", "t")]
        assert await admin.request("GET", "namespaces/public/other/topics") == names
        assert await admin.request("GET", "persistent/public/other") == names
        assert await admin.request("GET", "persistent/public/other/partitioned") == [
            "persistent://public/other/p"
        ]
        passing = ["non-persistent://public/other/n"]
        assert await admin.request("GET", "namespaces/public/other/topics", mode="NON_PERSISTENT") == passing
        assert await admin.request("GET", "non-persistent/public/other") == passing
        assert len(await admin.request("GET", "namespaces/public/other/topics", mode="ALL")) == 4
        assert await admin.request("GET", "namespaces/public") == ["public/default", "public/other"]
        assert await admin.request("GET", "tenants") == ["public", "pulsar"]
        assert await admin.request("GET", "clusters") == ["standalone"]
        assert await admin.request("GET", "brokers/health") == "ok"
        await admin.request("DELETE", "namespaces/public/other")
        await refused(404, "GET", "namespaces/public/other", admin=admin)
        await refused(404, "GET", "persistent/public/other", admin=admin)


POLICIES = [
    ("messageTTL", 5, 5, None),
    (
        "retention",
        {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1},
        {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1},
        None,
    ),
    ("deduplication", True, True, None),
    ("publishRate", {"publishThrottlingRateInMsg": 3}, {"publishThrottlingRateInMsg": 3.0}, None),
    ("schemaCompatibilityStrategy", "BACKWARD", "BACKWARD", "UNDEFINED"),
    ("schemaValidationEnforced", True, True, False),
]


@pytest.mark.parametrize("place", ["namespaces/public/default", "persistent/public/default/t"])
async def test_policies(place: str) -> None:
    async with embedded() as (_, admin, _client):
        await admin.create_topic("t")
        for name, given, shown, removed in POLICIES:
            await admin.request("POST", f"{place}/{name}", given)
            assert await admin.request("GET", f"{place}/{name}") == shown
            await admin.request("DELETE", f"{place}/{name}")
            assert await admin.request("GET", f"{place}/{name}") == removed
        quota = {"limit": "1024", "policy": "producer_exception"}
        await admin.request("POST", f"{place}/backlogQuota", quota)
        await admin.request("POST", f"{place}/backlogQuota", quota, backlogQuotaType="message_age")
        shown = await admin.request("GET", f"{place}/backlogQuotaMap")
        assert shown["destination_storage"] == {
            "limit": 1024,
            "limitSize": 1024,
            "limitTime": -1,
            "policy": "producer_exception",
        }
        await admin.request("DELETE", f"{place}/backlogQuota")
        assert list(await admin.request("GET", f"{place}/backlogQuotaMap")) == ["message_age"]
        await refused(400, "POST", f"{place}/backlogQuota", {"policy": "x"}, admin=admin)
        await refused(400, "POST", f"{place}/backlogQuota", quota, admin=admin, backlogQuotaType="x")
        await refused(400, "PUT", f"{place}/schemaCompatibilityStrategy", "x", admin=admin)
        await refused(400, "POST", f"{place}/deduplication", "x", admin=admin)
        await refused(400, "POST", f"{place}/retention", {"retentionTimeInMinutes": "x"}, admin=admin)
        for limits in ([1, 0], [0, 1], [1, -2], [-2, 1]):
            retention = dict(zip(("retentionTimeInMinutes", "retentionSizeInMB"), limits, strict=True))
            await refused(400, "POST", f"{place}/retention", retention, admin=admin)
        await refused(400, "POST", f"{place}/retention", {"retentionTimeInMinutes": 1}, admin=admin)


async def test_policies_of_a_topic_with_partitions_are_those_of_all_partitions() -> None:
    async with embedded() as (pulsar, admin, _client):
        await admin.create_partitioned_topic("many", 2)
        path = "persistent/public/default/many"
        await admin.request("POST", f"{path}/deduplication", True)
        assert await admin.request("GET", f"{path}/deduplication") is True
        assert all(part.deduplicates for part in runtime_of(pulsar).namespaces.topics.values())


async def test_a_request_without_a_credential_is_refused() -> None:
    async with EmbeddedPulsar(admin=True, topics="t", tokens={"secret": "ann"}) as pulsar:
        for token in (None, "wrong"):
            admin = PulsarAdmin(pulsar.admin_url, token)
            assert "Authentication required" in await refused(401, "GET", "clusters", admin=admin)
            await refused(401, "DELETE", "persistent/public/default/t", admin=admin)
        assert pulsar.topics == ["persistent://public/default/t"]
        admin = PulsarAdmin(pulsar.admin_url, "secret")
        assert await admin.topics() == ["persistent://public/default/t"]
        pulsar.expire_token("secret")
        await refused(401, "GET", "clusters", admin=admin)


async def test_a_rate_of_messages() -> None:
    async with embedded() as (_, admin, client), client.producer("t") as producer:
        await producer.send(b"0")
        rate = {"publishThrottlingRateInMsg": 20}
        await admin.request("POST", "persistent/public/default/t/publishRate", rate)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(30):
            await producer.send(b"%d" % number)
        assert loop.time() - begin > 0.4
        await admin.request("DELETE", "persistent/public/default/t/publishRate")
        for number in range(30):
            await producer.send(b"%d" % number)
        assert loop.time() - begin < 10


async def test_schemas() -> None:
    async with embedded() as (_, admin, _client):
        path = "schemas/public/default/t"
        await refused(404, "GET", f"{path}/schema", admin=admin)
        text = {"type": "STRING", "schema": "", "properties": {"a": "b"}}
        assert await admin.request("POST", f"{path}/schema", text) == {"version": {"version": 0}}
        assert await admin.request("POST", f"{path}/version", text) == {"version": 0}
        for place in ("schema", "schema/0"):
            found = await admin.request("GET", f"{path}/{place}")
            assert (found["version"], found["type"], found["properties"]) == (0, "STRING", {"a": "b"})
        await refused(404, "GET", f"{path}/schema/1", admin=admin)
        number = {"type": "INT8", "schema": ""}
        assert (await admin.request("POST", f"{path}/compatibility", text))["compatibility"]
        assert "exists schema type STRING" in await refused(
            500, "POST", f"{path}/compatibility", number, admin=admin
        )
        await refused(409, "POST", f"{path}/schema", number, admin=admin)
        assert await admin.request("POST", f"{path}/version", number) == {"version": -1}
        await refused(422, "POST", f"{path}/schema", {"type": "x"}, admin=admin)
        assert len((await admin.request("GET", f"{path}/schemas"))["getSchemaResponses"]) == 1
        assert await admin.request("DELETE", f"{path}/schema") == {"version": 1}
        await refused(404, "GET", f"{path}/schema", admin=admin)
        await refused(404, "GET", f"{path}/schema/0", admin=admin)
        await refused(412, "PUT", f"{path}/schema", admin=admin)


async def test_what_is_done_to_a_subscription() -> None:
    async with embedded() as (pulsar, admin, client), client.producer("t") as producer:
        await admin.create_subscription("t", "s", "earliest")
        ids = [await producer.send(b"%d" % number) for number in range(4)]
        path = "persistent/public/default/t/subscription/s"

        async def backlog() -> int:
            stats = await admin.stats("t")
            return int(stats["subscriptions"]["s"]["msgBacklog"])

        await admin.request("POST", f"{path}/skip/1")
        assert await backlog() == 3
        await admin.request("POST", f"{path}/skip_all")
        assert await backlog() == 0
        last = {"ledgerId": ids[2].ledger_id, "entryId": ids[2].entry_id}
        await admin.request("POST", f"{path}/resetcursor", last)
        assert await backlog() == 2
        await admin.request("POST", f"{path}/resetcursor/0")
        assert await backlog() == 4
        await admin.request("POST", f"{path}/expireMessages/3600")
        assert await backlog() == 4
        await asyncio.sleep(0.01)
        await admin.request("POST", f"{path}/expireMessages/0")
        assert await backlog() == 0
        await refused(404, "GET", f"{path}/position/1", admin=admin)
        await refused(405, "POST", f"{path}/x", admin=admin)
        assert await admin.request("GET", "persistent/public/default/t/lastMessageId") == {
            "ledgerId": ids[3].ledger_id,
            "entryId": ids[3].entry_id,
        }
        assert (await admin.request("GET", "persistent/public/default/t/compaction"))["status"] == "NOT_RUN"
        await admin.request("PUT", "persistent/public/default/t/compaction")
        assert (await admin.request("GET", "persistent/public/default/t/compaction"))["status"] == "SUCCESS"
        assert pulsar.history.of("Send") != []


async def test_open_transactions() -> None:
    async with embedded() as (pulsar, _, _client):
        coordinator = runtime_of(pulsar).coordinators.coordinator(0)
        coordinator.start()
        _, number = coordinator.begin(60_000)
        meta = coordinator.find(number)
        meta.topics["t"] = None
        meta.subscriptions["u", "s"] = None
        path = "/admin/v3/transactions"
        _, body = await get(pulsar.admin_url, f"{path}/transactionMetadata/0/{number}")
        shown = json.loads(body)
        assert (shown["status"], shown["timeoutAt"], shown["txnId"]) == ("OPEN", 60_000, f"(0,{number})")
        assert (shown["producedPartitions"], shown["ackedPartitions"]) == ({"t": {}}, {"u": {"s": {}}})
        _, body = await get(pulsar.admin_url, f"{path}/coordinators")
        assert json.loads(body) == [{"id": 0}]
        for wrong in ("transactionMetadata/0/77", "transactionMetadata/5/0", "x"):
            await get(pulsar.admin_url, f"{path}/{wrong}", 412 if wrong == "x" else 404)


async def get(url: str, path: str, status: int = 200) -> tuple[dict[str, str], bytes]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 %d" % status), head
    return dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:]), body


async def test_a_message_and_the_broker_of_a_topic() -> None:
    async with embedded() as (pulsar, _, client):
        config = PulsarProducerConfig(batching=False, compression="zstd")
        async with client.producer("t", config) as producer:
            sent = await producer.send(b"value" * 2000, properties={"a": "b"}, event_time=1000)
        topic = "/admin/v2/persistent/public/default/t"
        headers, body = await get(pulsar.admin_url, f"{topic}/ledger/{sent.ledger_id}/entry/{sent.entry_id}")
        assert body == b"value" * 2000
        assert headers["X-Pulsar-Message-ID"] == f"{sent.ledger_id}:{sent.entry_id}"
        assert headers["X-Pulsar-PROPERTY"] == '{"a": "b"}'
        assert headers["X-Pulsar-event-time"].startswith("1970-01-01T00:00:01.000")
        _, body = await get(pulsar.admin_url, "/lookup/v2/topic/persistent/public/default/t")
        assert json.loads(body)["brokerUrl"] == pulsar.service_url


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

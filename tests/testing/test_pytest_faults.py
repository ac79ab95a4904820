"""Every kind of fault with real clients: our producer in virtual time, librdkafka and aiokafka on sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import RequestTimedOutError
from confluent_kafka import Producer as Confluent

from asyncgroup.broker import EmbeddedCluster, Exchange, Fault
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.error_codes import ErrorCode
from asyncgroup.group import Claim, ConsumerGroup, Session
from asyncgroup.producer import Producer
from asyncgroup.testing import KafkaServer
from asyncgroup.wire import messages as m

TOPIC = "orders"


def not_leader(response: m.ProduceResponse) -> None:
    """Change the response only: the records have been appended to the log."""
    response.responses[0].partition_responses[0].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


KINDS: dict[str, tuple[Callable[[Fault], object], int]] = {
    "error": (lambda fault: fault.error(ErrorCode.NOT_LEADER_OR_FOLLOWER), 1),
    "delay": (lambda fault: fault.delay(0.2), 1),
    "drop": (lambda fault: fault.drop(), 2),
    "disconnect before": (lambda fault: fault.disconnect("before"), 1),
    "disconnect after": (lambda fault: fault.disconnect("after"), 2),
    "disconnect mid-frame": (lambda fault: fault.disconnect("mid-frame"), 2),
    "throttle": (lambda fault: fault.throttle(200), 1),
    "mutate": (lambda fault: fault.mutate(not_leader), 2),
    "nothing": (lambda fault: fault, 1),
}
"""The fault of the first Produce request, and the number of copies in the log after a client without idempotence has
retried."""


@pytest.mark.virtual
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_our_producer(kind: str, is_idempotent: bool) -> None:
    act, copies = KINDS[kind]
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC)
        act(cluster.faults.on("Produce", topic=TOPIC, client_id="billing"))
        config = ProducerConfig(client_id="billing", request_timeout=5.0, enable_idempotence=is_idempotent)
        async with Producer(cluster.bootstrap_servers, config) as producer:
            await producer.send(TOPIC, b"a")
        assert [record.value for record in cluster.records(TOPIC)] == [b"a"] * (
            1 if is_idempotent else copies
        )


@pytest.mark.parametrize("kind", KINDS)
def test_librdkafka(kind: str) -> None:
    act, copies = KINDS[kind]
    with KafkaServer() as kafka:
        kafka.create_topic(TOPIC)
        kafka.call(lambda cluster: act(cluster.faults.on("Produce", topic=TOPIC, client_id="billing")))
        config = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "client.id": "billing",
            "retry.backoff.ms": 10,
        }
        producer = Confluent({**config, "socket.timeout.ms": 300, "request.timeout.ms": 200})
        errors: list[object] = []
        producer.produce(TOPIC, b"a", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        assert errors == [None]
        assert [record.value for record in kafka.records(TOPIC)] == [b"a"] * copies


@pytest.mark.parametrize("kind", KINDS)
async def test_aiokafka(kind: str) -> None:
    act, copies = KINDS[kind]
    async with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC)
        act(cluster.faults.on("Produce", topic=TOPIC, client_id="billing"))
        timeout = 2_000 if kind == "drop" else 20_000  # it also limits connecting
        options = {"client_id": "billing", "request_timeout_ms": timeout, "retry_backoff_ms": 10}
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
            if kind == "drop":  # aiokafka's request timeout also limits the time of the record
                copies = 1
                with pytest.raises(RequestTimedOutError):
                    await producer.send_and_wait(TOPIC, b"a")
            else:
                await producer.send_and_wait(TOPIC, b"a")
        assert [record.value for record in cluster.records(TOPIC)] == [b"a"] * copies


@pytest.mark.virtual
async def test_a_group_under_held_and_observed_requests() -> None:
    """Our consumer group with `hold`, `observe`, `answer` and a slow node."""
    handled: list[bytes | None] = []

    async def handler(_: Session, claim: Claim) -> None:
        async for record in claim:
            handled.append(record.value)
            claim.mark(record)

    seen: list[Exchange] = []
    async with EmbeddedCluster(nodes=2) as cluster:
        cluster.create_topic(TOPIC)
        cluster.move_coordinator("g", 1)
        cluster.move_leader(TOPIC, 0, 2)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send(TOPIC, b"a")
        held = cluster.faults.on("SyncGroup", group="g").hold()
        cluster.faults.on("OffsetFetch", times=None).observe(seen.append)
        cluster.faults.on("Fetch", topic=TOPIC, nth=2).answer(
            lambda _: m.FetchResponse(error_code=ErrorCode.NONE)
        )
        cluster.faults.on("Heartbeat", nth=2).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        config = ConsumerConfig(auto_offset_reset="earliest")
        async with ConsumerGroup(cluster.bootstrap_servers, "g", config) as group:
            running = asyncio.create_task(group.run(TOPIC, handler))
            await held.wait_hit()
            await asyncio.sleep(5)
            assert (handled, seen, cluster.group("g").state) == ([], [], "CompletingRebalance")
            held.release()
            await cluster.history.wait_for("Fetch", count=3)
            assert (handled, len(seen)) == ([b"a"], 1)
            assert seen[0].response is not None
            cluster.slow_node(2, 7.0)
            await asyncio.sleep(60)
            slow = cluster.history.of("Fetch", node=2, answered=True)[-1]
            assert slow.duration is not None
            assert slow.duration >= 7.0
            assert "no response to a fetch from node 2" in str(group.health().problems)
            cluster.slow_node(2, 0.0)
            await asyncio.sleep(10)
            assert group.health().is_healthy
        await running

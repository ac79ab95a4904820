"""Metrics, traces and health of a queue on a real Pulsar: what it counts beside what the broker knows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families

from asyncgroup import Delivery, WorkQueue
from asyncgroup.group import MemberProblem, ProblemKind
from asyncgroup.pulsar import PulsarClient
from asyncgroup.telemetry import ClientMetrics, live, ready, serve_probes
from asyncgroup.workqueue import PulsarSource
from tests.apache_pulsar import RunningPulsar
from tests.telemetry.spans import Sdk, parent_id, span_id

pytestmark = [pytest.mark.real, pytest.mark.java]

LIMIT = 60.0
"""Seconds; on a busy machine the first use of a topic takes some."""


async def until(condition: Callable[[], object], pause: float = 0.05) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(pause)


async def get(port: int, path: str) -> tuple[int, str]:
    """Return the status and body of a page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def series(page: str, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its labels, sorted by their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"asyncgroup_{name}"
    }


async def test_a_queue_counts_what_the_broker_knows(apache_pulsar: RunningPulsar) -> None:
    name = f"metrics-{uuid4().hex[:8]}"
    topic, metrics, sdk = f"persistent://public/default/{name}", ClientMetrics(), Sdk()
    await apache_pulsar.admin.create_partitioned_topic(name, 2)

    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"7" and delivery.attempt == 1:
            raise LookupError("no such price")

    async with PulsarClient(apache_pulsar.service_url, hooks=[metrics]) as client:
        source = PulsarSource(client, "billing", name, hooks=[sdk.traces])
        async with (
            WorkQueue(source, mode="key_shared", initial_position="earliest", nack_backoff=0.1) as queue,
            serve_probes(0, queue, metrics=metrics) as probes,
        ):
            running = asyncio.create_task(queue.run(handle))
            async with client.producer(name, interceptors=[sdk.traces]) as producer:
                await asyncio.gather(
                    *(producer.send(b"%d" % number, key=str(number)) for number in range(100))
                )
                _, page = await get(probes.port, "/metrics")
                assert series(page, "records_sent_total") == {(topic,): 100}
                await apache_pulsar.admin.unload(name)
                await until(lambda: queue.statistics().counts.acked == 100)
                await until(lambda: producer.is_connected and queue.health().is_healthy)
            assert (await get(probes.port, "/live"))[0] == (await get(probes.port, "/ready"))[0] == 200
            await queue.aclose()
            await running
            _, page = await get(probes.port, "/metrics")
    stats = await apache_pulsar.admin.partitioned_stats(name)
    assert stats["subscriptions"]["billing"]["msgBacklog"] == 0
    received = series(page, "records_consumed_total")
    assert list(received) == [("billing", topic)]
    assert received["billing", topic] >= 100
    assert series(page, "deliveries_total")["billing", "acknowledged"] == 100
    assert series(page, "deliveries_total")["billing", "nacked"] == 1
    sent, consumed = series(page, "bytes_sent_total")[topic,], series(page, "fetched_bytes_total")[()]
    assert 0 < sent < consumed
    roles = Counter(role for _, role, _ in series(page, "detaches_total"))
    assert roles == {"consumer": 1, "producer": 1}, "one error for each"
    assert series(page, "attaches_total") == {
        ("consumer", topic): pytest.approx(4, abs=2),
        ("producer", topic): pytest.approx(4, abs=2),
    }
    assert series(page, "acks_total")[("billing",)] >= 2
    assert series(page, "ack_failures_total") == {}
    requests = series(page, "requests_total")
    assert requests[("SUBSCRIBE",)] >= 4
    assert requests[("ACK",)] == series(page, "acks_total")[("billing",)]
    assert series(page, "connections") == {(): 1}, "all share one"
    check_spans(sdk, topic)


def check_spans(sdk: Sdk, topic: str) -> None:
    """Each delivery is in the trace of its send, also the one that failed and was repeated."""
    sends = {span_id(span): span for span in sdk.named(f"send {topic}")}
    processed: list[Any] = sdk.named(f"process {topic}", by=lambda span: span.start_time)
    assert len(sends) == 100
    assert {parent_id(span) for span in processed} == set(sends)
    for span in processed:
        sent: Any = sends[span.parent.span_id]
        for key in ("messaging.message.id", "messaging.destination.partition.id"):
            assert span.attributes[key] == sent.attributes[key]
    failed = [span for span in processed if span.status.status_code is StatusCode.ERROR]
    assert [span.attributes["error.type"] for span in failed] == ["LookupError"]


@pytest.mark.full
async def test_the_limit_of_unacknowledged_messages_is_seen_as_the_broker_says(
    apache_pulsar: RunningPulsar,
) -> None:
    name, count, taken = f"unacked-{uuid4().hex[:8]}", 60_000, list[Delivery]()
    async with PulsarClient(apache_pulsar.service_url) as client:
        source = PulsarSource(client, "billing", name)
        async with WorkQueue(source, initial_position="earliest") as queue:
            async with client.producer(name) as producer:
                for number in range(count):
                    await producer.enqueue(b"%d" % number)
                await producer.flush()
            with pytest.raises(TimeoutError):  # nothing is acknowledged
                while True:
                    taken.append(await asyncio.wait_for(queue.receive(), 3.0))
            await until(lambda: queue.health().problems, pause=1.0)
            (problem,) = queue.health().problems
            assert isinstance(problem, MemberProblem)
            assert problem.kind is ProblemKind.UNACKED
            assert live([queue]).passed
            assert ready([queue]).passed
            (consumer,) = (await apache_pulsar.admin.stats(name))["subscriptions"]["billing"]["consumers"]
            assert consumer["blockedConsumerOnUnackedMsgs"]
            # permits that arrive at a blocked consumer are put aside, so that here they are open
            assert consumer["availablePermits"] <= 0
            arrived = queue.statistics().partitions[0].lag
            assert consumer["unackedMessages"] == arrived
            assert 50_000 <= arrived < 52_000
            for delivery in taken:
                await delivery.ack()
            for _ in range(count - len(taken)):
                await (await queue.receive()).ack()
            assert queue.health().is_healthy

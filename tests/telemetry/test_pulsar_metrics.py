"""Metrics of Pulsar's clients and work queues, on scripted brokers in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import WorkQueue
from asyncgroup.pulsar import PulsarClient, PulsarProducer, PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.telemetry import ClientMetrics, Readings
from asyncgroup.workqueue import PulsarSource
from tests.pulsar.scripted import ScriptedPulsar, in_turn, late, no_answer, refuse
from tests.telemetry.test_otel_metrics import Meters, numbers

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"


@pytest_asyncio.fixture
async def pulsar() -> AsyncIterator[ScriptedPulsar]:
    """One scripted broker."""
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        yield pulsar


def value(readings: Readings, name: str, *labels: str) -> float:
    return readings.numbers[name][labels]


async def use(pulsar: ScriptedPulsar, hook: object) -> None:
    """Send three messages, one of which fails; receive three, and lose the broker once."""
    pulsar.script[c.CommandSend] = in_turn(late(0.2), refuse(22), late(0.2))
    pulsar.script[c.CommandAck] = in_turn(refuse(1), late(0.1))
    async with (
        PulsarClient(pulsar.url, hooks=[hook]) as client,
        client.producer("orders") as producer,
        WorkQueue(PulsarSource(client, "billing", "orders")) as queue,
    ):
        await producer.send(b"a")
        with pytest.raises(PulsarServerError):
            await producer.send(b"b")
        await producer.send(b"c")
        (connection,) = pulsar.connections
        (number,) = connection.consumers
        connection.push_entry(number, b"a", b"b", entry_id=1)
        connection.push_entry(number, b"c", entry_id=2)
        for _ in range(3):
            await (await queue.receive()).ack()
        await asyncio.sleep(5.0)
        pulsar.unload("orders")
        await asyncio.sleep(5.0)


async def test_metrics_of_a_client_and_its_queue(pulsar: ScriptedPulsar) -> None:
    metrics = ClientMetrics()
    await use(pulsar, metrics)
    readings = metrics.read()
    assert value(readings, "records_sent_total", TOPIC) == 2
    assert value(readings, "record_errors_total", TOPIC, "NotAllowedError") == 1
    assert value(readings, "bytes_sent_total", TOPIC) > 2
    assert readings.histograms["send_seconds"][()].sum == pytest.approx(0.4, abs=0.05)
    assert value(readings, "records_consumed_total", "billing", TOPIC) == 3
    assert value(readings, "fetched_bytes_total") == value(readings, "bytes_consumed_total", "billing", TOPIC)
    assert value(readings, "acks_total", "billing") == 2
    assert value(readings, "ack_failures_total", "billing", "MetadataError") == 1
    assert readings.histograms["ack_seconds"][()].count == 2
    assert readings.numbers["attaches_total"] == {("producer", TOPIC): 2, ("consumer", TOPIC): 2}
    assert readings.numbers["detaches_total"] == {
        (role, TOPIC, "asyncgroup.errors.ConnectionLost"): 1 for role in ("producer", "consumer")
    }
    assert readings.histograms["attach_seconds"][("consumer",)].count == 2
    assert value(readings, "requests_total", "SUBSCRIBE") == 2
    assert (value(readings, "connections"), value(readings, "connects_total")) == (0, 1)
    assert value(readings, "deliveries_total", "billing", "acknowledged") == 3
    assert readings.numbers["producer_buffer_bytes"] == {}
    assert readings.numbers["healthy"] == {}, "the gauges of a closed queue end"


async def test_metrics_of_transactions(pulsar: ScriptedPulsar) -> None:
    metrics = ClientMetrics()
    async with PulsarClient(pulsar.url, hooks=[metrics]) as client:
        for _ in range(2):
            async with client.transaction():
                await asyncio.sleep(3.0)
        async with client.transaction() as txn:
            await txn.abort()
        async with client.transaction():
            open_ones = metrics.read()
    readings = metrics.read()
    assert (
        value(readings, "transactions_started_total") == value(open_ones, "transactions_started_total") == 4
    )
    assert readings.numbers["transactions_total"] == {("committed",): 3, ("aborted",): 1}
    assert open_ones.numbers["transactions_total"] == {("committed",): 2, ("aborted",): 1}
    assert readings.histograms["transaction_seconds"][("committed",)].sum == pytest.approx(6.0, abs=0.1)
    assert readings.histograms["transaction_seconds"][("aborted",)].count == 1


async def test_gauges_of_what_is_open(pulsar: ScriptedPulsar) -> None:
    """Memory counts once for the producers of a client, and for a producer that has a client to itself."""
    pulsar.script[c.CommandSend] = no_answer
    metrics = ClientMetrics()
    async with (
        PulsarClient(pulsar.url, hooks=[metrics]) as client,
        client.producer("orders") as one,
        client.producer("orders") as two,
        WorkQueue(PulsarSource(client, "billing", "orders")) as queue,
    ):
        for producer in (one, two):
            producer.send_nowait(b"a" * 84)  # and 16 for a message
        connection = next(each for each in pulsar.connections if each.consumers)
        consumer = next(iter(connection.consumers))
        for entry in range(2):
            connection.push_entry(consumer, b"a", entry_id=entry)
        await queue.receive()
        readings = metrics.read()
        assert value(readings, "producer_buffer_bytes") == 200
        assert value(readings, "healthy", "billing") == 1
        assert (value(readings, "acquired", "billing"), value(readings, "queued", "billing")) == (1, 1)
        assert value(readings, "queue_lag", "billing") == 2
        assert value(readings, "connections") == 1
        assert value(readings, "attached_partitions", "billing", TOPIC) == 1
        assert value(readings, "detached_partitions", "billing", TOPIC) == 0
        assert value(readings, "open_permits", "billing", TOPIC) == connection.permits[consumer]
        for producer in (one, two):
            await producer.aclose(drain=False)
        async with PulsarProducer(pulsar.url, "orders", hooks=[metrics]) as own:
            own.send_nowait(b"a" * 34)
            assert value(metrics.read(), "producer_buffer_bytes") == 50
            await own.aclose(drain=False)
        assert value(metrics.read(), "producer_buffer_bytes") == 0
    assert metrics.read().numbers["producer_buffer_bytes"] == {}


async def test_gauges_of_consumers(pulsar: ScriptedPulsar) -> None:
    """Of a plain consumer and of a queue, with and without a broker; none after the end."""
    pulsar.set_partitions("orders", 3)
    metrics = ClientMetrics()
    async with (
        PulsarClient(pulsar.url, hooks=[metrics]) as client,
        client.subscribe("orders", "audit", type="shared"),
        WorkQueue(PulsarSource(client, "billing", "orders"), receiver_queue=10),
    ):
        found = metrics.read().numbers
        assert found["attached_partitions"] == {("audit", TOPIC): 3, ("billing", TOPIC): 3}
        assert found["detached_partitions"] == {("audit", TOPIC): 0, ("billing", TOPIC): 0}
        (connection,) = pulsar.connections
        granted = [
            connection.permits[number]
            for number, each in connection.consumers.items()
            if each.subscription == "audit"
        ]
        assert found["open_permits"]["audit", TOPIC] == sum(granted) > 0
        await pulsar["10.0.0.1"].stop()
        await asyncio.sleep(1.0)
        found = metrics.read().numbers
        assert found["detached_partitions"] == {("audit", TOPIC): 3, ("billing", TOPIC): 3}
        assert found["open_permits"] == {("audit", TOPIC): 0, ("billing", TOPIC): 0}
        await pulsar["10.0.0.1"].start()
        await asyncio.sleep(10.0)
        assert metrics.read().numbers["attached_partitions"]["billing", TOPIC] == 3
    assert metrics.read().numbers["attached_partitions"] == {}


async def test_instruments_of_opentelemetry_say_which_system(pulsar: ScriptedPulsar) -> None:
    meters = Meters()
    await use(pulsar, meters.metrics)
    found = meters.collect()
    assert numbers(found["messaging.client.sent.messages"]) == {
        (TOPIC, "pulsar", "send"): 2,
        ("NotAllowedError", TOPIC, "pulsar", "send"): 1,
    }
    assert numbers(found["messaging.client.consumed.messages"]) == {
        ("billing", TOPIC, "pulsar", "receive"): 3
    }
    durations: dict[Any, int] = {
        tuple(sorted(dict(key).values())): point.count
        for key, point in found["messaging.client.operation.duration"].items()
    }
    assert durations == {
        (TOPIC, "pulsar", "send", "send"): 2,
        ("NotAllowedError", TOPIC, "pulsar", "send", "send"): 1,
        ("ack", "pulsar", "settle"): 2,
    }
    assert numbers(found["asyncgroup.attaches"]) == {("consumer", TOPIC): 2, (TOPIC, "producer"): 2}

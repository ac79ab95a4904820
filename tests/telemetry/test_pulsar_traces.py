"""Spans of Pulsar's producers and of the deliveries of a queue, in one trace by the properties of messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from asyncgroup import Delivery, WorkQueue
from asyncgroup.pulsar import PulsarClient, PulsarProducerConfig, PulsarServerError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.telemetry import AsyncGroupInstrumentor
from asyncgroup.telemetry.otel.traces import ATTEMPT, OUTCOME
from asyncgroup.workqueue import PulsarSource
from tests.pulsar.scripted import BrokerConnection, ScriptedPulsar, refuse
from tests.telemetry.spans import Sdk, current_name, link_ids, parent_id, span_id

pytestmark = pytest.mark.virtual(max_virtual_time=3600)

TOPIC = "persistent://public/default/orders"


@pytest_asyncio.fixture
async def pulsar() -> AsyncIterator[ScriptedPulsar]:
    """One scripted broker."""
    async with ScriptedPulsar("10.0.0.1") as pulsar:
        yield pulsar


@pytest.fixture
def sdk() -> Sdk:
    """An SDK that keeps the spans."""
    return Sdk()


def attached(pulsar: ScriptedPulsar) -> tuple[BrokerConnection, int]:
    connection = next(each for each in pulsar.connections if each.consumers)
    return connection, next(iter(connection.consumers))


def push_stored(pulsar: ScriptedPulsar, topic: str = TOPIC, **fields: Any) -> None:
    """Push the last entry that was stored."""
    connection, number = attached(pulsar)
    stored = pulsar.stored[topic][-1]
    properties = stored.metadata.properties
    connection.push_entry(number, stored.body, entry_id=stored.id.entry_id, properties=properties, **fields)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_delivery_is_in_the_trace_of_its_send(pulsar: ScriptedPulsar, sdk: Sdk) -> None:
    config, current = PulsarProducerConfig(batching=False), list[int]()

    async def handle(delivery: Delivery) -> None:
        current.append(span_id(get_current_span()))

    async with PulsarClient(pulsar.url) as client:
        source = PulsarSource(client, "billing", "orders", hooks=[sdk.traces])
        async with (
            client.producer("orders", config, interceptors=[sdk.traces]) as producer,
            WorkQueue(source) as queue,
        ):
            running = asyncio.create_task(queue.run(handle))
            with sdk.tracer.start_as_current_span("order") as order:
                old = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "shop": "3"}
                stored = await producer.send(b"one dozen", key="eggs", properties=old)
            push_stored(pulsar)
            await asyncio.sleep(1.0)
            await queue.aclose()
            await running
    (sent,), (processed,) = sdk.named(f"send {TOPIC}"), sdk.named(f"process {TOPIC}")
    assert parent_id(sent) == span_id(order)
    assert parent_id(processed) == span_id(sent)
    assert current == [span_id(processed)]
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(sent) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": TOPIC,
        "messaging.message.id": str(stored),
    }
    assert attributes(processed) == {
        "messaging.system": "pulsar",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": TOPIC,
        "messaging.destination.subscription.name": "billing",
        "messaging.message.id": str(stored),
        ATTEMPT: 1,
        OUTCOME: "acknowledged",
    }
    properties = dict(pulsar.stored[TOPIC][0].metadata.properties)
    assert properties.pop("shop") == "3"
    assert list(properties) == ["traceparent"], "it replaces the older one"
    assert repr(sdk.traces) == "<OpenTelemetryTraces: 0 sends, 0 processings>"


async def test_a_send_that_fails(pulsar: ScriptedPulsar, sdk: Sdk) -> None:
    pulsar.script[c.CommandSend] = refuse(22)
    async with (
        PulsarClient(pulsar.url) as client,
        client.producer("orders", interceptors=[sdk.traces]) as producer,
    ):
        with pytest.raises(PulsarServerError):
            await producer.send(b"a")
        with pytest.raises(ValueError, match="properties"):
            await producer.send(b"a", properties={"n": 1})  # type: ignore[dict-item]
    first, second = sdk.spans
    assert attributes(first)["error.type"] == "NotAllowedError"
    assert first.status.status_code is second.status.status_code is StatusCode.ERROR


async def test_messages_of_a_batch_have_their_own_contexts(pulsar: ScriptedPulsar, sdk: Sdk) -> None:
    async with (
        PulsarClient(pulsar.url) as client,
        client.producer("orders", interceptors=[sdk.traces]) as producer,
    ):
        for value in (b"a", b"b"):
            await producer.enqueue(value)
        await producer.flush()
    (entry,) = pulsar.stored[TOPIC]
    assert entry.metadata.num_messages_in_batch == 2
    sent = sdk.named(f"send {TOPIC}")
    assert len(sent) == 2
    for span in sent:
        assert f"{span_id(span):016x}".encode() in entry.body


async def test_a_redelivery_links_the_former_attempt_also_after_a_reconnect(
    pulsar: ScriptedPulsar, sdk: Sdk
) -> None:
    """A message has another offset then; its id stays."""
    source = PulsarSource(pulsar.url, "billing", "orders", hooks=[sdk.traces])
    async with WorkQueue(source, mode="key_shared", nack_backoff=1) as queue:
        connection, number = attached(pulsar)
        connection.push_entry(number, b"0", entry_id=0)
        connection.push_entry(number, b"a", entry_id=1)
        await (await queue.receive()).ack(durable=True)
        await (await queue.receive()).nack()
        await (await queue.receive()).nack(delay=100)
        connection.cut()
        await asyncio.sleep(5.0)
        connection, number = attached(pulsar)
        connection.push_entry(number, b"a", entry_id=1, redelivery_count=1)
        await (await queue.receive()).ack()
    _, first, second, third = sorted(sdk.spans, key=lambda span: span.start_time or 0)
    assert [link_ids(span) for span in (first, second, third)] == [[], [span_id(first)], [span_id(second)]]
    assert [attributes(span)[OUTCOME] for span in (first, second, third)] == [
        "nacked",
        "nacked",
        "acknowledged",
    ]
    assert len({attributes(span)["messaging.message.id"] for span in (first, second, third)}) == 1
    assert sdk.traces._attempts == {}


async def test_a_redelivery_by_the_broker_links_the_former_attempt(pulsar: ScriptedPulsar, sdk: Sdk) -> None:
    """In Shared a message that failed goes back to the broker."""
    source = PulsarSource(pulsar.url, "billing", "orders", hooks=[sdk.traces])
    async with WorkQueue(source, nack_backoff=1) as queue:
        connection, number = attached(pulsar)
        connection.push_entry(number, b"a", entry_id=1)
        await (await queue.receive()).nack()
        await asyncio.sleep(2.0)
        assert len(pulsar.commands(c.CommandRedeliverUnacknowledgedMessages)) == 1
        connection.push_entry(number, b"a", entry_id=1, redelivery_count=1)
        await (await queue.receive()).ack()
    first, second = sorted(sdk.spans, key=lambda span: span.start_time or 0)
    assert (attributes(first)[ATTEMPT], attributes(second)[ATTEMPT]) == (1, 2)
    assert link_ids(second) == [span_id(first)]


async def test_a_program_without_a_word_of_it_has_spans_also_of_copies(pulsar: ScriptedPulsar) -> None:
    sdk, names = Sdk(), list[str]()
    AsyncGroupInstrumentor().instrument(tracer_provider=sdk.provider)

    async def handle(delivery: Delivery) -> None:
        names.append(current_name())
        if delivery.attempt == 1:
            await delivery.reconsume_later(1)

    try:
        async with PulsarClient(pulsar.url) as client:
            config = PulsarProducerConfig(batching=False)
            async with (
                client.producer("orders", config) as producer,
                WorkQueue(PulsarSource(client, "billing", "orders"), retry="later") as queue,
            ):
                running = asyncio.create_task(queue.run(handle))
                await producer.send(b"a")
                push_stored(pulsar)
                retry_topic = "persistent://public/default/later"
                while not pulsar.stored[retry_topic]:
                    await asyncio.sleep(0.1)
                connection = next(each for each in pulsar.connections if each.consumers)
                number = next(key for key, each in connection.consumers.items() if each.topic == retry_topic)
                stored = pulsar.stored[retry_topic][0]
                properties = stored.metadata.properties
                connection.push_entry(number, stored.body, entry_id=7, properties=properties)
                await asyncio.sleep(5.0)
                await queue.aclose()
                await running
    finally:
        AsyncGroupInstrumentor().uninstrument()
    (sent,), (first,) = sdk.named(f"send {TOPIC}"), sdk.named(f"process {TOPIC}")
    (copy,), (second,) = sdk.named(f"send {retry_topic}"), sdk.named(f"process {retry_topic}")
    assert parent_id(first) == span_id(sent)
    assert parent_id(copy) == span_id(first)
    assert parent_id(second) == span_id(copy)
    assert link_ids(second) == [span_id(first)]
    assert names == [f"process {TOPIC}", f"process {retry_topic}"]

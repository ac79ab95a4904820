"""Spans of producers, groups and consumers: parents, links, what is current, and headers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode, get_current_span

from asyncgroup import (
    Claim,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    Producer,
    ProducerConfig,
    ProducerRecord,
    Session,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, InvalidRecordError
from asyncgroup.model import Header
from asyncgroup.telemetry import OpenTelemetryTraces
from tests.stories.holding import mark_all
from tests.telemetry.spans import Sdk, current_name, link_ids, parent_id, span_id

CONFIG = ConsumerConfig(auto_offset_reset="earliest", close_timeout=5.0)
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@asynccontextmanager
async def broker_with_topic(partitions: int = 1) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as broker:
        broker.create_topic("orders", partitions)
        yield broker


async def send(broker: EmbeddedCluster, sdk: Sdk | None, count: int, headers: Sequence[Header] = ()) -> None:
    interceptors = [] if sdk is None else [sdk.traces]
    async with Producer(broker.bootstrap_servers, interceptors=interceptors) as producer:
        for number in range(count):
            await producer.enqueue("orders", b"%d" % number, headers=headers)


async def consume(broker: EmbeddedCluster, sdk: Sdk, handler: Any) -> None:
    async with ConsumerGroup(broker.bootstrap_servers, "billing", CONFIG, hooks=[sdk.traces]) as group:
        running = asyncio.create_task(group.run("orders", handler))
        await asyncio.sleep(10.0)
        await group.aclose()
        await running


# --- from the producer to the handler -----------------------------------------------------------------------------------------


@pytest.fixture
def sdk() -> Sdk:
    """An SDK that keeps the spans."""
    return Sdk()


async def test_a_record_is_processed_in_the_trace_of_its_send() -> None:
    sdk, current = Sdk(), []

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            current.append(span_id(get_current_span()))
            await asyncio.sleep(0.1)
            with sdk.tracer.start_as_current_span("charge"):
                pass
        assert current_name() == ""

    async with broker_with_topic() as broker:
        with sdk.tracer.start_as_current_span("request") as request:
            await send(broker, sdk, 3)
        await consume(broker, sdk, read)
    sends, processes = sdk.named("send orders"), sdk.named("process orders")
    assert [span.kind for span in (*sends, *processes)] == [SpanKind.PRODUCER] * 3 + [SpanKind.CONSUMER] * 3
    assert [parent_id(span) for span in sends] == [span_id(request)] * 3
    assert [parent_id(span) for span in processes] == [span_id(span) for span in sends]
    assert current == [span_id(span) for span in processes]
    charges = sdk.named("charge", by=lambda span: span.start_time)
    assert [parent_id(span) for span in charges] == current
    assert {span.context.trace_id for span in sdk.spans} == {request.get_span_context().trace_id}


async def test_attributes_follow_the_semantic_conventions(sdk: Sdk) -> None:
    async with broker_with_topic() as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[sdk.traces]) as producer:
            await producer.send("orders", None, key=b"secret")
        await consume(broker, sdk, mark_all)
    (sent,), (processed,) = sdk.named("send orders"), sdk.named("process orders")
    common = {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.tombstone": True,
    }
    operation = "messaging.operation.name", "messaging.operation.type"
    assert sent.attributes == common | dict.fromkeys(operation, "send")
    assert processed.attributes == common | dict.fromkeys(operation, "process") | {
        "messaging.consumer.group.name": "billing"
    }
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.name == "asyncgroup"
    assert sent.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


async def test_a_batch_is_one_span_with_links_to_the_sends() -> None:
    sdk, current = Sdk(max_links=5), []

    async def read(session: Session, claim: Claim) -> None:
        with sdk.tracer.start_as_current_span("loop"):
            async for batch in claim.batches(max_records=4):
                current.append(span_id(get_current_span()))
                claim.mark(batch)
            assert current_name() == "loop"

    async with broker_with_topic() as broker:
        await send(broker, sdk, 4)
        await send(broker, None, 4)  # their batch has no links
        await send(broker, sdk, 4)
        await send(broker, None, 2, [("traceparent", TRACEPARENT)])
        await consume(broker, sdk, read)
    sends = [span_id(span) for span in sdk.named("send orders")]
    batches = sdk.named("process orders", by=lambda span: span.start_time)
    assert [span_id(span) for span in batches] == current
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in batches) == 14
    assert [link_ids(span) for span in batches if link_ids(span)] == [
        sends[:4],
        sends[4:],
        [0xB7AD6B7169203331],
    ]
    (loop,) = sdk.named("loop")
    assert {parent_id(span) for span in batches} == {span_id(loop)}


@pytest.mark.full
async def test_a_batch_has_at_most_so_many_links_as_the_sdk_keeps(sdk: Sdk) -> None:

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim.batches(max_wait=1.0):
            pass

    async with broker_with_topic() as broker:
        await send(broker, sdk, 200)
        await consume(broker, sdk, read)
    (batch,) = sdk.named("process orders")
    assert link_ids(batch) == [span_id(span) for span in sdk.named("send orders")[:128]]


async def test_records_of_a_group_in_one_loop_and_of_a_consumer(sdk: Sdk) -> None:
    async with broker_with_topic(partitions=2) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[sdk.traces]) as producer:
            for number in range(6):
                await producer.send("orders", b"", partition=number % 2)
        async with (
            ConsumerGroup(broker.bootstrap_servers, "billing", CONFIG, hooks=[sdk.traces]) as group,
            group.records("orders") as records,
        ):
            for _ in range(6):
                await anext(records)
                assert current_name() == "process orders"
        assert current_name() == ""
        async with Consumer(broker.bootstrap_servers, hooks=[sdk.traces]) as consumer:
            await anext(await consumer.partition("orders", 1, 2))
            assert current_name() == "process orders"
        assert current_name() == ""
    processes = sdk.named("process orders", by=lambda span: span.start_time)
    assert len(processes) == 7
    assert {parent_id(span) for span in processes} == {span_id(span) for span in sdk.named("send orders")}
    assert "messaging.consumer.group.name" not in (processes[-1].attributes or {})


@pytest.mark.full
async def test_a_loop_within_a_loop_gives_the_outer_record_back(sdk: Sdk) -> None:
    async with broker_with_topic() as broker:
        broker.create_topic("prices", 1)
        await send(broker, sdk, 2)
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send("prices", b"")
        async with Consumer(broker.bootstrap_servers, hooks=[sdk.traces]) as consumer:
            orders = await consumer.partition("orders", 0, 0)
            await anext(orders)
            outer = get_current_span()
            prices = await consumer.partition("prices", 0, 0)
            await anext(prices)
            assert current_name() == "process prices"
            await prices.aclose()
            assert get_current_span() is outer
            await anext(orders)
            assert get_current_span() is not outer
    (price,) = sdk.named("process prices")
    assert price.parent is None  # the program's own context, in which there is none


# --- failures -----------------------------------------------------------------------------------------------------------------


async def test_the_exception_of_a_handler_is_that_of_its_record(sdk: Sdk) -> None:

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            if record.offset == 1:
                raise LookupError("no such price")

    async with broker_with_topic() as broker:
        await send(broker, sdk, 2)
        with pytest.raises(LookupError):
            await consume(broker, sdk, read)
    first, second = sdk.named("process orders")
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR
    assert (second.attributes or {})["error.type"] == "LookupError"
    assert [event.name for event in second.events] == ["exception"]
    assert (second.events[0].attributes or {})["exception.type"] == "LookupError"


async def test_a_send_that_fails_has_the_error_of_its_caller(sdk: Sdk) -> None:
    async with broker_with_topic() as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[sdk.traces]) as producer:
            broker.faults.on("Produce").error("TOPIC_AUTHORIZATION_FAILED")
            with pytest.raises(BrokerError):
                await producer.send("orders", b"refused")
            with pytest.raises(InvalidRecordError):
                await producer.send("orders", b"no partition", partition=7)
            with pytest.raises(InvalidRecordError):
                await producer.send("orders", b"headers", headers=[("a", 5)])  # type: ignore[list-item]
            with pytest.raises(InvalidRecordError):
                await producer.send("orders", b"headers", headers=[5])  # type: ignore[list-item]
    assert [span.status.status_code for span in sdk.spans] == [StatusCode.ERROR] * 4
    assert sorted(str((span.attributes or {})["error.type"]) for span in sdk.spans) == [
        "TOPIC_AUTHORIZATION_FAILED",
        "TypeError",
        "asyncgroup.errors.InvalidRecordError",
        "asyncgroup.errors.InvalidRecordError",
    ]
    assert repr(sdk.traces) == "<OpenTelemetryTraces: 0 sends, 0 processings>"


@pytest.mark.full
async def test_a_cancelled_handler_is_no_error(sdk: Sdk) -> None:

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            await asyncio.sleep(1000.0)

    async with broker_with_topic() as broker:
        await send(broker, sdk, 1)
        await consume(broker, sdk, read)
    (process,) = sdk.named("process orders")
    assert process.status.status_code is StatusCode.UNSET


# --- headers ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", None)],
        [("traceparent", b"")],
        [("traceparent", b"\xff\xfe\x00")],
        [("traceparent", b"00-zz-1")],
        [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
        [("traceparent", b"9" * 1_000_000)],
        [("traceparent", TRACEPARENT), ("traceparent", b"the last one counts")],
        [("tracestate", b"a=b"), ("baggage", b"%%%=;;,\xff")],
        [("b3", b"0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1")],  # of another propagator
    ],
)
async def test_a_context_that_cannot_be_read_is_none_and_stops_nothing(headers: list[Header]) -> None:
    sdk, offsets = Sdk(), []

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            offsets.append(record.offset)
            assert current_name() == "process orders"
            if record.offset == 0:
                break
        async for batch in claim.batches():
            offsets.extend(record.offset for record in batch)

    async with broker_with_topic() as broker:
        await send(broker, None, 3, headers)
        await consume(broker, sdk, read)
    assert offsets == [0, 1, 2]
    assert len(sdk.spans) >= 2
    assert [parent_id(span) for span in sdk.spans] == [None] * len(sdk.spans)
    assert [link_ids(span) for span in sdk.spans] == [[]] * len(sdk.spans)


@pytest.mark.full
async def test_a_propagator_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        fields = frozenset({"traceparent"})

        def extract(self, *arguments: object) -> None:
            raise ValueError("a propagator's bug")

        def inject(self, *arguments: object) -> None:
            raise ValueError("a propagator's bug")

    sdk = Sdk(propagator=Broken())
    async with broker_with_topic() as broker:
        await send(broker, sdk, 3, [("traceparent", TRACEPARENT)])
        await consume(broker, sdk, mark_all)
        assert [record.value for record in broker.records("orders")] == [b"0", b"1", b"2"]
    assert len(sdk.named("process orders")) == 3
    assert caplog.text.count("the trace context of a record cannot be read") == 1


async def test_a_forwarded_record_gets_the_context_of_its_new_send(sdk: Sdk) -> None:
    async with broker_with_topic() as broker:
        await send(broker, sdk, 1, [("traceparent", TRACEPARENT), ("kept", b"1"), ("tracestate", b"a=b")])
        (record,) = broker.records("orders")
    (sent,) = sdk.spans
    context = sent.get_span_context()
    assert context is not None
    (kept, (name, value)) = record.headers
    assert (kept, name) == (("kept", b"1"), "traceparent")
    assert value is not None
    assert value.decode().startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")


@pytest.mark.full
async def test_baggage_of_a_record_is_there_in_the_body_of_the_loop() -> None:
    sdk, seen = Sdk(), []

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            seen.append(baggage.get_baggage("tenant"))
            claim.mark(record)
        seen.append(baggage.get_baggage("tenant"))

    async with broker_with_topic() as broker:
        await send(broker, None, 1, [("traceparent", TRACEPARENT), ("baggage", b"tenant=acme")])
        await consume(broker, sdk, read)
    assert seen == ["acme", None]


# --- sampling -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(0.0))], ids=["off", "ratio 0"])
async def test_without_a_recorded_span_no_header_is_written(sampler: Any) -> None:
    sdk, names = Sdk(sampler), set()

    async def read(session: Session, claim: Claim) -> None:
        async for record in claim:
            names.add((current_name(), tuple(record.headers)))

    async with broker_with_topic() as broker:
        await send(broker, sdk, 2)
        await send(broker, sdk, 1, [("traceparent", TRACEPARENT)])  # of a program that passes records on
        await consume(broker, sdk, read)
    # the sender of the third one has sampled it, and a sampler may follow that
    third = "" if sampler is ALWAYS_OFF else "process orders"
    assert names == {("", ()), (third, (("traceparent", TRACEPARENT),))}
    assert [span.name for span in sdk.spans] == [third] * (third != "")
    assert sdk.traces.is_recording == (sampler is not ALWAYS_OFF)


@pytest.mark.full
async def test_spans_in_a_handler_follow_the_decision_of_the_sender() -> None:
    sdk = Sdk(ParentBased(TraceIdRatioBased(1.0)))

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            with sdk.tracer.start_as_current_span("charge"):
                pass

    async with broker_with_topic() as broker:
        await send(broker, None, 2, [("traceparent", TRACEPARENT[:-1] + b"0")])
        await send(broker, None, 1)
        await consume(broker, sdk, read)
    assert [span.name for span in sdk.spans] == ["charge", "process orders"]


@pytest.mark.parametrize("traces", [OpenTelemetryTraces(), OpenTelemetryTraces(NoOpTracerProvider())])
@pytest.mark.full
async def test_without_an_sdk_records_are_delivered_as_without_hooks(traces: OpenTelemetryTraces) -> None:
    delivers = set()

    async def read(session: Session, claim: Claim) -> None:
        async for _ in claim:
            delivers.add(claim._inner.consumer._inner.deliver)

    record = ProducerRecord("orders", b"")
    assert traces.on_send(record) is None
    async with broker_with_topic() as broker:
        await send(broker, None, 3)
        async with ConsumerGroup(broker.bootstrap_servers, "g", CONFIG, hooks=[traces]) as group:
            running = asyncio.create_task(group.run("orders", read))
            await asyncio.sleep(10.0)
            await group.aclose()
            await running
    assert delivers == {None}


@pytest.mark.full
async def test_a_closed_object_makes_no_more_spans(sdk: Sdk) -> None:
    sdk.traces.close()
    async with broker_with_topic() as broker:
        await send(broker, sdk, 3)
        await consume(broker, sdk, mark_all)
    assert sdk.spans == []


@pytest.mark.full
async def test_an_interceptor_that_drops_headers_loses_the_end_of_sends_and_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncgroup.telemetry.otel.traces._MOST_OPEN", 10)
    sdk = Sdk()
    async with broker_with_topic() as broker:
        async with Producer(
            broker.bootstrap_servers,
            ProducerConfig(acks=0, enable_idempotence=False),
            interceptors=[sdk.traces, lambda record: record._replace(headers=())],
        ) as producer:
            for _ in range(15):
                await producer.send("orders", b"")
    assert repr(sdk.traces) == "<OpenTelemetryTraces: 10 sends, 0 processings>"
    assert len(sdk.named("send orders")) == 5


def test_a_record_of_the_hooks_is_not_changed(sdk: Sdk) -> None:
    record = ProducerRecord("orders", b"", headers=[("a", b"1")])
    sent = sdk.traces.on_send(record)
    assert sent is not None
    assert record.headers == [("a", b"1")]
    assert [name for name, _ in sent.headers] == ["a", "traceparent"]
    assert isinstance(sent, ProducerRecord)

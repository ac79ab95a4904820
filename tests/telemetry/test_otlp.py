"""OTLP over HTTP: the SDK's exporters send spans and metrics to a receiver on the loopback interface."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from asyncgroup import ConsumerConfig, ConsumerGroup, Producer
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.telemetry import OpenTelemetryMetrics, OpenTelemetryTraces
from asyncgroup.testing import KafkaServer
from tests.guide.pages import snippet
from tests.telemetry.receiver import receiving


async def program(traces: OpenTelemetryTraces, metrics: OpenTelemetryMetrics) -> None:
    """Send three records and read them."""
    async with EmbeddedCluster() as broker:
        broker.create_topic("orders", 1)
        async with Producer(broker.bootstrap_servers, hooks=[metrics], interceptors=[traces]) as producer:
            await asyncio.gather(*(producer.send("orders", b"%d" % number) for number in range(3)))
        async with ConsumerGroup(
            broker.bootstrap_servers,
            "billing",
            ConsumerConfig(auto_offset_reset="earliest"),
            hooks=[traces, metrics],
        ) as group:
            async with group.records("orders") as records:
                for _ in range(3):
                    await anext(records)


@pytest.mark.full
def test_spans_and_metrics_arrive() -> None:
    with receiving() as receiver:
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.address}/v1/traces")))
        exporter = OTLPMetricExporter(f"{receiver.address}/v1/metrics")
        meters = MeterProvider([PeriodicExportingMetricReader(exporter, 200)], shutdown_on_exit=False)
        asyncio.run(program(OpenTelemetryTraces(tracers), OpenTelemetryMetrics(meters)))
        tracers.shutdown()
        meters.shutdown()
    sends = {span.span_id: span for _, span in receiver.spans if span.name == "send orders"}
    processes = [span for _, span in receiver.spans if span.name == "process orders"]
    assert len(sends) == len(processes) == 3
    assert {span.parent_span_id for span in processes} == set(sends)
    assert all(span.trace_id == sends[span.parent_span_id].trace_id for span in processes)
    assert {schema for schema, _ in receiver.spans} == {"https://opentelemetry.io/schemas/1.44.0"}
    found = receiver.last_metrics
    (consumed,) = found["asyncgroup.records_consumed"].sum.data_points
    assert (consumed.as_int or consumed.as_double) == 3
    assert found["asyncgroup.records_consumed"].sum.is_monotonic
    assert found["messaging.client.operation.duration"].histogram.data_points


@pytest.mark.full
def test_the_program_of_the_guide() -> None:
    """It runs as a separate program, as it sets the global provider."""
    with receiving() as receiver, KafkaServer() as server:
        server.create_topic("orders", 1)
        code = snippet("monitoring", "OpenTelemetryTraces()").replace(
            "127.0.0.1:9092", server.bootstrap_servers
        )
        environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address}
        with subprocess.Popen(
            [sys.executable, "-u", "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0 b'one dozen'\n"
            process.send_signal(signal.SIGINT)
            process.wait(60.0)
    spans = {span.name: span for _, span in receiver.spans}
    assert set(spans) == {"send orders", "process orders", "charge"}
    assert spans["process orders"].parent_span_id == spans["send orders"].span_id
    assert spans["charge"].parent_span_id == spans["process orders"].span_id

"""A measured process: a group that reads a topic with the hooks of one case."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from benchmarks.clients import Settings
from benchmarks.clients.asyncgroup_client import with_hooks
from benchmarks.meter import Meter

__all__ = ["HOOKS", "measure"]

INTERVAL: Final = 1.0
"""Seconds between two scrapes, or collections: Prometheus's and OpenTelemetry's defaults are 60."""

Hooks = Callable[[], AbstractAsyncContextManager[list[object]]]


@asynccontextmanager
async def nothing() -> AsyncIterator[list[object]]:
    """No hooks."""
    yield []


@asynccontextmanager
async def prometheus() -> AsyncIterator[list[object]]:
    """ClientMetrics, and a page of prometheus_client that is made in another thread each second."""
    from prometheus_client import CollectorRegistry, generate_latest

    from asyncgroup.telemetry import ClientMetrics, PrometheusCollector

    metrics, registry, ended = ClientMetrics(), CollectorRegistry(), threading.Event()
    registry.register(PrometheusCollector(metrics))

    def scrape() -> None:
        while not ended.wait(INTERVAL):
            generate_latest(registry)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield [metrics]
    finally:
        ended.set()
        await asyncio.to_thread(thread.join)


@asynccontextmanager
async def otel_metrics() -> AsyncIterator[list[object]]:
    """OpenTelemetryMetrics, and a reader of the SDK that collects each second in its thread; the exporter drops everything."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        MetricExporter,
        MetricExportResult,
        PeriodicExportingMetricReader,
    )

    from asyncgroup.telemetry import OpenTelemetryMetrics

    class Nowhere(MetricExporter):
        def export(self, *_: Any, **__: Any) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, *_: Any, **__: Any) -> bool:
            return True

        def shutdown(self, *_: Any, **__: Any) -> None:
            return

    reader = PeriodicExportingMetricReader(Nowhere(), INTERVAL * 1000)
    provider = MeterProvider([reader])
    try:
        yield [OpenTelemetryMetrics(provider)]
    finally:
        await asyncio.to_thread(provider.shutdown)


@asynccontextmanager
async def otel_traces() -> AsyncIterator[list[object]]:
    """OpenTelemetryTraces, and the SDK's BatchSpanProcessor; the exporter drops everything."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from asyncgroup.telemetry import OpenTelemetryTraces

    class Nowhere(SpanExporter):
        def export(self, *_: Any, **__: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    try:
        yield [OpenTelemetryTraces(provider)]
    finally:
        await asyncio.to_thread(provider.shutdown)


@asynccontextmanager
async def otel_api() -> AsyncIterator[list[object]]:
    """OpenTelemetryTraces without an SDK: nothing is recorded."""
    from asyncgroup.telemetry import OpenTelemetryTraces

    yield [OpenTelemetryTraces()]


HOOKS: Final[dict[str, Hooks]] = {
    "nothing": nothing,
    "prometheus": prometheus,
    "otel.metrics": otel_metrics,
    "otel.traces": otel_traces,
    "otel.api": otel_api,
}
"""The hooks of each case."""


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Read the topic with the hooks `case` in the mode `batches` or `records`; return records and CPU time."""
    case, mode = given.pop("case"), given.pop("mode")
    settings = Settings(**given)
    meter = Meter(settings.records, settings.limit)
    meter.begin()
    async with HOOKS[case]() as hooks:
        gc.collect()  # of the packages that were imported: once in a process, and no cost of reading
        await with_hooks(settings, meter, hooks, in_batches=mode == "batches")
    figures = meter.figures()
    return {key: figures[key] for key in ("records", "counted", "seconds", "cpu_seconds")}

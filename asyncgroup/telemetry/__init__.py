"""Telemetry: metrics, spans, probes and logs of clients, for those who operate them.

    metrics = ClientMetrics()
    async with ConsumerGroup("localhost:9092", "orders", hooks=[metrics]) as group: ...

- `metric_names` is the table of all metrics, `readings` their values. `client_metrics` is the hook that counts events and reads
  clients (`client_readings`) at the time of a scrape, from any thread (`thread_reads`); it knows neither Prometheus nor OpenTelemetry.
- `otel` makes OpenTelemetry's spans and metrics; `extras` says what to install for it.
- `prometheus` is the collector over it for prometheus_client.
- `json_logs` formats log lines, with the fields of `asyncgroup.log_events`.
- `probes` judges the `health()` of all clients, for liveness and readiness. `probe_server` answers probes over HTTP, `probe_app`
  as an ASGI application; `probe_responses` says what both answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names

if TYPE_CHECKING:
    from asyncgroup.telemetry.client_metrics import ClientMetrics
    from asyncgroup.telemetry.extras import TelemetryUnavailable
    from asyncgroup.telemetry.json_logs import JsonLogFormatter
    from asyncgroup.telemetry.metric_names import METRICS, Metric
    from asyncgroup.telemetry.otel.instrumentor import AsyncGroupInstrumentor
    from asyncgroup.telemetry.otel.metrics import OpenTelemetryMetrics
    from asyncgroup.telemetry.otel.traces import OpenTelemetryTraces
    from asyncgroup.telemetry.probe_app import ProbeApp
    from asyncgroup.telemetry.probe_server import ProbeServer, serve_probes
    from asyncgroup.telemetry.probes import ProbeAnswer, live, ready
    from asyncgroup.telemetry.prometheus import PrometheusCollector
    from asyncgroup.telemetry.readings import HistogramReading, Readings

__all__ = [
    "METRICS",
    "AsyncGroupInstrumentor",
    "ClientMetrics",
    "HistogramReading",
    "JsonLogFormatter",
    "Metric",
    "OpenTelemetryMetrics",
    "OpenTelemetryTraces",
    "ProbeAnswer",
    "ProbeApp",
    "ProbeServer",
    "PrometheusCollector",
    "Readings",
    "TelemetryUnavailable",
    "live",
    "ready",
    "serve_probes",
]

_NAMES = {
    "client_metrics": ["ClientMetrics"],
    "extras": ["TelemetryUnavailable"],
    "json_logs": ["JsonLogFormatter"],
    "metric_names": ["METRICS", "Metric"],
    "otel.instrumentor": ["AsyncGroupInstrumentor"],
    "otel.metrics": ["OpenTelemetryMetrics"],
    "otel.traces": ["OpenTelemetryTraces"],
    "probe_app": ["ProbeApp"],
    "probe_server": ["ProbeServer", "serve_probes"],
    "prometheus": ["PrometheusCollector"],
    "probes": ["ProbeAnswer", "live", "ready"],
    "readings": ["HistogramReading", "Readings"],
}
"""The public names of each module."""

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _NAMES)

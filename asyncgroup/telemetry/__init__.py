"""Telemetry: metrics, probes and logs of clients, for those who operate them.

    metrics = ClientMetrics()
    async with ConsumerGroup("localhost:9092", "orders", hooks=[metrics]) as group: ...

- `metric_names` is the table of all metrics, `readings` their values. `client_metrics` is the hook that counts events and reads
  clients (`client_readings`) at the time of a scrape; it knows neither Prometheus nor OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgroup.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from asyncgroup.telemetry.client_metrics import ClientMetrics
    from asyncgroup.telemetry.metric_names import METRICS, Metric
    from asyncgroup.telemetry.readings import HistogramReading, Readings

__all__ = ["METRICS", "ClientMetrics", "HistogramReading", "Metric", "Readings"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "client_metrics": ["ClientMetrics"],
        "metric_names": ["METRICS", "Metric"],
        "readings": ["HistogramReading", "Readings"],
    },
)

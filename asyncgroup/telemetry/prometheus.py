"""Prometheus: a collector over ClientMetrics, for the package prometheus_client (extra `prometheus`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from asyncgroup.telemetry.client_metrics import ClientMetrics
from asyncgroup.telemetry.extras import require_package
from asyncgroup.telemetry.metric_names import METRICS, Metric
from asyncgroup.telemetry.readings import HistogramReading, Readings
from asyncgroup.telemetry.thread_reads import read_from_any_thread

__all__ = ["MetricsPage", "PrometheusCollector"]

READ_TIMEOUT: Final = 5.0
"""Seconds for which a scrape in another thread waits for the event loop: half of Prometheus's default timeout."""


class PrometheusCollector:
    """A collector for a registry of prometheus_client: it reads the metrics of clients at each scrape.

        metrics = ClientMetrics()
        prometheus_client.REGISTRY.register(PrometheusCollector(metrics))

    It may be read in any thread, as `prometheus_client.start_http_server` does. If the event loop of the clients is blocked for
    5 s, it has no series for that scrape, and those of other collectors are on the page. prometheus_client's multiprocess mode
    ignores collectors: give each process its own port. Raises TelemetryUnavailable if prometheus_client is not installed.
    """

    def __init__(self, metrics: ClientMetrics) -> None:
        require_package("prometheus_client", "prometheus-client", "prometheus")
        self._metrics = metrics

    def __repr__(self) -> str:
        return f"<PrometheusCollector of {self._metrics!r}>"

    def describe(self) -> Iterator[Any]:
        """Return all metrics without values: a registry reads nothing when it gets the collector, and knows the names."""
        return self._families(Readings())

    def collect(self) -> Iterator[Any]:
        """Return the metrics with their values now."""
        readings = read_from_any_thread(self._metrics, READ_TIMEOUT)
        return iter(()) if readings is None else self._families(readings)

    @staticmethod
    def _families(readings: Readings) -> Iterator[Any]:
        for metric in METRICS.values():
            family = _family(metric)
            if metric.kind == "histogram":
                for labels, histogram in sorted(readings.histograms[metric.name].items()):
                    family.add_metric(labels, _buckets(metric, histogram), histogram.sum)
            else:
                for labels, value in sorted(readings.numbers[metric.name].items()):
                    family.add_metric(labels, value)
            yield family


def _family(metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    families = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    # a unit has to be the last word of a name; prometheus_client would add it to others
    is_last = metric.full_name.removesuffix("_total").endswith(f"_{metric.unit}")
    unit = metric.unit if metric.unit and is_last else ""
    return families[metric.kind](metric.full_name, metric.help, labels=metric.labels, unit=unit)


def _buckets(metric: Metric, histogram: HistogramReading) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each with all values up to its bound."""
    bounds = [*map(str, metric.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


class MetricsPage:
    """The page `/metrics` of the metrics of clients, with memory, CPU time and open files of the process.

    Raises TelemetryUnavailable if prometheus_client is not installed.
    """

    def __init__(self, metrics: ClientMetrics) -> None:
        collector = PrometheusCollector(metrics)
        from prometheus_client import CollectorRegistry
        from prometheus_client.process_collector import ProcessCollector

        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    def __repr__(self) -> str:
        return "<MetricsPage>"

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return content type and page, in the format that the header Accept asks for: OpenMetrics, or Prometheus's text."""
        from prometheus_client.exposition import choose_encoder

        try:
            encode, content_type = choose_encoder(accept)
        except Exception:  # noqa: BLE001  it compares versions such as "abc" with numbers
            encode, content_type = choose_encoder("")
        return content_type, encode(self._registry)

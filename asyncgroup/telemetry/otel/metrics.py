"""OpenTelemetryMetrics: the metrics of clients as OpenTelemetry's instruments.

Counters and gauges are observed when a reader collects, from the same table and values as Prometheus's page. Histograms, which the
API cannot observe, are recorded for each fetch, commit, heartbeat and batch. Nothing is done for a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter

from asyncgroup.error_types import error_type
from asyncgroup.model import Batch, Record
from asyncgroup.telemetry.client_metrics import ClientMetrics
from asyncgroup.telemetry.metric_names import METRICS, Metric
from asyncgroup.telemetry.otel.semantic_names import CURRENT, SCOPE, system_of
from asyncgroup.telemetry.readings import LabelValues, Readings
from asyncgroup.telemetry.thread_reads import read_from_any_thread
from asyncgroup.version import __version__

if TYPE_CHECKING:
    from asyncgroup.model import BatchResult

__all__ = ["OpenTelemetryMetrics", "attribute_name", "instrument_name"]

_log = logging.getLogger("asyncgroup.telemetry")

_UNITS: Final = {"": "1", "records": "{record}", "bytes": "By", "seconds": "s"}

_ATTRIBUTES: Final = {
    "group": CURRENT.group,
    "topic": CURRENT.destination,
    "partition": CURRENT.partition,
    "error": CURRENT.error_type,
}
"""The attributes of labels that the semantic conventions name."""

_OPERATIONS: Final = {
    "fetch_seconds": ("kafka", "poll", "receive"),
    "commit_seconds": ("kafka", "commit", "settle"),
    "ack_seconds": ("pulsar", "ack", "settle"),
}
"""Histograms of the table that are durations of an operation in the semantic conventions: the system, its name and type."""

_BY_BATCH: Final = "send_seconds"
"""The histogram that is recorded with the topic instead, also for batches that fail."""

_BOUNDS: Final = METRICS[_BY_BATCH].bounds


class OpenTelemetryMetrics(ClientMetrics):
    """ClientMetrics that a meter provider's readers collect, by default the global provider's.

        metrics = OpenTelemetryMetrics()
        async with ConsumerGroup("localhost:9092", "orders", hooks=[metrics]) as group: ...

    Instruments have the names of the table without the suffixes that an export to Prometheus adds: `asyncgroup.lag_sum`,
    `asyncgroup.fetched` in bytes. Those of the semantic conventions are `messaging.client.operation.duration`
    (`send`, `poll`, `commit`), `messaging.process.duration` of batches, `messaging.client.sent.messages` and
    `messaging.client.consumed.messages`; those of topics of Pulsar have its operations (`send`, `receive`, `ack`). A reader's thread waits up to a second for the event loop; while that is blocked,
    nothing is observed. Give one object to all clients of a process: a second one of the same provider would repeat its series.
    Importing it raises TelemetryUnavailable if opentelemetry-api is not installed.
    """

    def __init__(self, meter_provider: MeterProvider | None = None, *, partitions: bool = False) -> None:
        super().__init__(partitions=partitions)
        self._snapshots = _Snapshots(self)
        meter = get_meter(SCOPE, __version__, meter_provider, CURRENT.schema_url)
        self._durations: Histogram = _histogram(meter, CURRENT.client_duration, _BOUNDS)
        self._processing: Histogram = _histogram(meter, CURRENT.process_duration, _BOUNDS)
        self._histograms = self._make_histograms(meter)
        self._make_observed(meter)
        self._begun: dict[int, float] = {}  # loop times, by id() of batches
        self.listen(self._record)

    def close(self) -> None:
        """Observe and record nothing more; instruments of OpenTelemetry cannot be removed."""
        self._snapshots.close()
        self.listen(None)

    # --- observed at a collection -----------------------------------------------------------------------------------------

    def _make_observed(self, meter: Meter) -> None:
        for metric in METRICS.values():
            if metric.kind == "histogram" or (metric.per_partition and not self._partitions):
                continue
            make: Callable[..., object] = meter.create_observable_gauge
            if metric.kind == "counter":
                make = meter.create_observable_counter
            elif metric.combine == "sum":
                make = meter.create_observable_up_down_counter
            observe = partial(self._observe, metric)
            make(instrument_name(metric), [observe], _UNITS[metric.unit], metric.help)
        make = meter.create_observable_counter
        make(
            CURRENT.consumed_messages, [self._observe_consumed], "{message}", "Messages that were delivered."
        )
        make(CURRENT.sent_messages, [self._observe_sent], "{message}", "Messages that were sent, or failed.")

    def _observe(self, metric: Metric, _: CallbackOptions) -> Iterable[Observation]:
        names = [attribute_name(label) for label in metric.labels]
        values = self._snapshots.values(metric.name, metric.name)
        return [Observation(value, dict(zip(names, labels, strict=True))) for labels, value in values.items()]

    def _observe_consumed(self, _: CallbackOptions) -> Iterable[Observation]:
        values = self._snapshots.values(CURRENT.consumed_messages, "records_consumed_total")
        for (group, topic), count in values.items():
            system = system_of(topic)
            attributes = _operation("poll" if system == "kafka" else "receive", system)
            yield Observation(count, attributes | {CURRENT.group: group, CURRENT.destination: topic})

    def _observe_sent(self, _: CallbackOptions) -> Iterable[Observation]:
        reader = CURRENT.sent_messages
        for (topic,), count in self._snapshots.values(reader, "records_sent_total").items():
            yield Observation(count, _operation("send", system_of(topic)) | {CURRENT.destination: topic})
        for (topic, error), count in self._snapshots.values(
            f"{reader} failed", "record_errors_total"
        ).items():
            attributes = {CURRENT.destination: topic, CURRENT.error_type: error}
            yield Observation(count, _operation("send", system_of(topic)) | attributes)

    # --- recorded when it happens -----------------------------------------------------------------------------------------

    def _make_histograms(self, meter: Meter) -> Mapping[str, tuple[Histogram, dict[str, str]]]:
        """Return what each histogram of the table is recorded in, and with which attributes besides its labels."""
        found = {}
        for metric in METRICS.values():
            if metric.kind != "histogram" or metric.name == _BY_BATCH:
                continue
            if metric.name in _OPERATIONS:
                system, name, kind = _OPERATIONS[metric.name]
                found[metric.name] = (
                    self._durations,
                    _operation(name, system) | {CURRENT.operation_type: kind},
                )
            else:
                histogram = meter.create_histogram(
                    instrument_name(metric),
                    _UNITS[metric.unit],
                    metric.help,
                    explicit_bucket_boundaries_advisory=metric.bounds,
                )
                found[metric.name] = histogram, {}
        return found

    def _record(self, name: str, value: float, labels: LabelValues) -> None:
        if name in self._histograms:
            histogram, attributes = self._histograms[name]
            named = zip(map(attribute_name, METRICS[name].labels), labels, strict=True)
            histogram.record(value, attributes | dict(named))

    def on_batch_done(self, batch: BatchResult, *rest: object) -> None:
        """Count the records of a batch, and record its duration."""
        super().on_batch_done(batch, *rest)
        attributes = _operation("send", system_of(batch.topic))
        attributes |= {CURRENT.operation_type: "send", CURRENT.destination: batch.topic}
        if batch.error is not None:
            attributes[CURRENT.error_type] = error_type(batch.error)
        if not self._snapshots.is_closed:
            self._durations.record(batch.latency, attributes)

    def wants_records(self) -> bool:
        """Return False: the processing of single records is not measured."""
        return False

    def on_process_start(self, group_id: str, records: Record | Batch, *_: object) -> None:  # noqa: ARG002
        """The processing of a batch begins."""
        if isinstance(records, Batch) and not self._snapshots.is_closed:
            self._begun[id(records)] = asyncio.get_running_loop().time()

    def on_process_end(
        self, group_id: str, records: Record | Batch, error: BaseException | None, *_: object
    ) -> None:
        """The processing of a batch has ended."""
        if (begun := self._begun.pop(id(records), None)) is None:
            return
        attributes = _operation("process", "kafka") | {CURRENT.destination: records.topic}
        if group_id:
            attributes[CURRENT.group] = group_id
        if isinstance(error, Exception):
            attributes[CURRENT.error_type] = error_type(error)
        self._processing.record(asyncio.get_running_loop().time() - begun, attributes)


class _Snapshots:
    """The values of one collection: all instruments of it get those of the same moment.

    Readers collect each instrument once; the first one that is asked for again begins the next collection.
    """

    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics
        self._lock = Lock()  # collections of several readers, in their threads
        self._asked: set[str] = set()
        self._readings: Readings | None = None
        self.is_closed = False

    def close(self) -> None:
        """Return nothing from now on."""
        self.is_closed = True

    def values(self, asker: str, name: str) -> Mapping[LabelValues, float]:
        """Return the values of a metric for an instrument; none while they cannot be read."""
        if self.is_closed:
            return {}
        with self._lock:
            if not self._asked or asker in self._asked:
                self._asked.clear()
                self._readings = self._read()
            self._asked.add(asker)
            return {} if self._readings is None else self._readings.numbers[name]

    def _read(self) -> Readings | None:
        readings = read_from_any_thread(self._metrics)
        if readings is None:
            _log.warning("the event loop is blocked: metrics are not observed now")
        return readings


def instrument_name(metric: Metric) -> str:
    """Return the name of a metric's instrument: an export to Prometheus adds the suffixes of the unit and of counters."""
    name = metric.name.removesuffix("_total")
    return "asyncgroup." + (
        name.removesuffix(f"_{metric.unit}") if metric.unit in {"bytes", "seconds"} else name
    )


def attribute_name(label: str) -> str:
    """Return the attribute that stands for a label of the table."""
    return _ATTRIBUTES.get(label, f"asyncgroup.{label}")


def _operation(name: str, system: str) -> dict[str, str]:
    return {CURRENT.system: system, CURRENT.operation_name: name}


def _histogram(meter: Meter, name: str, bounds: tuple[float, ...]) -> Any:
    text = "Duration of processing." if name == CURRENT.process_duration else "Duration of an operation."
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=bounds)

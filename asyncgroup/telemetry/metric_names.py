"""The metrics of asyncgroup in one table: name, type, unit, labels, and what each one says.

Prometheus, OpenTelemetry and the guide's page read this table. Names follow Prometheus's conventions: base units, counters end
with `_total`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

__all__ = ["METRICS", "PREFIX", "Metric"]

PREFIX: Final = "asyncgroup_"
"""What each name begins with."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` is without the prefix."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: Literal["", "records", "bytes", "seconds"]
    labels: tuple[str, ...]
    help: str
    """One sentence."""
    combine: Literal["sum", "max", "min"] = "sum"
    """The value of a gauge for several clients with the same labels."""
    bounds: tuple[float, ...] = ()
    """Upper limits of a histogram's buckets, each included; above the last one is one more bucket."""
    per_partition: bool = False
    """Whether it is left out unless `ClientMetrics(partitions=True)` asks for it."""

    @property
    def full_name(self) -> str:
        """The name with the prefix, as on a page of Prometheus."""
        return PREFIX + self.name

    def bucket(self, value: float) -> int:
        """Return the index of the bucket of a value; `len(bounds)` above the last bound."""
        return bisect_left(self.bounds, value)


_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LONG_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0, 90.0, 300.0)
_RECORDS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)

_GROUP: Final = ("group",)
_PARTITION: Final = ("group", "topic", "partition")

_TABLE: Final[Sequence[Metric]] = (
    # --- consumer groups, also those of work queues
    Metric(
        "records_consumed_total",
        "counter",
        "records",
        ("group", "topic"),
        "Records that handlers were given, of Pulsar messages that have arrived; one that is read again after a seek counts again.",
    ),
    Metric(
        "bytes_consumed_total",
        "counter",
        "bytes",
        ("group", "topic"),
        "Wire bytes of the record batches that were delivered to their last record, of Pulsar of the entries that have arrived.",
    ),
    Metric("lag_sum", "gauge", "records", _GROUP, "Sum of the lags of the member's claims."),
    Metric("lag_max", "gauge", "records", _GROUP, "Largest lag of a claim of the member.", "max"),
    Metric(
        "lag",
        "gauge",
        "records",
        _PARTITION,
        "Offsets from a claim's position to the high watermark, with read_committed to the last stable offset.",
        per_partition=True,
    ),
    Metric("assigned_partitions", "gauge", "", _GROUP, "Claims that the member has."),
    Metric(
        "stalled_claims",
        "gauge",
        "",
        _GROUP,
        "Claims whose handler read nothing for max_processing_time while records waited.",
    ),
    Metric("paused_claims", "gauge", "", _GROUP, "Claims that the user paused."),
    Metric("buffer_bytes", "gauge", "bytes", _GROUP, "Wire bytes that are fetched and not delivered yet."),
    Metric(
        "healthy",
        "gauge",
        "",
        _GROUP,
        "1 if health() has no problems, else 0; also of a work queue.",
        "min",
    ),
    Metric(
        "heartbeat_age_seconds",
        "gauge",
        "seconds",
        _GROUP,
        "Seconds since the coordinator last answered a heartbeat.",
        "max",
    ),
    Metric(
        "heartbeat_seconds",
        "histogram",
        "seconds",
        _GROUP,
        "Seconds from a heartbeat to its answer.",
        bounds=_SECONDS,
    ),
    Metric("commits_total", "counter", "", _GROUP, "Commits that were answered or failed."),
    Metric(
        "commit_failures_total",
        "counter",
        "",
        ("group", "error"),
        "Partitions of which a commit failed, by the error's name.",
    ),
    Metric(
        "rebalances_total",
        "counter",
        "",
        ("group", "cause"),
        "Sessions that ended, by the name of the cause; as Incremental also joins of the classic protocol during a session.",
    ),
    Metric(
        "rebalance_seconds",
        "histogram",
        "seconds",
        _GROUP,
        "Seconds from the end of a session to the start of the next one, in which nothing is consumed.",
        bounds=_LONG_SECONDS,
    ),
    Metric(
        "member_stalls_total",
        "counter",
        "",
        ("group", "kind"),
        "Stalls of the member: event loop, claim, join, coordinator.",
    ),
    Metric(
        "loop_blocked_seconds_total",
        "counter",
        "seconds",
        _GROUP,
        "Seconds that the event loop was blocked, in blocks of a second or longer.",
    ),
    # --- all clients
    Metric("connections", "gauge", "", (), "Connections to brokers that are open."),
    Metric("connects_total", "counter", "", (), "Connections to brokers that were established."),
    Metric(
        "requests_total",
        "counter",
        "",
        ("api",),
        "Requests that were answered, by Kafka's name of the API, or Pulsar's of the command.",
    ),
    Metric(
        "throttled_seconds_total",
        "counter",
        "seconds",
        ("api",),
        "Seconds for which brokers throttled connections (KIP-219).",
    ),
    Metric(
        "fetch_seconds",
        "histogram",
        "seconds",
        (),
        "Seconds from a fetch to its answer; the broker waits for records for up to fetch_max_wait of it.",
        bounds=_SECONDS,
    ),
    Metric(
        "fetched_bytes_total",
        "counter",
        "bytes",
        (),
        "Bytes of compressed record batches in fetch answers, and of the entries that brokers of Pulsar have pushed.",
    ),
    Metric(
        "commit_seconds",
        "histogram",
        "seconds",
        (),
        "Seconds from an offset commit to its answer, also within a transaction.",
        bounds=_SECONDS,
    ),
    # --- producers
    Metric("records_sent_total", "counter", "records", ("topic",), "Records that were acknowledged."),
    Metric(
        "bytes_sent_total",
        "counter",
        "bytes",
        ("topic",),
        "Wire bytes of the batches that were acknowledged.",
    ),
    Metric(
        "record_errors_total",
        "counter",
        "records",
        ("topic", "error"),
        "Records that failed and are not retried, by the error's name.",
    ),
    Metric(
        "batch_records",
        "histogram",
        "records",
        (),
        "Records of a batch that was acknowledged.",
        bounds=_RECORDS,
    ),
    Metric(
        "send_seconds",
        "histogram",
        "seconds",
        (),
        "Seconds from the first record of a batch to its acknowledgement.",
        bounds=_SECONDS,
    ),
    Metric("producer_buffer_bytes", "gauge", "bytes", (), "Buffer memory of producers that is in use."),
    # --- producers and consumers of Pulsar, also those of work queues
    Metric(
        "acks_total",
        "counter",
        "",
        _GROUP,
        "Commands with acknowledgements that a broker of Pulsar has answered, or not in time.",
    ),
    Metric(
        "ack_failures_total",
        "counter",
        "",
        ("group", "error"),
        "Those of them that have failed and are sent again, by the error's name.",
    ),
    Metric(
        "ack_seconds",
        "histogram",
        "seconds",
        (),
        "Seconds from a command with acknowledgements to its answer.",
        bounds=_SECONDS,
    ),
    Metric(
        "attaches_total",
        "counter",
        "",
        ("role", "topic"),
        "Registrations of producers and consumers at a broker of Pulsar.",
    ),
    Metric(
        "detaches_total",
        "counter",
        "",
        ("role", "topic", "error"),
        "Losses of a broker, and registrations that failed, by the error's name; another attempt follows.",
    ),
    Metric(
        "attached_partitions",
        "gauge",
        "",
        ("group", "topic"),
        "Partitions whose consumer is registered at a broker of Pulsar; a topic without partitions is one.",
    ),
    Metric(
        "detached_partitions",
        "gauge",
        "",
        ("group", "topic"),
        "Partitions whose consumer has no broker now.",
    ),
    Metric(
        "open_permits",
        "gauge",
        "records",
        ("group", "topic"),
        "Messages that brokers of Pulsar may push to the consumers now.",
    ),
    Metric(
        "attach_seconds",
        "histogram",
        "seconds",
        ("role",),
        "Seconds from the first attempt, or from the loss of the broker, to the registration.",
        bounds=_LONG_SECONDS,
    ),
    Metric(
        "transactions_started_total",
        "counter",
        "",
        (),
        "Transactions of Pulsar that have begun.",
    ),
    Metric(
        "transactions_total",
        "counter",
        "",
        ("outcome",),
        "Transactions of Pulsar that have ended: committed, aborted, timed out, unknown (the commit got no answer).",
    ),
    Metric(
        "transaction_seconds",
        "histogram",
        "seconds",
        ("outcome",),
        "Seconds from the begin of a transaction of Pulsar to its end.",
        bounds=_SECONDS,
    ),
    # --- work queues
    Metric(
        "deliveries_total",
        "counter",
        "records",
        ("group", "outcome"),
        "What became of deliveries: acknowledged, nacked, expired, retry, dead letter. A copy comes after a nack, which counts as well.",
    ),
    Metric(
        "deliveries_started_total",
        "counter",
        "records",
        _GROUP,
        "Deliveries that began, repeated ones included.",
    ),
    Metric(
        "dead_letters_total",
        "counter",
        "records",
        _GROUP,
        "Records that were copied to the dead letter topic.",
    ),
    Metric("acquired", "gauge", "records", _GROUP, "Deliveries that are open."),
    Metric(
        "oldest_open_seconds",
        "gauge",
        "seconds",
        _GROUP,
        "Seconds for which the longest open delivery is open, since the first reading of the metrics that saw it.",
        "max",
    ),
    Metric("queued", "gauge", "records", _GROUP, "Records that have arrived and are not delivered yet."),
    Metric("waiting", "gauge", "records", _GROUP, "Records that wait for the end of a delay."),
    Metric("busy_handlers", "gauge", "", _GROUP, "Handlers of a work queue that run."),
    Metric(
        "queue_lag",
        "gauge",
        "records",
        _GROUP,
        "Offsets up to the high watermark that are not acknowledged; on Pulsar messages that have arrived and are not.",
    ),
    Metric(
        "window_bytes",
        "gauge",
        "bytes",
        _PARTITION,
        "Bytes of the acknowledged offsets in the metadata of the last commit; Kafka's limit is 4,096.",
        per_partition=True,
    ),
    Metric(
        "window_bytes_max",
        "gauge",
        "bytes",
        _GROUP,
        "The largest of them among the partitions of the queue.",
        "max",
    ),
)

METRICS: Final = MappingProxyType({metric.name: metric for metric in _TABLE})
"""All metrics, by name without the prefix, in the order of the guide."""

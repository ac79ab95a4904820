"""What a metric's reader asks of an open client: the values of `health()` and `statistics()` as gauges and counters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from asyncgroup.group.sessions.claim import claim_counts
from asyncgroup.telemetry.readings import Readings

if TYPE_CHECKING:
    from asyncgroup.group.health.health import Health
    from asyncgroup.group.sessions.claim import Claim
    from asyncgroup.pulsar.core import CountedConsumer
    from asyncgroup.workqueue.statistics import QueueCounts, QueueStatistics

__all__ = ["read_claim", "read_consumers", "read_counts", "read_health", "read_queue"]


def read_health(readings: Readings, health: Health) -> None:
    """Add the gauges of an open group member, with zeros for one without claims."""
    group = health.group_id
    readings.gauge("healthy", int(health.is_healthy), group)
    if health.last_heartbeat is not None:
        readings.gauge("heartbeat_age_seconds", health.last_heartbeat, group)
    for name in (
        "assigned_partitions",
        "stalled_claims",
        "paused_claims",
        "lag_sum",
        "lag_max",
        "buffer_bytes",
    ):
        readings.gauge(name, 0, group)


def read_claim(readings: Readings, group: str, claim: Claim, *, partitions: bool) -> None:
    """Add what a claim has delivered, and its gauges unless it has ended; its lag by partition if that is wanted."""
    counts = claim_counts(claim)
    readings.add("records_consumed_total", counts.records, group, claim.topic)
    readings.add("bytes_consumed_total", counts.size, group, claim.topic)
    if claim.ended:
        return
    readings.gauge("assigned_partitions", 1, group)
    readings.gauge("stalled_claims", int(claim.stalled), group)
    readings.gauge("paused_claims", int(claim.paused), group)
    readings.gauge("buffer_bytes", counts.buffered, group)
    if claim.high_watermark >= 0:  # else nothing was fetched yet
        readings.gauge("lag_sum", claim.lag, group)
        readings.gauge("lag_max", claim.lag, group)
        if partitions:
            readings.gauge("lag", claim.lag, group, claim.topic, str(claim.partition))


def read_queue(readings: Readings, group: str, statistics: QueueStatistics, *, partitions: bool) -> None:
    """Add the gauges and counts of an open work queue."""
    read_counts(readings, group, statistics.counts)
    readings.gauge("acquired", statistics.acquired, group)
    readings.gauge("oldest_open_seconds", statistics.open_for, group)
    readings.gauge("queued", statistics.queued, group)
    readings.gauge("waiting", statistics.waiting, group)
    readings.gauge("busy_handlers", statistics.handlers, group)
    readings.gauge("queue_lag", statistics.lag, group)
    readings.gauge("window_bytes_max", 0, group)
    for each in statistics.partitions:
        readings.gauge("window_bytes_max", each.metadata_bytes, group)
        if partitions:
            labels = (group, each.tp.topic, str(each.tp.partition))
            readings.gauge("window_bytes", each.metadata_bytes, *labels)


def read_counts(readings: Readings, group: str, counts: QueueCounts) -> None:
    """Add the counts of a work queue, also of one that is closed."""
    readings.add("deliveries_started_total", counts.delivered, group)
    readings.add("dead_letters_total", counts.dead_lettered, group)
    for outcome, count in (
        ("acknowledged", counts.acked),
        ("nacked", counts.nacked),
        ("expired", counts.expired),
        ("retry", counts.reconsumed),
        ("dead letter", counts.dead_lettered),
    ):
        readings.add("deliveries_total", count, group, outcome)


def read_consumers(readings: Readings, consumers: Iterable[CountedConsumer]) -> None:
    """Add the gauges of the consumers of a client of Pulsar, also those of its queues."""
    for consumer in consumers:
        labels = consumer.subscription, str(consumer.topic.whole)
        readings.gauge("attached_partitions", int(consumer.is_attached), *labels)
        readings.gauge("detached_partitions", int(not consumer.is_attached), *labels)
        readings.gauge("open_permits", consumer.open_permits, *labels)

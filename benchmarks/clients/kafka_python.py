"""Cases with kafka-python."""

from __future__ import annotations

from kafka import KafkaConsumer

from benchmarks.clients import (
    AUTO_COMMIT_SECONDS,
    BATCH_RECORDS,
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT,
    PARTITION_MAX_BYTES,
    Settings,
)
from benchmarks.meter import Laps, Meter

__all__ = ["iterate", "poll"]


def _consumer(settings: Settings) -> KafkaConsumer:
    return KafkaConsumer(
        settings.topic,
        bootstrap_servers=settings.bootstrap_servers,
        group_id=settings.group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=True,
        auto_commit_interval_ms=int(AUTO_COMMIT_SECONDS * 1000),
        fetch_max_bytes=FETCH_MAX_BYTES,
        max_partition_fetch_bytes=PARTITION_MAX_BYTES,
        fetch_max_wait_ms=int(FETCH_MAX_WAIT * 1000),
        max_poll_records=BATCH_RECORDS,
    )


def poll(settings: Settings, meter: Meter) -> None:
    """Batches of up to `BATCH_RECORDS` records, by `poll`."""
    consumer = _consumer(settings)
    try:
        while not meter.finished:
            count = size = 0
            for records in consumer.poll(timeout_ms=1000).values():
                for record in records:
                    size += len(record.key or b"") + len(record.value or b"")
                count += len(records)
            if count:
                meter.add(count, size)
    finally:
        consumer.close()


def iterate(settings: Settings, meter: Meter) -> None:
    """One record at a time, by `for`."""
    consumer = _consumer(settings)
    laps = Laps(meter, settings.records)
    left, size = laps.first, 0
    try:
        for record in consumer:
            size += len(record.key or b"") + len(record.value or b"")
            left -= 1
            if not left:
                left, size = laps.next(size), 0
                if not left:
                    break
    finally:
        consumer.close()

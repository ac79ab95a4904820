"""Cases with kafka-python."""

from __future__ import annotations

from kafka import KafkaConsumer

from benchmarks.clients import BATCH_RECORDS, Settings, consumer_options
from benchmarks.meter import Laps, Meter

__all__ = ["iterate", "poll"]


def _consumer(settings: Settings) -> KafkaConsumer:
    return KafkaConsumer(settings.topic, **consumer_options(settings), max_poll_records=BATCH_RECORDS)


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

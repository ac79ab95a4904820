"""kafka-python: a thread sends; `send` returns a future. In the concurrent mode many of them are not done at a time."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any, Final

from kafka import KafkaProducer

from benchmarks.produce.load import Load

__all__ = ["run"]

ACK_SECONDS: Final = 60.0


def _producer(load: Load) -> KafkaProducer:
    settings = load.settings
    return KafkaProducer(
        bootstrap_servers=settings.bootstrap_servers,
        enable_idempotence=True,
        compression_type=load.codec,
        linger_ms=round(load.linger * 1000),
        batch_size=settings.batch_bytes,
    )


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Write for the given time; return the figures."""
    load = Load(given)
    topic, headers = load.settings.topic, load.headers
    producer = _producer(load)
    producer.send(topic, load.values[0], headers=headers).get(ACK_SECONDS)
    if load.settings.mode == "stopped":
        _fill(producer, load)
    load.begin()
    if load.settings.mode == "bulk":
        for values in load.steps():
            for value in values:
                producer.send(topic, value, headers=headers)
    else:
        _write_in_window(producer, load)
    producer.flush(ACK_SECONDS)
    figures = load.end()
    producer.close()
    return figures


def _write_in_window(producer: KafkaProducer, load: Load) -> None:
    topic, headers, values = load.settings.topic, load.headers, load.values
    window = load.settings.callers if load.settings.mode == "concurrent" else 1
    places = threading.Semaphore(window)

    def acknowledged(sent_at: float, _: Any) -> None:
        load.latencies.append(time.perf_counter() - sent_at)
        places.release()

    written, end = 0, time.perf_counter() + load.settings.seconds
    while (now := time.perf_counter()) < end:
        if not places.acquire(timeout=ACK_SECONDS):
            raise RuntimeError("a record was not acknowledged")
        future = producer.send(topic, values[written % len(values)], headers=headers)
        future.add_callback(partial(acknowledged, now))
        written += 1
    load.records += written


def _fill(producer: KafkaProducer, load: Load) -> None:
    load.wait_for_stop()
    load.begin()
    for values in load.steps():
        for value in values:
            producer.send(load.settings.topic, value)
    load.report_memory()

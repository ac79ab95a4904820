"""confluent-kafka: Producer with delivery callbacks, and AIOProducer, which refuses headers.

In the concurrent mode Producer keeps as many records unacknowledged as the others have callers.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.aio import AIOProducer

from benchmarks.produce.load import STEP, Load, Target

__all__ = ["run", "run_aio"]

POLL_SECONDS: Final = 0.01
FLUSH_SECONDS: Final = 60.0


def _config(load: Load) -> dict[str, Any]:
    settings = load.settings
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "enable.idempotence": True,
        "compression.type": settings.codec,
        "linger.ms": load.linger * 1000,
        "batch.size": settings.batch_bytes,
        # by default a batch has at most 10,000 messages, and the queue at most 100,000
        "batch.num.messages": 1_000_000,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": settings.buffer_bytes >> 10,
    }


def _check(error: Any, _: Any = None) -> None:
    if error is not None:
        raise RuntimeError(str(error))


class _Writer:
    """Produces values of one topic; waits while the queue is full."""

    def __init__(self, load: Load) -> None:
        self.producer = Producer(_config(load))
        self._load = load
        self._topic = load.settings.topic
        self._headers: Any = load.headers or None
        self.acknowledged = 0

    def write(self, value: bytes, on_delivery: Any = _check, target: Target | None = None) -> None:
        topic, key, partition = target or Target(self._topic)
        options = {"headers": self._headers, "on_delivery": on_delivery}
        if partition is not None:
            options["partition"] = partition
        while True:
            try:
                self.producer.produce(topic, value, key, **options)
                return
            except BufferError:  # librdkafka's queue is full
                self.producer.poll(POLL_SECONDS)

    def _on_delivery(self, sent_at: float, error: Any, _: Any) -> None:
        _check(error)
        self.acknowledged += 1
        self._load.latencies.append(time.perf_counter() - sent_at)

    def write_timed(self, value: bytes) -> None:
        self.write(value, partial(self._on_delivery, time.perf_counter()))

    def flush(self) -> None:
        if left := self.producer.flush(FLUSH_SECONDS):
            raise RuntimeError(f"{left} records were not written")


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Write for the given time; return the figures."""
    load = Load(given)
    writer = _Writer(load)
    for name in load.topics:
        writer.write(load.values[0], target=Target(name))
    writer.flush()
    if load.settings.mode == "stopped":
        _fill(writer, load)
    load.begin()
    if load.settings.mode == "bulk":
        for values in load.steps():
            for value in values:
                writer.write(value)
            writer.producer.poll(0)
    elif load.is_spread:
        for pairs in load.spread_steps():
            for value, target in pairs:
                writer.write(value, target=target)
            writer.producer.poll(0)
    else:
        _write_in_window(writer, load)
    writer.flush()
    return load.end()


def _write_in_window(writer: _Writer, load: Load) -> None:
    window = load.settings.callers if load.settings.mode == "concurrent" else 1
    written, poll = 0, writer.producer.poll
    end = time.perf_counter() + load.settings.seconds
    while time.perf_counter() < end:
        if written - writer.acknowledged < window:
            writer.write_timed(load.values[written % STEP])
            written += 1
            if written % STEP == 0:
                poll(0)
        else:
            poll(POLL_SECONDS)
    load.records += written


def _fill(writer: _Writer, load: Load) -> None:
    load.wait_for_stop()
    load.begin()
    end = time.perf_counter() + load.settings.seconds
    while time.perf_counter() < end:
        try:
            for value in load.values:
                writer.producer.produce(load.settings.topic, value, on_delivery=_check)
                load.records += 1
        except BufferError:
            writer.producer.poll(POLL_SECONDS)
    load.report_memory()


async def run_aio(given: dict[str, Any]) -> dict[str, Any]:
    """Write with AIOProducer, whose `produce` returns a future of the acknowledgement."""
    load = Load(given)
    topic = load.settings.topic
    # it passes a buffer of 1,000 messages to librdkafka when it is full, or after this time without activity
    producer = AIOProducer(_config(load), buffer_timeout=max(load.linger, 0.001))

    async def write(value: bytes) -> None:
        await (await producer.produce(topic, value))

    await write(load.values[0])
    load.begin()
    if load.settings.mode == "bulk":
        for values in load.steps():
            for value in values:
                await producer.produce(topic, value)
        await producer.flush()
    else:
        await load.call_concurrently(write)
    figures = load.end()
    await producer.close()
    return figures

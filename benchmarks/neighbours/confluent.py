"""confluent-kafka: one poll loop; the slow partition has a thread and a queue, and is paused while the queue is full.

Without them it would block the other partition, because a consumer has one queue for all partitions.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.neighbours.meters import Meters, PartitionMeter, Settings

__all__ = ["run"]

BATCH_RECORDS: Final = 500
POLL_SECONDS: Final = 0.1
QUEUED: Final = 1000
"""Records in the slow handler's queue at which its partition is paused; it resumes when half of them are left."""


class _Slow:
    """The slow partition: handles its records on a thread, and pauses and resumes the partition."""

    def __init__(self, consumer: Consumer, meter: PartitionMeter, settings: Settings) -> None:
        self._consumer = consumer
        self._meter = meter
        self._settings = settings
        self._partition = TopicPartition(settings.watched, 1)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_paused = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._handle)
        self._thread.start()

    def _handle(self) -> None:
        while self._settings.every and not self._stopped.is_set():
            if self._waiting.get() is not None:
                self._meter.add(1)
                self._stopped.wait(self._settings.pause)

    def put(self, message: Any) -> None:
        self._waiting.put(message)

    def balance(self) -> None:
        """Pause or resume the partition, depending on the length of its queue."""
        waiting = self._waiting.qsize()
        if not self._is_paused and waiting >= QUEUED:
            self._is_paused = True
            self._consumer.pause([self._partition])
        elif self._is_paused and waiting < QUEUED // 2:
            self._is_paused = False
            self._consumer.resume([self._partition])

    def stop(self) -> None:
        self._stopped.set()
        self._waiting.put(None)
        self._thread.join()


def _consumer(settings: Settings) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "group.id": settings.group_id,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": settings.fetch_bytes,
            # by default librdkafka stops fetching at 100,000 messages and checks again after 1 s
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 10,
        }
    )


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Run one group member until the end of the window."""
    meters = Meters(settings := Settings(**given))
    consumer = _consumer(settings)
    consumer.subscribe(settings.topics)
    slow = _Slow(consumer, meters.slow, settings)
    try:
        if settings.every > 1:
            _read_batches(consumer, meters)
        else:
            _read(consumer, meters, slow)
        return meters.figures()
    finally:
        slow.stop()
        consumer.close()


def _read(consumer: Consumer, meters: Meters, slow: _Slow) -> None:
    while not meters.check_over():
        fast = 0
        for message in consumer.consume(BATCH_RECORDS, POLL_SECONDS):
            if message.error() is not None:
                raise KafkaException(message.error())
            if message.partition():
                slow.put(message)
            else:
                fast += 1
        if fast:
            meters.fast.add(fast)
        slow.balance()


def _read_batches(consumer: Consumer, meters: Meters) -> None:
    pause = threading.Event()
    size = meters.settings.every
    gathered = 0
    while not meters.check_over():
        gathered += len(consumer.consume(size - gathered, POLL_SECONDS))
        if gathered == size:
            meters.fast.add(size)
            gathered = 0
            pause.wait(meters.settings.pause)

"""The records whose latency is measured: a producer in a separate process, and the meter of the process that reads them.

A value begins with the record's number and the time at which it was sent, by a clock that both processes share.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.common import ROOT

__all__ = ["HEAD", "LATE", "LatencyMeter", "Settings", "produce"]

HEAD: Final = struct.Struct(">qq")
"""A record's number, and the nanoseconds at which it was sent."""
TICK: Final = 0.001
"""Seconds between two looks of the producer for records that are due."""
LATE: Final = 10.0
"""Seconds after the last record was due at which a consumer that lacks some stops."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process: `rate` records a second of `size` bytes for `warm_up` and then `seconds` seconds."""

    bootstrap_servers: str
    topic: str
    group_id: str
    partitions: int
    rate: int
    size: int
    warm_up: float
    seconds: float

    @property
    def first(self) -> int:
        """The number of the first record that is measured."""
        return round(self.rate * self.warm_up)

    @property
    def records(self) -> int:
        """The records that are measured."""
        return round(self.rate * self.seconds)


class LatencyMeter:
    """Measures the records that a consumer hands to `add`; `start` begins to produce them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.latencies: list[float] = []  # milliseconds
        self.finished = False
        self._limit = float("inf")  # by the monotonic clock
        self._cpu: tuple[float, float] | None = None  # at the first and at the last measured record
        self._producer: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the producer's process: the consumer has its partitions."""
        if self._producer is not None:
            return
        settings = json.dumps(asdict(self.settings))
        command = [sys.executable, "-m", "benchmarks.worker", "benchmarks.latency.load:produce", settings]
        self._producer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        whole = self.settings.warm_up + self.settings.seconds
        self._limit = time.monotonic() + whole + LATE

    def add(self, value: bytes) -> bool:
        """Count a record; return False if no more are needed."""
        now = time.monotonic_ns()
        number, sent_at = HEAD.unpack_from(value)
        if number < self.settings.first:
            return True
        self.latencies.append((now - sent_at) / 1e6)
        if self._cpu is None:
            self._cpu = time.process_time(), 0.0
        self.finished = len(self.latencies) >= self.settings.records
        return not self.finished

    @property
    def is_late(self) -> bool:
        """Whether records are missing that should have arrived long ago."""
        return time.monotonic() > self._limit

    def stop(self) -> dict[str, float]:
        """End the producer, and return the figures."""
        cpu = time.process_time() - self._cpu[0] if self._cpu else 0.0
        if self._producer is not None:
            self._producer.wait(LATE + self.settings.warm_up + self.settings.seconds)
        ordered = sorted(self.latencies) or [0.0]
        return {
            "records": len(self.latencies),
            "p50": statistics.median(ordered),
            "p99": ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))],
            "cpu_seconds": cpu,
        }


async def produce(given: dict[str, Any]) -> dict[str, float]:
    """Send the records at an even rate, each to the next partition."""
    from asyncgroup import Producer, ProducerConfig

    settings = Settings(**given)
    total, padding = settings.first + settings.records, b"x" * (settings.size - HEAD.size)
    async with Producer(settings.bootstrap_servers, ProducerConfig(linger=0.0)) as producer:
        begun, sent = time.monotonic(), 0
        while sent < total:
            due = min(total, int((time.monotonic() - begun) * settings.rate) + 1)
            for number in range(sent, due):
                value = HEAD.pack(number, time.monotonic_ns()) + padding
                await producer.enqueue(settings.topic, value, partition=number % settings.partitions)
            sent = due
            await asyncio.sleep(TICK)
        await producer.flush()
    return {"sent": sent}

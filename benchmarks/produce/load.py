"""What a measured producer writes, and its stopwatch; used in the producers' processes.

The values come from a file, so that all clients write the same ones.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.memory.peak import peak_bytes
from benchmarks.produce.cases import SPREAD_MODES

__all__ = ["HEADERS", "KEYS", "STEP", "Load", "Settings", "Target"]

STEP: Final = 500
"""Records between two looks at the clock in a loop without an `await` for each acknowledgement."""

KEYS: Final = 5000
"""Different keys in the mode "keyed"."""

HEADERS: Final = [
    ("trace-id", b"4bf92f3577b34da6a3ce929d0e0e4736"),
    ("content-type", b"application/json"),
    ("source", b"benchmark"),
]
"""The headers of each record in the cases with headers."""


class Target(NamedTuple):
    """Where a record goes in the modes of `cases.SPREAD_MODES`."""

    topic: str
    key: bytes | None = None
    partition: int | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured producer: it writes for `seconds`, in one of the modes of `cases.MODES`."""

    bootstrap_servers: str
    topic: str
    mode: str
    values: str
    """Path of a file with values of `size` bytes each."""
    size: int
    codec: str
    headers: bool
    seconds: float
    callers: int
    batch_bytes: int
    linger: float | None
    """Seconds; None: asyncgroup's default, and none for the others."""
    buffer_bytes: int
    partitions: int = 1
    """The number of partitions of each topic."""
    topics: Sequence[str] = ()
    """All topics in the mode "topics", which begin with `topic`."""


class Load:
    """The values to write, and what was measured. The clock starts with `begin`, after the first acknowledgement."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.settings = Settings(**given)
        data, size = Path(self.settings.values).read_bytes(), self.settings.size
        self.values: Final = [data[start : start + size] for start in range(0, len(data), size)]
        """At least `STEP` values."""
        self.headers = HEADERS if self.settings.headers else []
        self.topics: Final = self.settings.topics or [self.settings.topic]
        """The topics to write to, a record to each before the clock starts."""
        self.batches: int | None = None
        """Record batches that were written, if the client says so."""
        self.latencies: list[float] = []
        """Seconds from sending to the acknowledgement, one for each record in the modes that wait."""
        self.records = len(self.topics)
        """Records written, including the first ones, which are not measured."""
        self.is_over = False
        self._started_at = self._end_at = self._cpu = 0.0
        self._figures: dict[str, Any] = {}

    @property
    def codec(self) -> str | None:
        """The codec, None for none."""
        return None if self.settings.codec == "none" else self.settings.codec

    @property
    def linger(self) -> float:
        """Seconds that other clients than asyncgroup linger."""
        return self.settings.linger or 0.0

    @property
    def is_spread(self) -> bool:
        """Whether `spread_steps` says where each record goes."""
        return self.settings.mode in SPREAD_MODES

    def begin(self) -> None:
        """Start the clock."""
        gc.collect()
        self._cpu = time.process_time()
        self._started_at = time.perf_counter()
        self._end_at = self._started_at + self.settings.seconds

    def steps(self) -> Iterator[list[bytes]]:
        """Yield lists of `STEP` values, and count them, until the time has passed."""
        place = 0
        while time.perf_counter() < self._end_at:
            self.records += STEP
            yield self.values[place : place + STEP]
            place = (place + STEP) % (len(self.values) - STEP + 1)

    def spread_steps(self) -> Iterator[list[tuple[bytes, Target]]]:
        """Yield lists as `steps` does, of a value and its target each."""
        targets = itertools.cycle(self._targets())
        for values in self.steps():
            yield list(zip(values, targets, strict=False))

    def _targets(self) -> list[Target]:
        topic, mode = self.settings.topic, self.settings.mode
        if mode == "keyed":
            return [Target(topic, b"key-%d" % number) for number in range(KEYS)]
        if mode == "partition":
            return [Target(topic, None, number) for number in range(self.settings.partitions)]
        return [Target(name) for name in self.topics]

    async def call(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """Await `send(value)` in a loop until the time has passed, but at least twice: one latency has no quantiles."""
        clock, end, latencies = time.perf_counter, self._end_at, self.latencies
        values = self.values
        while (start := clock()) < end or len(latencies) < 2:
            await send(values[len(latencies) % len(values)])
            latencies.append(clock() - start)

    async def call_concurrently(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """Run `call` in as many tasks as the mode has callers."""
        callers = self.settings.callers if self.settings.mode == "concurrent" else 1
        await asyncio.gather(*(self.call(send) for _ in range(callers)))
        self.records += len(self.latencies)

    def end(self) -> dict[str, Any]:
        """Stop the clock: everything is acknowledged. Return the figures."""
        seconds = time.perf_counter() - self._started_at
        figures = {
            "records": self.records,
            "seconds": seconds,
            "cpu_seconds": time.process_time() - self._cpu,
        }
        if self.batches is not None:
            figures["batches"] = self.batches
        if len(self.latencies) > 1:
            cuts = statistics.quantiles(self.latencies, n=100)
            figures |= {"p50": cuts[49], "p99": cuts[98]}
        return figures

    # --- a stopped broker ------------------------------------------------------------------------------------------

    def wait_for_stop(self) -> None:
        """Say that the producer is connected, and wait until the broker is stopped."""
        print("ready", flush=True)
        sys.stdin.readline()
        self._before = peak_bytes()

    async def fill(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Wait for the stop, await `write(value)` for the given time, and report the memory; does not return."""
        self.wait_for_stop()
        self.begin()
        try:
            async with asyncio.timeout(self.settings.seconds):
                for values in self.steps():
                    for value in values:
                        await write(value)
        except TimeoutError:
            pass
        self.report_memory()

    def report_memory(self) -> None:
        """Print the figures and end the process at once: closing the producer would wait for the broker."""
        figures = {"before": self._before, "peak": peak_bytes(), "records": self.records}
        print(json.dumps(figures), flush=True)
        os._exit(0)

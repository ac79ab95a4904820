"""What a measured client of Pulsar sends or receives, and its stopwatch; used in the clients' processes."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.memory.peak import peak_bytes

__all__ = ["KEYS", "Load", "Settings"]

KEYS: Final = 5000
"""Different keys of the case `produce-keys`."""

WARM_UP: Final = 50
"""Calls before the clock starts in the case `latency`."""

_STEP: Final = 0.2
_QUIET: Final = 5  # steps without growth after which a queue is taken to be full
_SMALL: Final = 1 << 20  # bytes of a connection without messages
_BEGINS: Final = 10.0  # seconds in which the first message arrives


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process."""

    service_url: str
    topic: str
    subscription: str
    case: str
    messages: int
    """To send, or in the topic."""
    size: int
    """Bytes of a value that is sent."""
    calls: int
    """Of the case `latency`."""
    partitions: int = 0
    """Of the topic."""


class Load:
    """The messages, and what was measured."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.settings = Settings(**given)
        self.value = bytes(range(256))[: self.settings.size] * (1 + self.settings.size // 256)
        self.value = self.value[: self.settings.size]
        self.bytes = 0
        """Bytes of the values that were received."""
        self._delays: list[float] = []
        self._started = self._cpu = 0.0
        self._seconds = self._cpu_seconds = 0.0
        self._counted = 0
        self._before = self._over = 0

    def all_keys(self) -> Iterator[str | None]:
        """Yield the key of each message."""
        if self.settings.case == "produce":
            yield from (None for _ in range(self.settings.messages))
        else:
            names = [f"key-{number}" for number in range(KEYS)]
            yield from (names[number * 7919 % KEYS] for number in range(self.settings.messages))

    def begin(self) -> None:
        """Start the clock."""
        gc.collect()
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def end(self, counted: int) -> None:
        """Stop the clock; `counted` messages were sent or received since."""
        self._seconds = time.perf_counter() - self._started
        self._cpu_seconds = time.process_time() - self._cpu
        self._counted = counted

    async def call(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """Send one message after another, and keep how long each has taken."""
        for _ in range(WARM_UP):
            await send(self.value)
        self.begin()
        for _ in range(self.settings.calls):
            started = time.perf_counter()
            await send(self.value)
            self._delays.append(time.perf_counter() - started)
        self.end(self.settings.calls)

    def call_blocking(self, send: Callable[[bytes], object]) -> None:
        """The same with a function that blocks."""
        for _ in range(WARM_UP):
            send(self.value)
        self.begin()
        for _ in range(self.settings.calls):
            started = time.perf_counter()
            send(self.value)
            self._delays.append(time.perf_counter() - started)
        self.end(self.settings.calls)

    def before_filling(self) -> None:
        """Call it before the consumer subscribes."""
        gc.collect()
        self._before = _resident_bytes()

    async def fill(self) -> None:
        """Wait until the memory of the process no longer grows."""
        for _ in self._steps():
            await asyncio.sleep(_STEP)

    def fill_blocking(self) -> None:
        """The same without an event loop."""
        for _ in self._steps():
            time.sleep(_STEP)

    def _steps(self) -> Iterator[None]:
        started = time.perf_counter()
        quiet, peak = 0, self._before + _SMALL
        while quiet < _QUIET or (peak == self._before + _SMALL and time.perf_counter() < started + _BEGINS):
            yield
            now = _resident_bytes()
            quiet = 0 if now > peak else quiet + 1
            peak = max(peak, now)
        self._over = peak - self._before

    def figures(self) -> dict[str, Any]:
        """Return what was measured."""
        percentiles = statistics.quantiles(self._delays, n=100) if len(self._delays) > 1 else None
        return {
            "counted": self._counted,
            "seconds": self._seconds,
            "cpu_seconds": self._cpu_seconds,
            "p50": percentiles[49] if percentiles else None,
            "p99": percentiles[98] if percentiles else None,
            "memory": self._over or None,
        }


def _resident_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return peak_bytes()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024

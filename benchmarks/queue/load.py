"""The settings of a measured process, its meter, and its dialogue with the benchmark. Standard library only.

A process prints `ready` when it has imported its library, and starts to consume at the first line that it reads. It prints
`waiting` when all poison records were delivered once, and `blocked` when its first handler blocks. It ends when all healthy
records are handled, after `limit` seconds, or at the second line that it reads; its last line is a JSON object of figures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["POISON", "Load", "PoisonError", "Settings"]

POISON: Final = ord("p")
"""The first byte of the key of a poison record; each poison record has its own key."""
_WARM_UP_SHARE: Final = 10
"""The clock starts after the number of records divided by this."""
_WARM_UP_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a measured process, also of the Java program. Durations in seconds."""

    bootstrap_servers: str
    group_id: str
    topic: str
    partitions: int
    kind: str
    """What a handler does: `work`, `fresh` (measures how late it starts) or `block` (never returns)."""
    records: int
    """Healthy records to handle."""
    keys: int
    """Keys of the healthy records."""
    poison: int
    """Records whose handler always fails."""
    work: float
    """The shortest sleep of a handler; 0 for no sleep at all."""
    work_step: float
    """Sleeps are `work` plus 0 to 4 of these steps, by the record's offset."""
    concurrency: int
    retry: float
    """The delay of the first retry."""
    retry_factor: float
    """Each following delay is longer by this factor."""
    retry_max: float
    budget: int
    """Bytes of records that a client may hold, for clients with such a setting."""
    limit: float
    """Maximum duration of a measurement of the kind `work`, from the first record on."""


class PoisonError(Exception):
    """Raised by the handler of a poison record."""


class Load:
    """Counts handled records, and knows when the measurement has ended.

    The clock starts after a tenth of the records or after one second, so that the group's start and the warm-up of a
    compiler do not count.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.settings = settings = Settings(**given)
        self.finished = asyncio.Event()
        self.has_begun = False
        self.handled = 0
        """Healthy records handled."""
        self.failed = 0
        """Failed deliveries of poison records."""
        self.delays: list[float] = []
        """Seconds from the production of a fresh record to the start of its handler."""
        self._poison_seen: set[bytes] = set()
        self._next = max(1, settings.records // _WARM_UP_SHARE)  # the count at which something happens
        self._begun_at = self._started_at = self._ended_at = 0.0
        self._cpu_started = self._cpu_ended = 0.0
        self._counted_from = 0
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []

    async def wait_for_start(self) -> None:
        """Switch logging off, print that the process is ready, wait for the first line, and listen for the second."""
        logging.disable()  # most clients log a traceback for each failed delivery
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        threading.Thread(target=self._wait_for_stop, daemon=True).start()

    def _wait_for_stop(self) -> None:
        sys.stdin.readline()
        self._loop.call_soon_threadsafe(self._end)

    # --- called by handlers -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note the first record; a handler calls it if `has_begun` is False."""
        self.has_begun = True
        self._begun_at = time.perf_counter()
        if self.settings.kind == "work":  # the benchmark ends the others
            self._timers.append(self._loop.call_later(self.settings.limit, self._end))
            self._timers.append(self._loop.call_later(_WARM_UP_SECONDS, self._start_clock))

    def seconds(self, offset: int) -> float:
        """Return how long the handler of the record at this offset sleeps."""
        settings = self.settings
        return settings.work + offset % 5 * settings.work_step if settings.work_step else settings.work

    def done(self) -> None:
        """Count a healthy record."""
        self.handled += 1
        if self.handled == self._next:
            self._reached()

    def fail(self, key: bytes) -> PoisonError:
        """Count a delivery of a poison record and return the error to raise."""
        self.failed += 1
        if len(self._poison_seen) < self.settings.poison:
            self._poison_seen.add(key)
            if len(self._poison_seen) == self.settings.poison:
                print("waiting", flush=True)
        return PoisonError("poison")

    def fresh(self, value: bytes) -> None:
        """Count a fresh record, whose value has the time of its production."""
        self.delays.append((time.monotonic_ns() - json.loads(value)["at"]) / 1e9)
        self.done()

    async def block(self) -> None:
        """Block the handler until it is cancelled."""
        if self.handled == 0:
            print("blocked", flush=True)
        self.handled += 1
        await self._loop.create_future()

    # --- the clock --------------------------------------------------------------------------------------------------------

    def _reached(self) -> None:
        if not self._started_at and self._next < self.settings.records:
            self._start_clock()
        elif self.handled >= self.settings.records:
            self._end()

    def _start_clock(self) -> None:
        if not self._started_at:
            self._started_at, self._cpu_started = time.perf_counter(), time.process_time()
            self._counted_from = self.handled
            self._next = self.settings.records

    def _end(self) -> None:
        if not self._ended_at:
            self._ended_at, self._cpu_ended = time.perf_counter(), time.process_time()
            for timer in self._timers:
                timer.cancel()
            self.finished.set()

    def figures(self) -> dict[str, Any]:
        """Return the figures of the process, to be called when it is finished."""
        started = self._started_at or self._begun_at
        return {
            "handled": self.handled,
            "failed": self.failed,
            "poison_seen": len(self._poison_seen),
            "counted": self.handled - self._counted_from,
            "seconds": self._ended_at - started if started else 0.0,
            "cpu_seconds": self._cpu_ended - self._cpu_started if self._cpu_started else 0.0,
            "delays": self.delays,
        }

"""Counts records in a measured process; wall-clock and CPU time start at the first delivery."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["LAP", "Laps", "Meter"]

LAP: Final = 5_000
"""Records between two clock reads in a loop over single records."""


class Meter:
    """Counts delivered records until `records` have arrived or `limit` seconds have passed.

    The first delivery starts the clock; its records do not count in the rate, because the time before them includes
    joining the group. CPU time is that of all threads of the process.
    """

    def __init__(self, records: int, limit: float) -> None:
        self._wanted = records
        self._limit = limit
        self.finished = False
        self.total = 0
        """Records delivered, including the first delivery."""
        self.counted = 0
        """Records since the clock started."""
        self.size = 0
        """Bytes of keys and values of all records."""
        self._begun = self._first = self._end = 0.0
        self._cpu_begun = self._cpu_first = self._cpu_end = 0.0

    def begin(self) -> None:
        """Start the time of joining; call this before the client is created."""
        self._begun = time.perf_counter()
        self._cpu_begun = time.process_time()

    def add(self, records: int, size: int) -> bool:
        """Count a delivery of records with `size` bytes of keys and values; return False if no more are needed."""
        now, cpu = time.perf_counter(), time.process_time()
        if self.total == 0:
            self._first, self._cpu_first = now, cpu
        else:
            self.counted += records
        self.total += records
        self.size += size
        if not self.finished:
            self._end, self._cpu_end = now, cpu
            self.finished = self.total >= self._wanted or now - self._first > self._limit
        return not self.finished

    def figures(self) -> dict[str, float]:
        """Return records and bytes, and seconds and CPU seconds before and after the first delivery."""
        return {
            "records": self.total,
            "bytes": self.size,
            "counted": self.counted,
            "seconds": self._end - self._first,
            "cpu_seconds": self._cpu_end - self._cpu_first,
            "start_seconds": self._first - self._begun,
            "start_cpu_seconds": self._cpu_first - self._cpu_begun,
        }


class Laps:
    """Lets a loop over single records count down instead of reading the clock, which costs one subtraction per record.

        left = laps.first
        for record in …:
            left -= 1
            if not left and not (left := laps.next(size)):
                break

    `share` is the number of records that the loop will get. The first lap is one record, so that the meter's clock
    starts there.
    """

    def __init__(self, meter: Meter, share: int) -> None:
        self._meter = meter
        self._rest = share
        self.first = self._step = 1

    def next(self, size: int) -> int:
        """Count a finished lap of `size` bytes; return the number of records of the next lap, 0 to stop."""
        more = self._meter.add(self._step, size)
        self._rest -= self._step
        self._step = min(LAP, self._rest) if more else 0
        return self._step

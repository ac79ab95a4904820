"""The stopwatch inside a measured process: it starts at the first record and reads the process's CPU time too."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["LAP", "Laps", "Meter"]

LAP: Final = 5_000
"""Records between two looks at the clock in a loop over single records."""


class Meter:
    """Counts what a client hands over, from the first delivery on, until `records` came or `limit` seconds passed.

    What the first delivery holds is left out of the rate, as its time is that of joining the group: it starts the
    clock. CPU time is the process's own, all threads together.
    """

    def __init__(self, records: int, limit: float) -> None:
        self._wanted, self._limit = records, limit
        self.finished = False
        self.total = 0
        """Records handed over, those of the first delivery included."""
        self.counted = 0
        """Records since the clock started."""
        self.size = 0
        """Bytes of keys and values, of all records."""
        self._begun = self._first = self._end = 0.0
        self._cpu_begun = self._cpu_first = self._cpu_end = 0.0

    def begin(self) -> None:
        """The client is about to be made: joining starts to be timed."""
        self._begun, self._cpu_begun = time.perf_counter(), time.process_time()

    def took(self, records: int, size: int) -> bool:
        """So many records came, with so many bytes of keys and values; False when that's enough."""
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
        """What was measured: seconds and CPU seconds before and after the first delivery, records and bytes."""
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
    """Lets a loop over single records count down instead of looking at the clock: one subtraction a record.

        left = laps.first
        for record in …:
            left -= 1
            if not left and not (left := laps.next(size)):
                break

    `share` is how many records the loop will get.
    """

    def __init__(self, meter: Meter, share: int) -> None:
        self._meter, self._rest = meter, share
        self.first = self._step = 1

    def next(self, size: int) -> int:
        """A lap is over, with so many bytes; returns the records of the next one, 0 to stop."""
        more = self._meter.took(self._step, size)
        self._rest -= self._step
        self._step = min(LAP, self._rest) if more else 0
        return self._step

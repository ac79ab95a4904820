"""A stopwatch for batches: what the first one and the last one took is left out."""

from __future__ import annotations

__all__ = ["BatchMeter"]


class BatchMeter:
    """Counts `rows`; time and CPU begin when the first batch is done, and end when the rest is a `batch` or less.

    The last batch may be small, and may have waited for more that never came.
    """

    def __init__(self, rows: int, batch: int) -> None:
        self._wanted, self._counted_to = rows, rows - batch
        self._rows = self._counted = self._batches = 0
        self._begun = self._end = 0.0
        self._cpu_begun: float | None = None
        self._cpu_end: float | None = None

    def add(self, rows: int, now: float, cpu: float | None) -> bool:
        """A batch is done; whether more are wanted."""
        if not self._batches:
            self._begun, self._cpu_begun = now, cpu
        elif self._rows < self._counted_to:
            self._counted += rows
            self._end, self._cpu_end = now, cpu
        self._batches += 1
        self._rows += rows
        return self._rows < self._wanted

    def figures(self) -> dict[str, float | None]:
        """Rows and batches in all; rows a second and seconds of CPU for a million rows, without the first and the last batch."""
        seconds, cpu = self._end - self._begun, None
        if self._cpu_begun is not None and self._cpu_end is not None and self._counted:
            cpu = (self._cpu_end - self._cpu_begun) / self._counted * 1e6
        return {
            "rows": self._rows,
            "batches": self._batches,
            "rate": self._counted / seconds if seconds > 0 else 0.0,
            "cpu": cpu,
        }

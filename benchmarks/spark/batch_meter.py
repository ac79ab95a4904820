"""Counts rows in batches; the time of the first and the last batch does not count."""

from __future__ import annotations

__all__ = ["BatchMeter"]


class BatchMeter:
    """Counts `rows` rows; time and CPU time run from the end of the first batch until at most `batch` rows are left.

    The last batch may be smaller, and may have waited for rows that never arrived.
    """

    def __init__(self, rows: int, batch: int) -> None:
        self._wanted = rows
        self._counted_to = rows - batch
        """Rows after which a batch is the last one, which does not count."""
        self._rows = self._counted = self._batches = 0
        self._begun = self._end = 0.0
        self._cpu_begun: float | None = None
        self._cpu_end: float | None = None

    def add(self, rows: int, now: float, cpu: float | None) -> bool:
        """Count a finished batch; return whether more are wanted."""
        if not self._batches:
            self._begun, self._cpu_begun = now, cpu
        elif self._rows < self._counted_to:
            self._counted += rows
            self._end, self._cpu_end = now, cpu
        self._batches += 1
        self._rows += rows
        return self._rows < self._wanted

    def figures(self) -> dict[str, float | None]:
        """Return total rows and batches, and rows per second and CPU seconds per million rows of the counted batches."""
        seconds, cpu = self._end - self._begun, None
        if self._cpu_begun is not None and self._cpu_end is not None and self._counted:
            cpu = (self._cpu_end - self._cpu_begun) / self._counted * 1e6
        return {
            "rows": self._rows,
            "batches": self._batches,
            "rate": self._counted / seconds if seconds > 0 else 0.0,
            "cpu": cpu,
        }

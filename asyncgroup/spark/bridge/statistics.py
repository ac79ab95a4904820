"""Statistics of a `ForeachBatch`: counters that the bridges update, and a snapshot for logs and metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from asyncgroup.lifecycle import describe_error
from asyncgroup.spark.ranges import BatchId

__all__ = ["BridgeMetrics", "BridgeStatistics"]


@dataclass(frozen=True, slots=True)
class BridgeStatistics:
    """A snapshot of a `ForeachBatch`, returned by its `statistics()`. Durations are seconds.

    - `batches`, `rows`, `bytes` (as Arrow data): totals of the batches whose function returned, over all sessions.
    - `failures`: calls of the function that raised; `interrupted`: batches that were interrupted by a rebalance, a lost
      membership or a close, and are delivered again.
    - `frame_seconds`, `fn_seconds`, `commit_seconds`: time spent creating DataFrames, in the function, and on commits.
    - `queued_rows`, `queued_bytes`: records that are queued for the next batches.
    - `running`: the batch whose function is called or whose offsets are committed; `running_for`: since how long.
    - `last_batch`: the latest one whose function returned; `last_error`: the latest failure, `last_error_age`: its age.
    """

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    failures: int = 0
    interrupted: int = 0
    frame_seconds: float = 0.0
    fn_seconds: float = 0.0
    commit_seconds: float = 0.0
    queued_rows: int = 0
    queued_bytes: int = 0
    running: BatchId | None = None
    running_for: float | None = None
    last_batch: BatchId | None = None
    last_error: str | None = None
    last_error_age: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` takes."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def __str__(self) -> str:
        parts = [f"{self.batches} batches, {self.rows} rows, {self.bytes} bytes"]
        parts.append(f"{self.fn_seconds:.1f} s in the function")
        if self.failures or self.interrupted:
            parts.append(f"{self.failures} failures, {self.interrupted} interrupted")
        if self.queued_rows:
            parts.append(f"{self.queued_rows} rows queued")
        if self.running is not None:
            parts.append(f"batch {self.running} for {self.running_for:.1f} s")
        if self.last_error is not None:
            parts.append(f"last error {self.last_error_age:.1f} s ago: {self.last_error}")
        return " ".join("; ".join(parts).split())

    def __repr__(self) -> str:
        return f"<BridgeStatistics: {self}>"


def _plain(value: Any) -> Any:
    if isinstance(value, BatchId):
        return {"number": int(value), "ranges": [str(part) for part in value.ranges]}
    return round(value, 3) if isinstance(value, float) else value


class BridgeMetrics:
    """Counters shared by the bridges of all sessions of a `ForeachBatch`; pure state."""

    def __init__(self) -> None:
        self._totals = BridgeStatistics()
        self._last_error_at = 0.0
        """The loop's time of the latest failure."""

    def record_call(self, frame_seconds: float, fn_seconds: float) -> None:
        """Record a call of the function, successful or not."""
        totals = self._totals
        self._totals = replace(
            totals,
            frame_seconds=totals.frame_seconds + frame_seconds,
            fn_seconds=totals.fn_seconds + fn_seconds,
        )

    def record_batch(self, batch_id: BatchId, rows: int, size: int) -> None:
        """Record a batch whose function has returned."""
        totals = self._totals
        self._totals = replace(
            totals,
            batches=totals.batches + 1,
            rows=totals.rows + rows,
            bytes=totals.bytes + size,
            last_batch=batch_id,
        )

    def record_failure(self, error: BaseException, now: float) -> None:
        """Record that the function has raised."""
        totals = self._totals
        self._totals = replace(totals, failures=totals.failures + 1, last_error=describe_error(error))
        self._last_error_at = now

    def record_interruption(self) -> None:
        """Record a batch that was interrupted and is delivered again."""
        self._totals = replace(self._totals, interrupted=self._totals.interrupted + 1)

    def record_commit(self, seconds: float) -> None:
        """Record the time spent on a commit."""
        self._totals = replace(self._totals, commit_seconds=self._totals.commit_seconds + seconds)

    def snapshot(
        self, queued_rows: int, queued_bytes: int, running: tuple[BatchId, float] | None, now: float
    ) -> BridgeStatistics:
        """Return a snapshot; `running` is the running batch with the loop's time of its start."""
        batch_id, began = running or (None, now)
        return replace(
            self._totals,
            queued_rows=queued_rows,
            queued_bytes=queued_bytes,
            running=batch_id,
            running_for=None if batch_id is None else now - began,
            last_error_age=None if self._totals.last_error is None else now - self._last_error_at,
        )

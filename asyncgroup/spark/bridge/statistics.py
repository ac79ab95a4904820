"""Statistics of a `ForeachBatch`: counters that the bridges update, and a snapshot for logs and metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields
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

    batches: int
    rows: int
    bytes: int
    failures: int
    interrupted: int
    frame_seconds: float
    fn_seconds: float
    commit_seconds: float
    queued_rows: int
    queued_bytes: int
    running: BatchId | None
    running_for: float | None
    last_batch: BatchId | None
    last_error: str | None
    last_error_age: float | None

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
        self.batches = 0
        self.rows = 0
        self.bytes = 0
        self.failures = 0
        self.interrupted = 0
        self.frame_seconds = 0.0
        self.fn_seconds = 0.0
        self.commit_seconds = 0.0
        self.last_batch: BatchId | None = None
        self._last_error: tuple[str, float] | None = None
        """The text of the latest failure, and the loop's time."""

    def record_call(self, frame_seconds: float, fn_seconds: float) -> None:
        """Record a call of the function, successful or not."""
        self.frame_seconds += frame_seconds
        self.fn_seconds += fn_seconds

    def record_batch(self, batch_id: BatchId, rows: int, size: int) -> None:
        """Record a batch whose function has returned."""
        self.batches += 1
        self.rows += rows
        self.bytes += size
        self.last_batch = batch_id

    def record_failure(self, error: BaseException, now: float) -> None:
        """Record that the function has raised."""
        self.failures += 1
        self._last_error = (describe_error(error), now)

    def snapshot(
        self, queued_rows: int, queued_bytes: int, running: tuple[BatchId, float] | None, now: float
    ) -> BridgeStatistics:
        """Return a snapshot; `running` is the running batch with the loop's time of its start."""
        batch_id, began = running or (None, now)
        text, at = self._last_error or (None, now)
        return BridgeStatistics(
            batches=self.batches,
            rows=self.rows,
            bytes=self.bytes,
            failures=self.failures,
            interrupted=self.interrupted,
            frame_seconds=self.frame_seconds,
            fn_seconds=self.fn_seconds,
            commit_seconds=self.commit_seconds,
            queued_rows=queued_rows,
            queued_bytes=queued_bytes,
            running=batch_id,
            running_for=None if batch_id is None else now - began,
            last_batch=self.last_batch,
            last_error=text,
            last_error_age=None if text is None else now - at,
        )

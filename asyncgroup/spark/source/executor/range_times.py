"""Times of a read that Spark interrupts: `WaitingTime`, and the `Patience` of a range. Pure state, no I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Patience", "WaitingTime"]


class WaitingTime:
    """The loop's time without the pauses between two waits.

    Spark may suspend a task for minutes while a sink is slow; in that time the loop does not run, and responses wait in the
    kernel. No timeout, backoff or lease includes it.
    """

    def __init__(self, time: Callable[[], float] = lambda: asyncio.get_running_loop().time()) -> None:
        self._time = time
        self._pauses = 0.0
        self._paused_at: float | None = None

    def __repr__(self) -> str:
        return f"<WaitingTime {self():.3f}, {self._pauses:.3f} s behind>"

    def __call__(self) -> float:
        """Return the time in seconds; it stands still between `pause` and `resume`."""
        now = self._time() if self._paused_at is None else self._paused_at
        return now - self._pauses

    def pause(self) -> None:
        """Stop the time."""
        self._paused_at = self._time()

    def resume(self) -> None:
        """Let the time go on, after `pause`."""
        paused_at, self._paused_at = self._paused_at, None
        if paused_at is not None:
            self._pauses += self._time() - paused_at


class Patience:
    """How long a range has been without progress. Times are those of a `WaitingTime`."""

    __slots__ = ("_queued_at", "_since", "end_asked_at", "gone_since")

    def __init__(self) -> None:
        self._since: float | None = None  # the last progress; None before `begin`
        self._queued_at: float | None = None  # since when it waits for other ranges; None if it does not
        self.end_asked_at = float("-inf")
        """When the leader was last asked for its end."""
        self.gone_since: float | None = None
        """Since when the partition is missing in the metadata; None while it is there."""

    def __repr__(self) -> str:
        return f"<Patience since {self._since}, queued since {self._queued_at}>"

    def begin(self, now: float) -> None:
        """Start the timeout, unless it is running already."""
        if self._since is None:
            self._since = now

    def restart(self, now: float) -> None:
        """Restart the timeout: there was progress, or other partitions have filled the response."""
        self._since = now
        if self._queued_at is not None:
            self._queued_at = now

    def queue(self, now: float) -> None:
        """Pause the timeout until `take_turn`, as other ranges are requested first."""
        if self._queued_at is None:
            self._queued_at = now

    def take_turn(self, now: float) -> None:
        """Continue the timeout after `queue`."""
        queued_at, self._queued_at = self._queued_at, None
        if queued_at is not None and self._since is not None:
            self._since += now - queued_at

    def ends(self, seconds: float) -> float:
        """Return the time at which it will have been without progress for `seconds`; infinity while the timeout is paused."""
        if self._since is None or self._queued_at is not None:
            return float("inf")
        return self._since + seconds

    def end_check(self, seconds: float) -> float:
        """Return the time from which on the leader may be asked for its end: after `seconds` without progress or answer."""
        return max(self._since or 0.0, self.end_asked_at) + seconds

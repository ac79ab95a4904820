"""`Patience`: how long a range has been without progress. Pure state, no I/O."""

from __future__ import annotations

__all__ = ["Patience"]


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

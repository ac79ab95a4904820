"""PollTimer: the poll timeout of a range: how long it has been without progress, why, and what is due then. Pure state.

`WaitingTime` is the time by which it is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

__all__ = ["NEVER", "Due", "PollTimer", "WaitingTime"]

GONE_AFTER: Final = 10.0
"""Seconds for which a partition must be missing in the metadata, or belong to a recreated topic, before it counts as
deleted: a broker that has just started may have no metadata yet, or outdated metadata.
"""

SHORT_AFTER: Final = 10.0
"""Seconds without progress after which the leader of a log that seems to end before the range is asked for its end."""

NEVER: Final = float("inf")


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


class Due(Enum):
    """What is due."""

    NOTHING = auto()
    TIMEOUT = auto()
    """There was no progress for the poll timeout."""
    TOPIC_GONE = auto()
    """The partition has not existed for some time."""
    END_CHECK = auto()
    """The leader must be asked for the end of its log."""


class PollTimer:
    """The time of a range since its last progress, at most `timeout` seconds, and what is known about the reason.

    Times are those of a `WaitingTime`.
    """

    __slots__ = (
        "_end_asked_at",
        "_gone_since",
        "_hidden_until",
        "_leaders_end",
        "_log_end",
        "_queued_at",
        "_since",
        "problem",
        "timeout",
    )

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        """Seconds."""
        self._since: float | None = None  # the last progress; None before `begin`
        self._queued_at: float | None = None  # since when it waits for other ranges; None if it does not
        self._gone_since: float | None = None  # since when the partition is missing in the metadata
        self._end_asked_at = -NEVER  # when the leader was last asked for its end
        self.problem: Exception | None = None
        """The last failure since the last progress."""
        self._log_end: int | None = None  # the end of the log for readers, when it had no more records
        self._hidden_until: int | None = None  # the high watermark, if records before it were not returned
        self._leaders_end: int | None = None  # the end of the leader's log, as far as it was asked for

    def __repr__(self) -> str:
        return f"<PollTimer since {self._since}, queued since {self._queued_at}>"

    # --- what happens -------------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start the timeout, unless it is running already."""
        if self._since is None:
            self._since = now

    def progressed(self, now: float) -> None:
        """Restart the timeout, as records have come; forget failures."""
        self._restart(now)
        self._gone_since = None
        self.problem = self._log_end = self._hidden_until = self._leaders_end = None

    def crowded_out(self, now: float) -> None:
        """Restart the timeout, as other partitions have filled a response; not if the log has ended."""
        if self._log_end is None:
            self._restart(now)

    def _restart(self, now: float) -> None:
        self._since = now
        if self._queued_at is not None:
            self._queued_at = now

    def nothing_came(self, offset: int, high_watermark: int) -> None:
        """Record a response without records at `offset`; those before the high watermark exist, but were not returned."""
        there = high_watermark > offset
        self._log_end, self._hidden_until = (None, high_watermark) if there else (offset, None)

    def failed(self, error: Exception) -> None:
        """Record a failed attempt."""
        self.problem = error
        self._log_end = self._hidden_until = self._leaders_end = None

    def metadata_failed(self, error: Exception) -> None:
        """Record a failed metadata refresh."""
        self.problem = error

    def set_leaders_end(self, end: int | None) -> None:
        """Record the end of the leader's log, None if it is not known."""
        self._leaders_end = end

    def end_check_failed(self) -> None:
        """Record that the leader could not be asked for the end of its log: the next check is soon."""
        self._end_asked_at = -NEVER

    # --- what is due --------------------------------------------------------------------------------------------

    def check(self, now: float, *, is_gone: bool, is_certain: bool = True, is_queued: bool = False) -> Due:
        """Return what is due.

        `is_gone`: the partition is missing in the metadata, which is new enough if `is_certain`. `is_queued`: other ranges
        are requested first, and the timeout pauses.
        """
        if not is_gone:
            self._gone_since = None
        elif self._gone_since is None and is_certain:
            self._gone_since = now
        if not is_queued:
            queued_at, self._queued_at = self._queued_at, None
            if queued_at is not None and self._since is not None:
                self._since += now - queued_at
        elif self._queued_at is None:
            self._queued_at = now
        if now >= self._topic_gone_at:
            return Due.TOPIC_GONE
        if now >= self.ends:
            return Due.TIMEOUT
        if now >= self._end_check:
            self._end_asked_at = now
            return Due.END_CHECK
        return Due.NOTHING

    @property
    def next_check(self) -> float:
        """The time at which `check` has to be called next."""
        return min(self.ends, self._topic_gone_at, self._end_check)

    @property
    def ends(self) -> float:
        """The time at which the timeout ends; infinity while it is paused."""
        if self._since is None or self._queued_at is not None:
            return NEVER
        return self._since + self.timeout

    @property
    def _topic_gone_at(self) -> float:
        """The time at which the topic counts as deleted: with the timeout at the latest; infinity if it exists."""
        return NEVER if self._gone_since is None else min(self.ends, self._gone_since + GONE_AFTER)

    @property
    def _end_check(self) -> float:
        """The time at which the leader must be asked for its end: some seconds without progress or answer."""
        if self._log_end is None:
            return NEVER
        return max(self._since or 0.0, self._end_asked_at) + SHORT_AFTER

    @property
    def log_end(self) -> int | None:
        """The end of the log if the rest of the range counts as lost after the timeout; None if the leader has records."""
        return self._log_end if self._leaders_end is None else None

    @property
    def held_back(self) -> str:
        """Why existing records are not returned, as far as known from responses; "" if unknown."""
        if self._leaders_end is not None:
            return (
                f"the leader's log has records up to offset {self._leaders_end}, but they are not replicated"
            )
        if self._hidden_until is not None:
            return (
                f"the log continues up to offset {self._hidden_until}, but no records are returned"
                " (with read_committed, because of an open transaction)"
            )
        return ""

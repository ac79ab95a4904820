"""PartitionWarnings: partitions that fail again and again are logged at a bounded rate, however many they are."""

from __future__ import annotations

import itertools
from typing import Final

from asyncgroup.error_types import short_error_type
from asyncgroup.model import TopicPartition

__all__ = ["LOG_INTERVAL", "PartitionWarnings"]

WARN_EVERY: Final = 10
"""Every tenth consecutive failure of a partition is worth a warning (as in sarama): retries are endless by default, and an
outage of days must show in the log."""

LOG_INTERVAL: Final = 10.0
"""Seconds between two warnings about the same kind of error: a broker without a successor may lead a thousand partitions."""


MOST_NAMED: Final = 3
"""The largest number of other partitions that a warning names."""


class PartitionWarnings:
    """Decides which failures are logged: of those with errors of one kind the first, and one in `LOG_INTERVAL`."""

    def __init__(self) -> None:
        self._next_at: dict[str, float] = {}  # loop time of the next line, by kind of error
        self._unnamed: dict[str, dict[TopicPartition, None]] = {}  # in order, since the last line

    def __repr__(self) -> str:
        return f"<PartitionWarnings: {len(self._next_at)} kinds of errors>"

    def others(self, tp: TopicPartition, failures: int, error: BaseException, now: float) -> str | None:
        """Return the last words of a warning about a partition with this number of failures; None if no warning is due.

        They name other partitions with the same kind of error since the last warning.
        """
        if failures % WARN_EVERY:
            return None
        kind = short_error_type(error)
        unnamed = self._unnamed.setdefault(kind, {})
        next_at = self._next_at.get(kind, now)
        if now < next_at:
            unnamed[tp] = None
            return None
        if now > next_at + LOG_INTERVAL:
            unnamed.clear()  # that outage has ended
        unnamed.pop(tp, None)
        self._next_at[kind] = now + LOG_INTERVAL
        named = ", ".join(str(other) for other in itertools.islice(unnamed, MOST_NAMED))
        more = len(unnamed) - MOST_NAMED
        unnamed.clear()
        if not named:
            return ""
        return f"; the same kind of error: {named}" + (f" and {more} more" if more > 0 else "")

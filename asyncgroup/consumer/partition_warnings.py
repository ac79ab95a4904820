"""PartitionWarnings: partitions that fail again and again are logged at a bounded rate, however many they are."""

from __future__ import annotations

from typing import Final

from asyncgroup.errors import BrokerError
from asyncgroup.model import TopicPartition

__all__ = ["LOG_INTERVAL", "PartitionWarnings"]

WARN_EVERY: Final = 10
"""Every tenth consecutive failure of a partition is worth a warning (as in sarama): retries are endless by default, and an
outage of days must show in the log."""

LOG_INTERVAL: Final = 10.0
"""Seconds between two warnings about the same kind of error: a broker without a successor may lead a thousand partitions."""


class PartitionWarnings:
    """Decides which failures are logged: of those with errors of one kind the first, and one in `LOG_INTERVAL`."""

    def __init__(self) -> None:
        self._next_at: dict[str, float] = {}  # loop time of the next line, by kind of error
        self._unnamed: dict[str, set[TopicPartition]] = {}  # partitions since the last line

    def __repr__(self) -> str:
        return f"<PartitionWarnings: {len(self._next_at)} kinds of errors>"

    def name(self, tp: TopicPartition, failures: int, error: BaseException, now: float) -> str | None:
        """Return how a warning about the failure number `failures` of a partition names it; None if there is none now.

        The name counts the others that had the same kind of error since the last warning.
        """
        if failures % WARN_EVERY:
            return None
        kind = error.name if isinstance(error, BrokerError) else type(error).__name__
        unnamed = self._unnamed.setdefault(kind, set())
        if now < self._next_at.get(kind, now):
            unnamed.add(tp)
            return None
        self._next_at[kind] = now + LOG_INTERVAL
        others = len(unnamed - {tp})
        unnamed.clear()
        return f"{tp} (and {others} others)" if others else str(tp)

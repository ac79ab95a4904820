"""HeartbeatSchedule: when the heartbeats of a member of a classic group are due. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["EARLY_HEARTBEATS", "HeartbeatSchedule"]

EARLY_HEARTBEATS: Final = (0.25, 0.5, 1.0, 2.0)
"""Seconds after a cooperative SyncGroup at which heartbeats are sent besides those of the interval.

A partition that moves is assigned in a second rebalance, which begins once its owner has revoked it and joined again; the
other members learn of that by their next heartbeat. The pauses grow as it becomes more likely that a handler takes long to
drain, so a member learns of it at most twice as late as it happened. (franz-go sends one heartbeat after 500 ms,
`cooperativeFastCheck` in `consumer_group.go`; Java and librdkafka wait for the interval.)"""


class HeartbeatSchedule:
    """The times `started_at` + k × `interval`, and some early ones. Counting k excludes that rounding repeats one of them."""

    def __init__(self, started_at: float, interval: float, early: Sequence[float] = ()) -> None:
        self._started_at = started_at
        self._interval = interval
        # those still to come, in order
        self._early = [started_at + after for after in early if after < interval]
        self._ticks = 1  # the k of `next`, after the early ones

    @property
    def next(self) -> float:
        """The next time of the schedule."""
        return self._early[0] if self._early else self._started_at + self._ticks * self._interval

    def after(self, moment: float) -> float:
        """Return the first time of the interval after `moment`."""
        return (
            self._started_at + (math.floor((moment - self._started_at) / self._interval) + 1) * self._interval
        )

    def advance(self, now: float) -> None:
        """Move `next` past `now`, by however many intervals that takes."""
        while self._early and self._early[0] <= now:
            del self._early[0]
        if self._started_at + self._ticks * self._interval <= now:
            self._ticks = max(self._ticks + 1, int((now - self._started_at) / self._interval) + 1)

"""Timing: the time of day and timers of an embedded Pulsar, for topics, subscriptions and transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Timing"]


@dataclass(slots=True)
class Timing:
    """The time, by callbacks. `now` is replaced when the event loop is known."""

    now: Callable[[], int]
    """The time of day in ms."""
    wake: Callable[[int, Callable[[], None]], None]
    """Calls a function at a time of day."""
    after_change: Callable[[Callable[[], None]], None]
    """Calls a function after the delay of a Failover subscription."""

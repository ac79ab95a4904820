"""PublishThrottle: how many messages a topic takes per second (Pulsar's `PublishRateLimiterImpl`)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["PublishThrottle"]


class PublishThrottle:
    """A token bucket of one second. `now` returns the time in ms."""

    def __init__(self, rate: float, now: Callable[[], int]) -> None:
        self.rate = rate
        """Messages per second."""
        self._now = now
        self._tokens = rate
        self._at = now()

    def __repr__(self) -> str:
        return f"<PublishThrottle {self.rate:g}/s, {self._tokens:g} left>"

    def take(self, count: int) -> float:
        """Count messages; return how many seconds nothing more is to be read of their connection."""
        now = self._now()
        self._tokens = min(self.rate, self._tokens + (now - self._at) / 1000 * self.rate) - count
        self._at = now
        return 0.0 if self._tokens > 0 else (1 - self._tokens) / self.rate

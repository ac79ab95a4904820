"""ReconnectBackoff: pauses between attempts, which double, each a little shorter by chance (Pulsar's `Backoff`)."""

from __future__ import annotations

import random
from typing import Final

__all__ = ["ReconnectBackoff"]

_JITTER: Final = 0.1
"""A pause is shorter by up to this fraction, so that many clients do not return at once."""
_MOST_DOUBLINGS: Final = 30


class ReconnectBackoff:
    """Pauses from `first` up to `most` seconds."""

    def __init__(self, first: float, most: float, rng: random.Random) -> None:
        self._first = first
        self._most = most
        self._rng = rng
        self.failures = 0
        """Pauses since the last success."""

    def __repr__(self) -> str:
        return f"<ReconnectBackoff after {self.failures} failures>"

    def next(self) -> float:
        """Count a failure, and return the pause after it in seconds."""
        pause: float = min(self._first * 2.0 ** min(self.failures, _MOST_DOUBLINGS), self._most)
        self.failures += 1
        return pause * (1 - _JITTER * self._rng.random())

    def reset(self) -> None:
        """The last attempt has succeeded."""
        self.failures = 0

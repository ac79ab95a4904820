"""An event loop on real sockets whose clock can be set forward."""

from __future__ import annotations

import asyncio

__all__ = ["AdjustableLoop"]


class AdjustableLoop(asyncio.SelectorEventLoop):
    """A selector loop with `advance`, which sets the loop's clock forward as if the loop had slept.

    Timers that are due by then run in the next iterations, in order.
    """

    _ahead = 0.0  # seconds by which the loop's clock is ahead of the machine's

    def time(self) -> float:
        """The loop's clock in seconds: the machine's monotonic clock plus all advances."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Set the clock forward. Must be called on the loop's own thread."""
        self._ahead += seconds

"""An ordinary event loop whose clock can be put forward."""

from __future__ import annotations

import asyncio

__all__ = ["AdjustableLoop"]


class AdjustableLoop(asyncio.SelectorEventLoop):
    """A selector loop on real sockets; `advance` lets its clock jump, as if it had slept for so long.

    Timers that fall into the jump run at once after it, in order.
    """

    _ahead = 0.0

    def time(self) -> float:
        """The loop's clock in seconds, ahead of the machine's by all that was pushed."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Put the clock forward; to be called on the loop's own thread."""
        self._ahead += seconds

"""DeadLetterBreaker: measures the share of dead letters among the records that ended recently. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from asyncgroup.errors import DeadLetterRateError
from asyncgroup.workqueue.policies import Breaker

__all__ = ["DeadLetterBreaker"]

SLOTS: Final = 64
"""Parts of the window: records are counted in slots, so memory and work do not grow with their rate."""


class DeadLetterBreaker:
    """Counts the records that ended in the last `window` seconds, with a resolution of 1/64 of it; stays tripped."""

    __slots__ = ("_clock", "_slot_length", "_slots", "dead", "ended", "is_tripped", "limits")

    def __init__(self, limits: Breaker, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._slot_length = limits.window / SLOTS
        self._slots: deque[list[int]] = (
            deque()
        )  # number of the slot, records that ended in it, dead ones; oldest first
        self.ended = 0
        """Records that ended in the window, at the last `note_end`."""
        self.dead = 0
        """Records that became dead letters."""
        self.is_tripped = False
        """Whether the limits were exceeded once."""

    def __repr__(self) -> str:
        return f"<DeadLetterBreaker: {self.dead} of {self.ended}{', tripped' if self.is_tripped else ''}>"

    def note_end(self, dead: bool) -> bool:
        """Count a record that has ended, dead letter or not; return whether this call tripped the breaker."""
        slots, number = self._slots, int(self._clock() // self._slot_length)
        if not slots or slots[-1][0] != number:
            slots.append([number, 0, 0])
            self._forget(number - SLOTS)
        slot = slots[-1]
        slot[1] += 1
        self.ended += 1
        if not dead:
            return False
        slot[2] += 1
        self.dead += 1
        limits = self.limits
        if self.is_tripped or self.dead < limits.minimum or self.dead <= limits.share * self.ended:
            return False
        self.is_tripped = True
        return True

    def error(self, group_id: str) -> DeadLetterRateError:
        """Return the error that describes the counts."""
        limits = self.limits
        return DeadLetterRateError(
            group_id, self.dead, self.ended, limits.window, share=limits.share, minimum=limits.minimum
        )

    def _forget(self, last: int) -> None:
        """Drop the slots up to the number `last`."""
        slots = self._slots
        while slots[0][0] <= last:
            _, ended, dead = slots.popleft()
            self.ended -= ended
            self.dead -= dead

"""Dead letters of a queue: `DeadLetterBreaker` measures their share, `LastFailures` has reasons of those not written yet. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from asyncgroup.errors import DeadLetterRateError
from asyncgroup.model import Record
from asyncgroup.workqueue.policies import Breaker

__all__ = ["DeadLetterBreaker", "LastFailures"]

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


MAX_RECORDS: Final = 1000
"""Records whose last failure is remembered; those noted first are forgotten first."""

_Key = tuple[str, int, int, int]


class LastFailures:
    """The reasons of dead letters that are not written yet, as this process knows them.

    A partition may be revoked and come back before the copy is written. Other processes know only how often the record was
    delivered, and whether any of these deliveries had an outcome.
    """

    def __init__(self) -> None:
        self._reasons: dict[_Key, str] = {}

    def __repr__(self) -> str:
        return f"<LastFailures: {len(self._reasons)} records>"

    def note(self, record: Record, reason: str) -> None:
        """The record's last delivery that is allowed has failed."""
        key = _key(record)
        if len(self._reasons) >= MAX_RECORDS and key not in self._reasons:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[key] = reason

    def forget(self, record: Record) -> None:
        """The record is acknowledged."""
        if self._reasons:
            self._reasons.pop(_key(record), None)

    def reason(self, record: Record, attempts: int, *, is_unfinished: bool) -> str:
        """Return the reason of a dead letter after `attempts` deliveries; `is_unfinished`: none of them had an outcome."""
        if (known := self._reasons.get(_key(record))) is not None:
            return known
        if is_unfinished:
            return "each process that handled it has ended without an outcome"
        if attempts == 1:
            return "its only delivery failed; the reason is known only to the process that made it"
        return f"its {attempts} deliveries failed; the reasons are known only to the processes that made them"


def _key(record: Record) -> _Key:
    return record.topic, record.partition, record.offset, record.timestamp

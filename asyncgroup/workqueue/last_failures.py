"""LastFailures: why a record is a dead letter that has had all its deliveries when it arrives."""

from __future__ import annotations

from typing import Final

from asyncgroup.model import Record

__all__ = ["LastFailures"]

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

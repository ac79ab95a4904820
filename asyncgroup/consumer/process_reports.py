"""ProcessReports: the hooks `on_process_start` and `on_process_end` of one partition's reader."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.hooks import Hooks
from asyncgroup.model import Batch, Record

__all__ = ["ProcessReports", "process_reports"]


class ProcessReports:
    """Reports what the reader of a partition works on: one record or batch at a time, until it asks for the next.

    A partition without listeners has no object of this class, so that its records cost nothing more.
    """

    __slots__ = ("_group_id", "_hooks", "_intercept", "_records")

    def __init__(self, hooks: Hooks, group_id: str, intercept: Callable[[Record], Record] | None) -> None:
        self._hooks = hooks
        self._group_id = group_id
        self._intercept = intercept
        self._records: Record | Batch | None = None
        """What the reader works on; None while it waits."""

    def __repr__(self) -> str:
        return f"<ProcessReports of {self._group_id!r}: {self._records!r}>"

    def wants_records(self) -> bool:
        """Return whether `deliver` is to be called for each of the records that are decoded now."""
        return self._hooks.wants_records()

    def deliver(self, record: Record) -> Record:
        """Return the record to deliver in place of `record`, after the interceptors, and report it."""
        if self._intercept is not None:
            record = self._intercept(record)
        self.start(record)
        return record

    def start(self, records: Record | Batch) -> None:
        """The reader gets a record or a batch; what it had before has ended."""
        self.end()
        self._records = records
        self._hooks.emit("on_process_start", self._group_id, records)

    def end(self, error: BaseException | None = None) -> None:
        """The reader is done with what it had, if there was anything."""
        if (records := self._records) is not None:
            self._records = None
            self._hooks.emit("on_process_end", self._group_id, records, error)


def process_reports(
    hooks: Hooks, group_id: str, intercept: Callable[[Record], Record] | None
) -> ProcessReports | None:
    """Return what reports to the hooks of a reader, or None if none of them listens."""
    listening = hooks.with_listener("on_process_start", "on_process_end")
    return None if listening is None else ProcessReports(listening, group_id, intercept)

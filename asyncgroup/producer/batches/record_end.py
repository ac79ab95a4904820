"""The end of a record, for interceptors, for the hooks of each record, and for the producer's sequence ids."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import ClosedError
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ProducerRecord
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import DetailedRecordMetadata, RecordMetadata
from asyncgroup.producer.interceptors import ProducerInterceptors

__all__ = ["RecordEnd", "is_awaited", "is_silent", "report_start"]


class RecordEnd:
    """Takes the place of a record's future in its batch, and is called at its end even if no caller waits for it."""

    __slots__ = (
        "_ended",
        "_interceptors",
        "_is_started",
        "caller",
        "hooks",
        "is_awaited",
        "record",
        "sequence_id",
    )

    def __init__(
        self,
        record: ProducerRecord,
        interceptors: ProducerInterceptors,
        caller: asyncio.Future[RecordMetadata] | None,
        hooks: Hooks | None,
        *,
        is_awaited: bool = False,
    ) -> None:
        self.record = record
        self.caller = caller
        """The future that the caller has; None for `enqueue`."""
        self.hooks = hooks
        """Those of the producer; None unless they listen to each record."""
        self.is_awaited = is_awaited
        self.sequence_id: int | None = None
        self._interceptors = interceptors
        self._ended = False
        self._is_started = False  # on_send_start was called, and on_send_end not yet

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed; unlike a future, it cannot be cancelled."""
        return self._ended

    def set_result(self, metadata: RecordMetadata, /) -> None:
        """The record is acknowledged."""
        self._ended = True
        if self.sequence_id is not None:
            metadata = DetailedRecordMetadata.of(metadata, sequence_id=self.sequence_id)
        self._interceptors.on_acknowledgement(self.record, metadata, None)
        if self._is_started:
            self._report_end(metadata, None)
        if self.caller is not None and not self.caller.done():
            self.caller.set_result(metadata)

    def refuse(self, error: BaseException) -> None:
        """The record was not accepted; the caller gets the error from its call."""
        if not isinstance(error, Exception):
            error = ClosedError(f"the record was withdrawn: {describe_error(error)}")
        self._ended = True
        self._interceptors.on_acknowledgement(self.record, None, error)
        if self._is_started:
            self._report_end(None, error)

    def set_exception(self, error: Exception, /) -> None:
        """The record has failed."""
        self._ended = True
        self._interceptors.on_acknowledgement(self.record, None, error)
        if self._is_started:
            self._report_end(None, error)
        if self.caller is not None and not self.caller.done():
            self.caller.set_exception(error)

    def report_start(self) -> None:
        """There is room for the record, which is final now. Called before it is appended: a failure may follow at once."""
        if self.hooks is not None:
            self._is_started = True
            self.hooks.emit("on_send_start", self.record)

    def _report_end(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self._is_started = False
        if self.hooks is not None:
            self.hooks.emit("on_send_end", self.record, metadata, error)


def report_start(end: object) -> None:
    """Report that a record is accepted, if something stands in the place of its future that reports it."""
    if isinstance(end, RecordEnd):
        end.report_start()


def is_awaited(future: object) -> bool:
    """Return whether the caller of a record waits for its result now: that of `send`, not that of `send_nowait`."""
    return getattr(future, "is_awaited", False)


def is_silent(future: object) -> bool:
    """Return whether no caller gets the error of a record, so that `flush` has to report it."""
    return future is None or (isinstance(future, RecordEnd) and future.caller is None)

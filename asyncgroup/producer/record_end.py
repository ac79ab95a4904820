"""The end of a record, for interceptors and for the producer's sequence ids."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import ClosedError
from asyncgroup.interceptor import ProducerRecord
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import DetailedRecordMetadata, RecordMetadata
from asyncgroup.producer.interceptors import ProducerInterceptors

__all__ = ["RecordEnd", "is_awaited", "is_silent"]


class RecordEnd:
    """Takes the place of a record's future in its batch, and is called at its end even if no caller waits for it."""

    __slots__ = ("_ended", "_interceptors", "caller", "is_awaited", "record", "sequence_id")

    def __init__(
        self,
        record: ProducerRecord,
        interceptors: ProducerInterceptors,
        caller: asyncio.Future[RecordMetadata] | None,
        *,
        is_awaited: bool = False,
    ) -> None:
        self.record = record
        self.caller = caller
        """The future that the caller has; None for `enqueue`."""
        self.is_awaited = is_awaited
        self.sequence_id: int | None = None
        self._interceptors = interceptors
        self._ended = False

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed; unlike a future, it cannot be cancelled."""
        return self._ended

    def set_result(self, metadata: RecordMetadata, /) -> None:
        """The record is acknowledged."""
        self._ended = True
        if self.sequence_id is not None:
            metadata = DetailedRecordMetadata.of(metadata, sequence_id=self.sequence_id)
        self._interceptors.on_acknowledgement(self.record, metadata, None)
        if self.caller is not None and not self.caller.done():
            self.caller.set_result(metadata)

    def refuse(self, error: BaseException) -> None:
        """The record was not accepted; the caller gets the error from its call."""
        if not isinstance(error, Exception):
            error = ClosedError(f"the record was withdrawn: {describe_error(error)}")
        self._ended = True
        self._interceptors.on_acknowledgement(self.record, None, error)

    def set_exception(self, error: Exception, /) -> None:
        """The record has failed."""
        self._ended = True
        self._interceptors.on_acknowledgement(self.record, None, error)
        if self.caller is not None and not self.caller.done():
            self.caller.set_exception(error)


def is_awaited(future: object) -> bool:
    """Return whether the caller of a record waits for its result now: that of `send`, not that of `send_nowait`."""
    return getattr(future, "is_awaited", False)


def is_silent(future: object) -> bool:
    """Return whether no caller gets the error of a record, so that `flush` has to report it."""
    return future is None or (isinstance(future, RecordEnd) and future.caller is None)

"""Streams of the errors that the client recovers from by itself (`errors()`), with a bounded buffer per reader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self
from weakref import WeakSet

from asyncgroup.consumer.foreign_names import ERRORS
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.lifecycle import copy_error

__all__ = ["ErrorReader", "ErrorStream"]


class ErrorReader:
    """An async iterator of the errors since its creation; it ends when the object that it watches is closed.

    Holds a limited number of unread errors; the oldest are dropped and counted in `dropped`.
    """

    def __init__(self, stream: ErrorStream, buffer: int) -> None:
        self._stream = stream
        self._buffer = buffer
        self._errors: deque[Exception] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ErrorReader: {state}, {len(self._errors)} unread, {self.dropped} dropped>"

    def _put(self, error: Exception) -> None:
        """Add an error; a full buffer drops its oldest one."""
        if len(self._errors) >= self._buffer:
            self._errors.popleft()
            self.dropped += 1
        self._errors.append(error)
        self._changed.set()

    async def aclose(self) -> None:
        """End the iteration after the unread errors; safe to call twice."""
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._changed.set()
        self._stream.forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Exception:
        while not self._errors:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._errors.popleft()


class ErrorStream:
    """Passes every error to every reader, each with its own buffer of `buffer` errors; never waits."""

    def __init__(self, buffer: int) -> None:
        self._buffer = buffer
        # weak, as a reader that its user has dropped must not count: its errors would not be logged either
        self._readers: WeakSet[ErrorReader] = WeakSet()
        self._closed = False

    def put(self, error: Exception) -> bool:
        """Pass an error to every reader; return False if there is none, so that the caller logs it."""
        readers = list(self._readers)
        for reader in readers:
            reader._put(copy_error(error))  # a copy, as each reader may raise it
        return bool(readers)

    def reader(self) -> ErrorReader:
        """Return a new reader; on a closed stream one that ends at once."""
        reader = ErrorReader(self, self._buffer)
        self._readers.add(reader)
        if self._closed:
            reader._end()
        return reader

    def forget(self, reader: ErrorReader) -> None:
        """Pass no more errors to this reader."""
        self._readers.discard(reader)

    def close(self) -> None:
        """End every reader's iteration after its unread errors."""
        self._closed = True
        for reader in list(self._readers):
            reader._end()


add_foreign_names(ErrorReader, ERRORS)

"""Errors that heal by themselves, for whoever wants to watch them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Self
from weakref import WeakSet

from asyncgroup.lifecycle import copy_error

__all__ = ["BUFFER", "ErrorReader", "ErrorStream"]

BUFFER: Final = 256
"""How many errors wait for a reader by default (`error_buffer`)."""


class ErrorReader:
    """An async iterator of errors from the moment it was made; ends when what it watches is closed.

    Holds a limited number of unread errors; older ones are dropped and counted in `dropped`.
    """

    def __init__(self, stream: ErrorStream, buffer: int) -> None:
        self._stream, self._buffer = stream, buffer
        self._errors: deque[Exception] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ErrorReader: {state}, {len(self._errors)} unread, {self.dropped} dropped>"

    def put(self, error: Exception) -> None:
        """Take an error in; a full buffer loses its oldest one."""
        if len(self._errors) >= self._buffer:
            self._errors.popleft()
            self.dropped += 1
        self._errors.append(error)
        self._changed.set()

    def close(self) -> None:
        """End the iteration behind what is buffered."""
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
    """Hands every error to every reader, each with a buffer of its own of `buffer` errors; never waits."""

    def __init__(self, buffer: int = BUFFER) -> None:
        self._buffer = buffer
        # a reader that its user has dropped must not count as one: errors would be logged nowhere
        self._readers: WeakSet[ErrorReader] = WeakSet()
        self._closed = False

    def put(self, error: Exception) -> bool:
        """Tell every reader; False if there is none, so that somebody else has to be told."""
        readers = list(self._readers)
        for reader in readers:
            reader.put(copy_error(error))  # a reader may raise it
        return bool(readers)

    def reader(self) -> ErrorReader:
        """A new reader; on a closed stream one that ends at once."""
        reader = ErrorReader(self, self._buffer)
        self._readers.add(reader)
        if self._closed:
            reader.close()
        return reader

    def forget(self, reader: ErrorReader) -> None:
        """Tell this reader nothing more."""
        self._readers.discard(reader)

    def close(self) -> None:
        """End every reader's iteration behind what it has not read yet."""
        self._closed = True
        for reader in list(self._readers):
            reader.close()

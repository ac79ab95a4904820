"""Errors that heal by themselves, for whoever wants to watch them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Self

__all__ = ["ErrorReader", "ErrorStream"]

BUFFER: Final = 256


class ErrorReader:
    """An async iterator of errors from the moment it was made; ends when the group closes.

    Holds at most 256 unread errors; older ones are dropped and counted in `dropped`.
    """

    def __init__(self, stream: ErrorStream) -> None:
        self._stream = stream
        self._errors: deque[Exception] = deque()
        self._changed = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, error: Exception) -> None:
        """Take an error in; a full buffer loses its oldest one."""
        if len(self._errors) == BUFFER:
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
    """Hands every error to every reader; never waits."""

    def __init__(self) -> None:
        self._readers: list[ErrorReader] = []
        self._closed = False

    def put(self, error: Exception) -> None:
        """Tell every reader."""
        for reader in self._readers:
            reader.put(error)

    def reader(self) -> ErrorReader:
        """A new reader; on a closed stream one that ends at once."""
        reader = ErrorReader(self)
        self._readers.append(reader)
        if self._closed:
            reader.close()
        return reader

    def forget(self, reader: ErrorReader) -> None:
        """Tell this reader nothing more."""
        if reader in self._readers:
            self._readers.remove(reader)

    def close(self) -> None:
        """End every reader's iteration behind what it has not read yet."""
        self._closed = True
        for reader in list(self._readers):
            reader.close()

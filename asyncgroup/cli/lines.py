"""Read lines asynchronously from a file, or from standard input as they arrive."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from pathlib import Path
from typing import Final, Self

__all__ = ["LineReader"]

CHUNK: Final = 256 * 1024
"""Bytes of one read."""
READ_AHEAD: Final = 4
"""Chunks that the thread reads ahead of the consumer."""


class LineReader:
    """An async iterator of lists of lines, in chunks as they arrive, without their line ends (`\\n` or `\\r\\n`).

    The last line needs no line end. Raises OSError if the file cannot be opened or read.

    A thread reads, because an event loop cannot wait for every kind of file. It is a daemon thread, because a read from
    a terminal cannot be interrupted. It reads from the descriptor, because Python aborts at exit if a daemon thread
    holds the lock of `sys.stdin`.
    """

    def __init__(self, file: Path | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()  # b"" marks the end
        self._slots = threading.Semaphore(READ_AHEAD)  # the thread acquires one for each chunk
        self._partial_line = b""
        self._stopped = False
        self._close_descriptor = file is not None  # standard input stays open
        self._name = "standard input" if file is None else str(file)
        if file is None and sys.stdin is None:  # the program was started without one (`<&-`)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._name)
        self._descriptor = (
            sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        )
        if sys.platform == "win32":
            import msvcrt

            # in text mode Windows would end the input at the first Ctrl-Z
            msvcrt.setmode(self._descriptor, os.O_BINARY)
        threading.Thread(target=self._read, name="asyncgroup: input", daemon=True).start()

    def stop(self) -> None:
        """Stop reading; lines that were read before are still returned. Safe to call twice."""
        if not self._stopped:
            self._stopped = True
            self._chunks.put_nowait(b"")
            self._slots.release()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            chunk = await self._chunks.get()
            self._slots.release()
            if isinstance(chunk, OSError):
                raise chunk
            *complete, self._partial_line = (self._partial_line + chunk).split(b"\n")
            if not chunk:
                return self._last_line()
            if complete:
                return [line.removesuffix(b"\r") for line in complete]

    def _last_line(self) -> list[bytes]:
        self._chunks.put_nowait(b"")  # so that further calls also end
        if not self._partial_line:
            raise StopAsyncIteration
        line, self._partial_line = self._partial_line, b""
        return [line.removesuffix(b"\r")]

    def _read(self) -> None:
        """Read chunks until the end, an error, or `stop`. Runs in the thread."""
        chunk: bytes | OSError = b" "
        while chunk and not isinstance(chunk, OSError):
            self._slots.acquire()
            if self._stopped:
                break
            try:
                chunk = os.read(self._descriptor, CHUNK)
            except OSError as error:
                chunk = OSError(error.errno, error.strerror, self._name)
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:  # the event loop is closed
                break
        if self._close_descriptor:
            os.close(self._descriptor)

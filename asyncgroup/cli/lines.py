"""Lines from a file, or from standard input as they come."""

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
READ_AHEAD: Final = 4
"""Chunks that are read before somebody wants them."""


class LineReader:
    """An async iterator of lists of lines, whatever has come, without their ends (`\\n` or `\\r\\n`).

    The last line needs no end. Raises OSError if the file cannot be opened or read.

    A thread reads, since no event loop can wait for every kind of file; and a daemon, since nothing ends a read from
    a terminal. It reads the descriptor itself: the lock of `sys.stdin`, held at the end, would abort the program.
    """

    def __init__(self, file: Path | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._slots = threading.Semaphore(READ_AHEAD)
        self._partial_line = b""
        self._stopped = False
        self._close_descriptor = file is not None
        self._name = "standard input" if file is None else str(file)
        if file is None and sys.stdin is None:  # the program was started without one (`<&-`)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._name)
        self._descriptor = (
            sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        )
        if sys.platform == "win32":
            import msvcrt

            # as text Windows would end the input at the first Ctrl-Z
            msvcrt.setmode(self._descriptor, os.O_BINARY)
        threading.Thread(target=self._read, name="asyncgroup: input", daemon=True).start()

    def stop(self) -> None:
        """Read no more; what was read before is still handed out. Safe to call twice."""
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
        self._chunks.put_nowait(b"")  # for whoever asks again
        if not self._partial_line:
            raise StopAsyncIteration
        line, self._partial_line = self._partial_line, b""
        return [line.removesuffix(b"\r")]

    def _read(self) -> None:
        """In the thread."""
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
            except RuntimeError:  # the loop is closed, nobody wants it any more
                break
        if self._close_descriptor:
            os.close(self._descriptor)

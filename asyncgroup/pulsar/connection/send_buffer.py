"""SendBuffer: what is sent in one turn of the event loop is written together."""

from __future__ import annotations

import asyncio
from typing import Final

from asyncgroup.net.framing import FrameProtocol

__all__ = ["SendBuffer"]

WRITE_AT_ONCE: Final = 64 * 1024
"""Bytes from which on what waits is written at once, so that the limit of the transport's buffer holds."""


class SendBuffer:
    """The bytes that wait for the end of this turn of the loop: the consumers of a thousand partitions send many small commands."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: FrameProtocol) -> None:
        self._loop = loop
        self._protocol = protocol
        self._waiting: list[bytes] = []
        self._size = 0  # of these, in bytes
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SendBuffer of {self._size} bytes>"

    def send(self, *pieces: bytes) -> None:
        """Write bytes in this turn of the loop; after `close` nothing."""
        if self._is_closed:
            return
        waiting = self._waiting
        if not waiting:
            self._loop.call_soon(self.flush)
        waiting.extend(pieces)
        for piece in pieces:
            self._size += len(piece)
        if self._size >= WRITE_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what waits; there may be nothing left."""
        if waiting := self._waiting:
            self._waiting, self._size = [], 0
            self._protocol.transport.writelines(waiting)

    def close(self) -> None:
        """Drop what waits, and what is sent from now on."""
        self._is_closed = True
        self._waiting.clear()

"""Bytes to frames: a size of four bytes and so many bytes behind it."""

from __future__ import annotations

import struct
from typing import Final

from asyncgroup.errors import DecodeError
from asyncgroup.wire.primitives import Buffer

__all__ = ["MAX_REQUEST_BYTES", "FrameBuffer"]

MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

_SIZE = struct.Struct(">i")


class FrameBuffer:
    """Takes what a connection receives and gives whole frames, without copying where a frame came in one
    piece.

    `limit` is the largest size that a frame may announce.
    """

    def __init__(self, limit: int) -> None:
        self.unread = 0
        """Bytes that were received and not given out yet."""
        self._limit = limit
        self._buffer: Buffer = b""
        self._position = 0
        self._chunks: list[bytes] = []  # what came after the buffer
        self._needed = 4

    def __repr__(self) -> str:
        return f"<FrameBuffer {self.unread} bytes unread>"

    def feed(self, data: bytes) -> None:
        """More bytes came."""
        self._chunks.append(data)
        self.unread += len(data)

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size, or None; DecodeError for a size that is not allowed."""
        if self.unread < self._needed:
            return None
        if self._chunks:
            self._join_chunks()
        (size,) = _SIZE.unpack_from(self._buffer, self._position)
        if not 0 <= size <= self._limit:
            raise DecodeError(f"a frame of {size} bytes, at most {self._limit} are allowed")
        if self.unread < 4 + size:
            self._needed = 4 + size
            return None
        start = self._position + 4
        self._position = start + size
        self.unread -= 4 + size
        self._needed = 4
        return memoryview(self._buffer)[start : start + size]

    def _join_chunks(self) -> None:
        """Make one buffer of what came; a single chunk, the usual case, is not copied."""
        if self._position < len(self._buffer):
            self._buffer = b"".join((memoryview(self._buffer)[self._position :], *self._chunks))
        else:
            self._buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._position = 0
        self._chunks.clear()

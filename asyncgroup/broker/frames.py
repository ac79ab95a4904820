"""Bytes to frames: a size of four bytes and so many bytes behind it."""

from __future__ import annotations

import struct
from typing import Final

from asyncgroup.errors import DecodeError

__all__ = ["MAX_REQUEST_BYTES", "FrameBuffer"]

MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

_SIZE = struct.Struct(">i")

_SMALL: Final = 1 << 12
_GATHERED: Final = 1 << 16
"""Pieces below the first size are gathered in buffers of up to the second: a piece of one byte takes 40 of memory."""


class FrameBuffer:
    """Takes what a connection receives and gives whole frames, each as `bytes` of its own.

    `limit` is the largest size that a frame may announce. Memory is taken for what came, never for what was announced.
    """

    __slots__ = ("_buffer", "_limit", "_needed", "_pieces", "_position", "unread")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def __repr__(self) -> str:
        return f"<FrameBuffer {self.unread} bytes unread>"

    @property
    def limit(self) -> int:
        """The largest size that a frame may announce."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit

    def clear(self) -> None:
        """Forget what came."""
        self.unread = 0
        """Bytes that were received and not given out yet."""
        self._buffer = b""
        self._position = 0
        self._pieces: list[bytes | bytearray] = []  # what came after the buffer
        self._needed = 4

    def feed(self, data: bytes) -> None:
        """More bytes came."""
        self.unread += len(data)
        if not self._pieces and self._position == len(self._buffer):
            self._buffer, self._position = data, 0
        elif len(data) >= _SMALL:
            self._pieces.append(data)
        else:
            last = self._pieces[-1] if self._pieces else b""
            if not isinstance(last, bytearray) or len(last) >= _GATHERED:
                last = bytearray()
                self._pieces.append(last)
            last += data

    def next_frame(self) -> bytes | None:
        """The next whole frame without its size, or None; DecodeError for a size that is not allowed."""
        if self.unread < self._needed:
            return None
        if len(self._buffer) - self._position < _SIZE.size:
            self._join()
        start = self._position + _SIZE.size
        (size,) = _SIZE.unpack_from(self._buffer, self._position)
        if not 0 <= size <= self._limit:
            guess = _other_protocol(self._buffer[self._position : self._position + _SIZE.size])
            raise DecodeError(f"a frame of {size} bytes, at most {self._limit} are allowed{guess}")
        if self.unread < _SIZE.size + size:
            self._needed = _SIZE.size + size
            return None
        return self._cut(start, size)

    def _cut(self, start: int, size: int) -> bytes:
        """Take out the frame that begins at `start` in the buffer; a large one, in many pieces, is copied once."""
        self._needed = _SIZE.size
        self.unread -= _SIZE.size + size
        if self.unread == 0 and self._pieces:
            frame = b"".join((memoryview(self._buffer)[start:], *self._pieces))
            self.clear()
            return frame
        if start + size > len(self._buffer):
            self._join()
            start = _SIZE.size
        frame = self._buffer[start : start + size]
        self._position = start + size
        if self._position == len(self._buffer):
            self._buffer, self._position = b"", 0  # an idle connection keeps nothing of its last request
        return frame

    def _join(self) -> None:
        """Make one buffer of what came."""
        self._buffer = b"".join((memoryview(self._buffer)[self._position :], *self._pieces))
        self._position = 0
        self._pieces.clear()


def _other_protocol(head: bytes) -> str:
    """What a client seems to speak whose first bytes make no size, as a clause for the error; "" for no idea."""
    if head[:2] == b"\x16\x03":
        return " (this looks like TLS: the listener is plain text)"
    if head in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
        return " (this looks like HTTP)"
    return ""

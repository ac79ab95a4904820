"""The broker's half of the framing: split a byte stream into request frames, decode them, encode response frames.

A frame is a 4-byte size followed by that many bytes (Kafka's `NetworkReceive`). The client's half is in
`wire/codec.py`.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire.apis import API_VERSIONS_KEY, APIS
from asyncgroup.wire.codec import INT16, INT32, REQUEST_HEADER, decode_from, with_size
from asyncgroup.wire.message import Message
from asyncgroup.wire.primitives import Buffer, skip_tags

__all__ = [
    "MAX_REQUEST_BYTES",
    "DecodedRequestHeader",
    "FrameBuffer",
    "decode_request_body",
    "decode_request_header",
    "encode_response",
]

MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

_SIZE = struct.Struct(">i")

_SMALL: Final = 1 << 12
"""Bytes; received pieces smaller than this are copied together: a `bytes` object of one byte takes 40 bytes of
memory.
"""

_GATHERED: Final = 1 << 16
"""Bytes; size at which a buffer of small pieces is full."""


class FrameBuffer:
    """Receive buffer of one connection: `feed` bytes, take complete frames with `next_frame`.

    `limit` is the largest size that a frame may announce. Memory is allocated for received bytes, never for
    announced ones.
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
        """Drop all received bytes."""
        self.unread = 0
        """Bytes received and not yet returned as frames."""
        self._buffer = b""
        self._position = 0  # where the next frame begins in the buffer
        self._pieces: list[bytes | bytearray] = []  # received after the buffer
        self._needed = _SIZE.size  # `unread` below which there is no next frame

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self.unread += len(data)
        if not self._pieces and self._position == len(self._buffer):
            self._buffer = data
            self._position = 0
        elif len(data) >= _SMALL:
            self._pieces.append(data)
        else:
            last = self._pieces[-1] if self._pieces else b""
            if not isinstance(last, bytearray) or len(last) >= _GATHERED:
                last = bytearray()
                self._pieces.append(last)
            last += data

    def next_frame(self) -> bytes | None:
        """Return the next complete frame without its size, or None.

        Raise DecodeError for a size that is not allowed.
        """
        if self.unread < self._needed:
            return None
        if len(self._buffer) - self._position < _SIZE.size:
            self._join()
        start = self._position + _SIZE.size
        (size,) = _SIZE.unpack_from(self._buffer, self._position)
        if not 0 <= size <= self._limit:
            guess = _other_protocol(self._buffer[self._position : self._position + _SIZE.size])
            raise DecodeError(f"a frame of {size} bytes; at most {self._limit} are allowed{guess}")
        if self.unread < _SIZE.size + size:
            self._needed = _SIZE.size + size
            return None
        return self._cut(start, size)

    def _cut(self, start: int, size: int) -> bytes:
        """Remove and return the frame at `start` in the buffer; one that consists of many pieces is copied once."""
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
            # an idle connection must not keep its last request in memory
            self._buffer = b""
            self._position = 0
        return frame

    def _join(self) -> None:
        """Join all pieces into one buffer."""
        self._buffer = b"".join((memoryview(self._buffer)[self._position :], *self._pieces))
        self._position = 0
        self._pieces.clear()


def _other_protocol(head: bytes) -> str:
    """Guess from the first bytes which other protocol the client speaks: a clause for the error message, or ""."""
    if head[:2] == b"\x16\x03":
        return " (this looks like TLS: the listener is plain text)"
    if head in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
        return " (this looks like HTTP)"
    return ""


class DecodedRequestHeader(NamedTuple):
    """The header of a received request; `body` is the position of the message, which follows the header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: int


def encode_response(message: Message, version: int, correlation_id: int) -> list[bytes]:
    """Return a response frame, as pieces to write in order."""
    flexible = version >= APIS[message.API_KEY].flexible_from and message.API_KEY != API_VERSIONS_KEY
    pieces: list[bytes] = [b"", INT32.pack(correlation_id) + (b"\x00" if flexible else b"")]
    return with_size(message, version, pieces)


def decode_request_header(frame: Buffer) -> DecodedRequestHeader:
    """Decode the header of a request frame (without its size).

    For an unknown API only the first three fields are decoded: `client_id` is None and `body` the end of the frame. A
    version newer than the known ones is assumed to have the newest header version. Raises DecodeError for malformed bytes.
    """
    try:
        key, version, correlation_id = REQUEST_HEADER.unpack_from(frame, 0)
        api = APIS.get(key)
        if api is None:
            return DecodedRequestHeader(key, version, correlation_id, None, len(frame))
        (length,) = INT16.unpack_from(frame, 8)
        position = 10 + max(length, 0)
        client_id = None if length < 0 else str(frame[10:position], "utf-8")
        if version >= api.flexible_from:
            position = skip_tags(frame, position)
    except (IndexError, struct.error) as error:
        raise DecodeError("request header: truncated") from error
    except (ValueError, DecodeError) as error:
        raise DecodeError(f"request header: {error}") from error
    if position > len(frame):
        raise DecodeError("request header: truncated")
    return DecodedRequestHeader(key, version, correlation_id, client_id, position)


def decode_request_body(header: DecodedRequestHeader, frame: Buffer) -> Any:
    """Decode the message after a header; raises DecodeError, and UnsupportedVersionError for an unknown API or version.

    Bytes after the message are ignored, as Kafka does: librdkafka appends some to a Metadata request for all topics.
    """
    if header.api_key not in APIS:
        raise UnsupportedVersionError(f"API key {header.api_key} is unknown")
    return decode_from(APIS[header.api_key].request, header.api_version, frame, header.body)[0]

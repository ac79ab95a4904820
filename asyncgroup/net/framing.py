"""Split a byte stream into frames that begin with their size.

A large response is received directly into a buffer of its exact size, without joining or copying. This module knows
only sizes; the caller decodes the frames.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from asyncgroup.errors import ConnectionLost, ProtocolError, TransportError
from asyncgroup.net.tls_errors import Hints, describe_tls_error

__all__ = ["FrameProtocol", "ReadTurns"]

SIZE_BYTES: Final = 4
"""Bytes of the size field before each frame."""

READ_BYTES: Final = 64 * 1024
"""Size of the receive buffer; a frame that does not fit gets a separate buffer."""


READ_SECONDS: Final = 0.01
"""How long frames may be processed before other callbacks of the loop have a turn."""

FRAMES_BETWEEN_LOOKS: Final = 8
"""Frames after which the time is looked at: for each one it would cost as much as a small frame."""


class ReadTurns:
    """Ends a long run of frames after `READ_SECONDS`: a loop may receive many buffers in one turn (uvloop up to 32)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends_at: float | None = None  # of this turn of the loop, once it was looked at

    def is_over(self) -> bool:
        """Return whether this turn of the loop has had enough frames."""
        now = self._loop.time()
        if self._ends_at is None:
            self._ends_at = now + READ_SECONDS
            self._loop.call_soon(self._begin)
            return False
        return now >= self._ends_at

    def continue_later(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in the next turn of the loop."""
        self._loop.call_soon(go_on)

    def _begin(self) -> None:
        self._ends_at = None


class FrameProtocol(asyncio.BufferedProtocol):
    """Split received bytes into frames: a four-byte size and a body.

    `on_frame(body)` is called for each frame, `on_lost(error)` once when the connection ends (None: closed by this
    side). A size below zero or above `max_size` aborts the connection with ProtocolError. `hints` are for its errors. With
    `turns` a long run of frames is interrupted, and nothing is read until it goes on.
    """

    def __init__(
        self,
        on_frame: Callable[[bytes | bytearray], None],
        on_lost: Callable[[TransportError | ProtocolError | None], None],
        max_size: int,
        hints: Hints,
        turns: ReadTurns | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self.max_size = max_size
        """Bytes; a larger frame ends the connection."""
        self._hints = hints
        self._turns = turns
        self._frames_left = FRAMES_BETWEEN_LOOKS  # until the time is looked at
        self._is_interrupted = False  # reading is paused, and complete frames may be in `_small`
        self._goes_on = False  # with the next turn
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(READ_BYTES)
        self._small_view = memoryview(self._small)
        self._filled = 0  # bytes in `_small` that are not yet split into frames
        self.received_bytes = 0
        """Bytes received so far, including those of incomplete frames."""
        self._body: bytearray | None = None  # the body of a large frame while it is being received
        self._body_filled = 0  # bytes of it received so far
        self._error: TransportError | ProtocolError | None = None
        """Passed to `on_lost` once the transport is closed."""
        self._writable = asyncio.Event()  # clear while the transport's write buffer is full
        self._writable.set()

    @property
    def transport(self) -> asyncio.Transport:
        """The transport; only valid after `connection_made`."""
        assert self._transport is not None
        return self._transport

    @property
    def has_transport(self) -> bool:
        """Whether the connection was established."""
        return self._transport is not None

    @property
    def is_closing(self) -> bool:
        """Whether the transport is closed or about to be, as after the broker's EOF; `on_lost` follows in a later turn."""
        return self._transport is not None and self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the transport's write buffer has room."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait until the transport's write buffer has room."""
        await self._writable.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is established."""
        self._transport = transport  # type: ignore[assignment]  # a TCP or TLS transport is a Transport

    def pause_writing(self) -> None:
        """asyncio: the transport's write buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the transport's write buffer has room again."""
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        """asyncio: return the buffer to receive into; never empty."""
        if self._body is not None:
            return memoryview(self._body)[self._body_filled :]
        return self._small_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: `nbytes` were received into that buffer."""
        self.received_bytes += nbytes
        if self._body is None:
            self._filled += nbytes
            self._split()
            return
        self._body_filled += nbytes
        if self._body_filled == len(self._body):
            body, self._body = self._body, None
            self._on_frame(body)
            if self._turns is not None and self._turns.is_over():
                self._interrupt(self._turns)

    def _split(self) -> None:
        """Pass on the complete frames in the small buffer; a frame larger than the buffer gets a separate one.

        Afterwards the rest, an incomplete frame, is at the beginning of the small buffer.
        """
        start, left = 0, self._frames_left
        while self._filled - start >= SIZE_BYTES and self._error is None:
            size = int.from_bytes(self._small[start : start + SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= self.max_size:
                other = _other_protocol(bytes(self._small[start : start + SIZE_BYTES]), self._hints)
                wrong = f"received a frame size of {size} bytes; 0 to {self.max_size} are allowed"
                self._fail(ProtocolError(f"{other} ({wrong})" if other else wrong))
                return
            begin, end = start + SIZE_BYTES, start + SIZE_BYTES + size
            if end <= self._filled:
                self._on_frame(bytes(self._small_view[begin:end]))
                start = end
                left -= 1
                if not left:
                    left = FRAMES_BETWEEN_LOOKS
                    if self._turns is not None and self._turns.is_over():
                        self._interrupt(self._turns)
                        break
                continue
            if size > READ_BYTES - SIZE_BYTES:
                try:
                    self._body = bytearray(size)
                except MemoryError:
                    self._fail(ProtocolError(f"not enough memory for a frame of {size} bytes"))
                    return
                self._body_filled = self._filled - begin
                self._body[: self._body_filled] = self._small_view[begin : self._filled]
                self._filled = start = 0
            break
        self._frames_left = left
        if start:
            self._small_view[: self._filled - start] = bytes(self._small_view[start : self._filled])
            self._filled -= start

    def _interrupt(self, turns: ReadTurns) -> None:
        if not self._is_interrupted:
            self._is_interrupted = True
            self.transport.pause_reading()
        self._goes_on = True
        turns.continue_later(self._go_on)

    def _go_on(self) -> None:
        if not self._is_interrupted:
            return  # the connection is lost
        self._goes_on = False
        self._split()
        if not self._goes_on:
            self._is_interrupted = False
            self.transport.resume_reading()

    def _fail(self, error: ProtocolError) -> None:
        self._error = error
        self.transport.abort()

    def eof_received(self) -> bool:
        """asyncio: the broker closed its side; return False so that the transport closes too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is closed."""
        self._writable.set()
        if self._is_interrupted:  # what has arrived is passed on before the end
            self._is_interrupted, self._turns = False, None
            self._split()
        error = self._error
        if error is None and exc is not None:
            why = describe_tls_error(exc, self._hints) if isinstance(exc, ssl.SSLError) else str(exc)
            error = ConnectionLost(f"connection lost: {why}")
        self._on_lost(error)


def _other_protocol(head: bytes, hints: Hints) -> str:
    """Guess another protocol from the first four bytes; returns a sentence for the error, "" if none is recognized."""
    if head[0] == 0x15 and head[1] == 0x03:  # a TLS alert
        return f"the listener expects TLS: {hints.tls_listener}"
    if head == b"HTTP":
        return f"this is an HTTP server, not {hints.broker}"
    if head == b"SSH-":
        return f"this is an SSH server, not {hints.broker}"
    return ""

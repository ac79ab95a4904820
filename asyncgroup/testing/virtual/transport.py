"""The transport of an in-memory connection: asyncio's socket transport without the socket.

It calls the protocol exactly as `asyncio.selector_events._SelectorSocketTransport` does, so that code under test behaves
as on real sockets; `tests/testing/test_stream_contract.py` runs the same tests on both.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio import BufferedProtocol, Protocol
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from asyncgroup.testing.virtual.addresses import Address, socket_address
from asyncgroup.testing.virtual.connection import EndCallbacks, Pipe, Signal

__all__ = ["VirtualTransport"]

_HIGH_WATER = 64 * 1024
"""Bytes of write buffer above which asyncio pauses a protocol by default."""


class VirtualTransport(asyncio.Transport):
    """One end of a connection: a full asyncio transport for `Protocol` and `BufferedProtocol`.

    `get_extra_info` has "sockname" and "peername", both in the form that sockets return; "socket" is None.
    """

    if TYPE_CHECKING:  # an attribute of the base class that typeshed does not declare
        _extra: dict[str, Any]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BaseProtocol,
        inbound: Pipe,
        outbound: Pipe,
        local: Address,
        remote: Address,
        *,
        waiter: asyncio.Future[None] | None = None,
        on_lost: Callable[[VirtualTransport], None] | None = None,
    ) -> None:
        names = {"sockname": socket_address(local), "peername": socket_address(remote)}
        super().__init__({**names, "socket": None})
        self._loop = loop
        self._protocol = protocol
        self._inbound = inbound
        self._outbound = outbound
        self._on_lost = on_lost  # called after connection_lost
        self._buffer = bytearray()  # written, but not sent: the window was full
        self._low_water = _HIGH_WATER // 4  # bytes
        self._high_water = _HIGH_WATER  # bytes
        self._started = False  # reading starts after connection_made
        self._paused = False  # pause_reading was called
        self._protocol_paused = False  # pause_writing was called on the protocol
        self._eof_sent = False  # write_eof was called
        self._eof_seen = False  # the other end has sent its end of file
        self._closing = False  # close or abort was called, or the connection failed
        self._lost = False  # connection_lost is scheduled or was called
        self._pending_error: OSError | None = None  # a reset that the next write or resume_reading will raise
        self._flush: asyncio.Handle | None = None  # the scheduled `_write_buffered`
        inbound.receiver = outbound.sender = EndCallbacks(
            self, self._data_arrived, self._eof_arrived, self._reset_by_peer, self._window_opened, self._fail
        )
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._start_reading)
        if waiter is not None:
            loop.call_soon(_wake, waiter)

    def __repr__(self) -> str:
        local, remote = (
            f"{ip}:{port}" for ip, port, *_ in (self._extra["sockname"], self._extra["peername"])
        )
        state = "closed" if self._lost else "closing" if self._closing else "open"
        return f"<VirtualTransport {local} <-> {remote} {state}, {len(self._buffer)} bytes to write>"

    # -- asyncio.BaseTransport ----------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol; it gets everything that arrives from now on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the current protocol."""
        return self._protocol

    def is_closing(self) -> bool:
        """True once `close` or `abort` was called or the connection failed."""
        return self._closing

    def close(self) -> None:
        """Stop reading, send what is buffered, then call `connection_lost(None)`."""
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        """Close at once, discarding the write buffer."""
        self._fail(None)

    # -- asyncio.ReadTransport ----------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """True while arriving bytes are passed to the protocol."""
        return self._started and not (self._closing or self._paused or self._eof_seen)

    def pause_reading(self) -> None:
        """Stop passing bytes to the protocol; the sender can send until its window is full."""
        if not (self._closing or self._paused):
            self._paused = True

    def resume_reading(self) -> None:
        """Continue after `pause_reading`."""
        if self._closing or not self._paused:
            return
        self._paused = False
        if self._pending_error is not None and not self._eof_seen:
            self._fail(self._pending_error)
        self._inbound.schedule_delivery()

    # -- asyncio.WriteTransport ---------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data` as far as the window allows and buffer the rest. Mutable data is copied."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._lost:
            return
        if self._pending_error is not None:
            self._fail(self._pending_error)
            return
        content = bytes(data)
        if not self._buffer:
            window_left = self._outbound.window_left
            if window_left:
                self._outbound.send(content[:window_left])
            content = content[window_left:]
        if content:
            self._buffer += content
            self._pause_protocol_if_full()

    def can_write_eof(self) -> bool:
        """True: the writing half can be closed on its own."""
        return True

    def write_eof(self) -> None:
        """Close the writing half once the buffer is sent; reading continues."""
        if self._closing or self._eof_sent:
            return
        self._eof_sent = True
        if not self._buffer:
            self._send_eof()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait for the window."""
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the (low, high) water marks in bytes."""
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which the protocol's writing is paused (high) and resumed (low), as in asyncio."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._low_water = low
        self._high_water = high
        self._pause_protocol_if_full()

    # -- called by the pipes ------------------------------------------------------------------------------------------

    def _data_arrived(self, most: int) -> None:
        """Pass one chunk of up to `most` of the bytes that have arrived to the protocol."""
        if isinstance(self._protocol, BufferedProtocol):
            self._fill_buffer(self._protocol, most)
        else:
            data = self._inbound.read(most)
            self._call_protocol(cast(Protocol, self._protocol).data_received, "data_received", data)

    def _eof_arrived(self) -> None:
        """Handle the other end's end of file: close, unless the protocol wants to continue writing."""
        self._eof_seen = True
        # both kinds of stream protocol have eof_received
        kept_open = self._call_protocol(cast(Protocol, self._protocol).eof_received, "eof_received")
        if not kept_open:
            self.close()

    def _reset_by_peer(self) -> None:
        """Handle a reset: fail now if reading or if bytes are buffered, otherwise at the next write."""
        if self._lost:
            return
        if self._eof_seen:  # after an end of file TCP reports the reset as a broken pipe
            self._pending_error = BrokenPipeError(errno.EPIPE, "Broken pipe")
        else:
            self._pending_error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self.is_reading() or self._buffer:
            self._fail(self._pending_error)

    def _window_opened(self) -> None:
        """Continue to send the buffer in the next iteration of the loop: the window is open again."""
        if self._buffer and self._flush is None and not self._lost:
            self._flush = self._loop.call_soon(self._write_buffered)

    def _fail(self, error: Exception | None) -> None:
        """Close at once: discard the write buffer and call `connection_lost(error)`."""
        self._closing = True
        self._buffer.clear()
        self._lose(error)

    # -- private ------------------------------------------------------------------------------------------------------

    def _start_reading(self) -> None:
        self._started = True
        self._inbound.schedule_delivery()

    def _fill_buffer(self, protocol: BufferedProtocol, most: int) -> None:
        buffer = self._call_protocol(protocol.get_buffer, "get_buffer", -1)
        if self._lost:
            return
        target = memoryview(buffer).cast("B")
        if not target:
            self._fatal(RuntimeError("get_buffer() returned an empty buffer"), "get_buffer")
            return
        data = self._inbound.read(min(len(target), most))
        target[: len(data)] = data
        target.release()
        self._call_protocol(protocol.buffer_updated, "buffer_updated", len(data))

    def _call_protocol(self, method: Callable[..., Any], name: str, *args: Any) -> Any:
        """Call a method of the protocol; an exception ends the connection, as in asyncio."""
        try:
            return method(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # the protocol's error, reported to the loop's handler
            self._fatal(error, name)
            return True

    def _fatal(self, error: BaseException, name: str) -> None:
        if not isinstance(error, OSError):
            self._report(f"Fatal error: protocol.{name}() call failed.", error)
        self._fail(cast(Exception, error))

    def _report(self, message: str, error: BaseException) -> None:
        context = {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler(context)

    def _write_buffered(self) -> None:
        self._flush = None
        if self._lost or not self._buffer:
            return
        count = min(self._outbound.window_left, len(self._buffer))
        if count:
            self._outbound.send(bytes(memoryview(self._buffer)[:count]))
            del self._buffer[:count]
        if self._protocol_paused and len(self._buffer) <= self._low_water:
            self._protocol_paused = False
            self._notify_protocol("resume_writing")  # which may call write()
        if self._buffer:
            return
        if self._closing:
            self._lose(None)
        elif self._eof_sent:
            self._send_eof()

    def _pause_protocol_if_full(self) -> None:
        if len(self._buffer) > self._high_water and not self._protocol_paused:
            self._protocol_paused = True
            self._notify_protocol("pause_writing")

    def _notify_protocol(self, name: str) -> None:
        try:
            getattr(self._protocol, name)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # asyncio reports it and continues
            self._report(f"protocol.{name}() failed", error)

    def _send_eof(self) -> None:
        self._outbound.send(Signal.EOF)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._close_socket()
            if self._on_lost is not None:
                self._on_lost(self)

    def _close_socket(self) -> None:
        if self._inbound.close():
            self._outbound.send(Signal.RESET)  # as TCP answers bytes that were left unread
        elif not self._eof_sent:
            self._outbound.send(Signal.EOF)
        self._outbound.sender = None
        self._inbound.connection.end_closed()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

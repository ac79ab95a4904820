"""The end of an in-memory connection that a protocol holds: asyncio's socket transport without the socket.

Follows `asyncio.selector_events._SelectorSocketTransport` callback by callback, because code under test must not be
able to tell them apart; `tests/testing/test_stream_contract.py` runs one suite over both.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio import BufferedProtocol, Protocol
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from asyncgroup.testing.addresses import Address, socket_address
from asyncgroup.testing.pipe import Pipe, Signal

if TYPE_CHECKING:
    from asyncgroup.testing.server import VirtualServer

__all__ = ["VirtualTransport"]

_HIGH_WATER = 64 * 1024
"""Bytes of write buffer above which asyncio pauses a protocol by default."""


class VirtualTransport(asyncio.Transport):
    """One end of a `Link`: a full asyncio transport for `Protocol` and `BufferedProtocol`.

    `get_extra_info` knows "sockname" and "peername", both as sockets give them; "socket" is None.
    """

    if TYPE_CHECKING:  # the base class keeps it, and typeshed does not tell
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
        server: VirtualServer | None = None,
        waiter: asyncio.Future[None] | None = None,
    ) -> None:
        names = {"sockname": socket_address(local), "peername": socket_address(remote)}
        super().__init__({**names, "socket": None})
        self._loop = loop
        self._protocol = protocol
        self._inbound, self._outbound = inbound, outbound
        self._server = server
        self._buffer = bytearray()
        self._low_water, self._high_water = _HIGH_WATER // 4, _HIGH_WATER
        self._started = False  # reading starts after connection_made
        self._paused = False  # pause_reading was called
        self._protocol_paused = False  # the protocol was told to pause writing
        self._eof_sent = False  # write_eof was called
        self._eof_seen = False
        self._closing = False
        self._lost = False  # connection_lost is on its way or over
        self._pending_error: OSError | None = None  # what the next write will meet
        self._flush: asyncio.Handle | None = None
        inbound.receiver = outbound.sender = self
        if server is not None:
            server.attach(self)
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
        """Deliver to another protocol from now on."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that is delivered to."""
        return self._protocol

    def is_closing(self) -> bool:
        """True once `close` or `abort` was called or the connection failed."""
        return self._closing

    def close(self) -> None:
        """Stop reading, write out what is buffered, then call `connection_lost(None)`."""
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        """Close at once; what is still in the write buffer is lost."""
        self.fail(None)

    # -- asyncio.ReadTransport ----------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """True while arriving bytes go to the protocol."""
        return self._started and not (self._closing or self._paused or self._eof_seen)

    def pause_reading(self) -> None:
        """Leave arriving bytes where they are, until the sender's window is full."""
        if not (self._closing or self._paused):
            self._paused = True

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._closing or not self._paused:
            return
        self._paused = False
        if self._pending_error is not None and not self._eof_seen:
            self.fail(self._pending_error)
        self._inbound.schedule_delivery()

    # -- asyncio.WriteTransport ---------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data`; what finds no room in the window is buffered. The data is copied where it could change."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._lost:
            return
        if self._pending_error is not None:
            self.fail(self._pending_error)
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
        """True: the writing half can be closed alone."""
        return True

    def write_eof(self) -> None:
        """Close the writing half once everything buffered is sent; reading goes on."""
        if self._closing or self._eof_sent:
            return
        self._eof_sent = True
        if not self._buffer:
            self._send_eof()

    def get_write_buffer_size(self) -> int:
        """Bytes that found no room in the window yet."""
        return len(self._buffer)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high) water marks in bytes."""
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks between which the protocol's writing is paused and resumed; as in asyncio."""
        if high is None:
            high = _HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._low_water, self._high_water = low, high
        self._pause_protocol_if_full()

    # -- what the pipes call ------------------------------------------------------------------------------------------

    def data_arrived(self, most: int) -> None:
        """Bytes have arrived: take one chunk of up to `most` bytes."""
        if isinstance(self._protocol, BufferedProtocol):
            self._fill_buffer(self._protocol, most)
        else:
            data = self._inbound.read(most)
            self._call_protocol(cast(Protocol, self._protocol).data_received, "data_received", data)

    def eof_arrived(self) -> None:
        """The other end will send no more: close, unless the protocol wants to go on writing."""
        self._eof_seen = True
        # both kinds of stream protocol have eof_received
        kept_open = self._call_protocol(cast(Protocol, self._protocol).eof_received, "eof_received")
        if not kept_open:
            self.close()

    def reset_by_peer(self) -> None:
        """The other end's socket is gone. Noticed now by a reader or a waiting writer, otherwise at the next write."""
        if self._lost:
            return
        if self._eof_seen:  # after an end of file TCP reports the reset as a broken pipe
            self._pending_error = BrokenPipeError(errno.EPIPE, "Broken pipe")
        else:
            self._pending_error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self.is_reading() or self._buffer:
            self.fail(self._pending_error)

    def window_opened(self) -> None:
        """The window has room again: continue writing at the next turn."""
        if self._buffer and self._flush is None and not self._lost:
            self._flush = self._loop.call_soon(self._write_buffered)

    def fail(self, error: Exception | None) -> None:
        """Give the connection up: drop what is buffered and call `connection_lost(error)`."""
        self._closing = True
        self._buffer.clear()
        self._lose(error)

    # -- inside -------------------------------------------------------------------------------------------------------

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
        """Call a method of the protocol; what it raises ends the connection, as in asyncio."""
        try:
            return method(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # it is the protocol's, and goes to the loop's handler
            self._fatal(error, name)
            return True

    def _fatal(self, error: BaseException, name: str) -> None:
        if not isinstance(error, OSError):
            self._report(f"Fatal error: protocol.{name}() call failed.", error)
        self.fail(cast(Exception, error))

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
            self._notify_protocol("resume_writing")  # may write again
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
        except BaseException as error:  # noqa: BLE001  # asyncio reports it and goes on
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
            if self._server is not None:
                self._server.detach(self)
                self._server = None

    def _close_socket(self) -> None:
        if self._inbound.close():
            self._outbound.send(Signal.RESET)  # TCP's answer to bytes that nobody will read
        elif not self._eof_sent:
            self._outbound.send(Signal.EOF)
        self._outbound.sender = None
        self._inbound.link.end_closed()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

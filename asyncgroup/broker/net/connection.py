"""A node's client connections: request frames in, response frames out (Kafka's `SocketServer`).

A connection serves one request at a time and responds in order. As in Kafka, it is closed on an unknown API, an
unsupported version, malformed bytes, or a frame beyond the size limit.

Connections are served fairly: after some requests in a row a connection yields to the loop. Backpressure: while a
request is being served, or the client does not read its responses, the node reads only a little ahead, and the rest
stays in the network; `request_memory` limits the total of all connections. A connection without traffic for
`connections.max.idle.ms` is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final, cast

from asyncgroup.broker.errors import CloseConnection
from asyncgroup.broker.net.frames import (
    DecodedRequestHeader,
    FrameBuffer,
    decode_request_body,
    decode_request_header,
    encode_response,
)
from asyncgroup.broker.net.listener import Listener
from asyncgroup.broker.net.sasl import MAX_TOKEN_BYTES, Authenticator
from asyncgroup.broker.net.service import ApiHandler, Call, RequestContext
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import DecodeError, ProtocolError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import start_task
from asyncgroup.wire.apis import API_VERSIONS_KEY
from asyncgroup.wire.message import Message

__all__ = ["ServerConnection"]

log = escaping_logger(__name__)

_READ_AHEAD: Final = 1 << 18
"""Bytes that may be received ahead of the request being served; more stays in the network."""

_NUMBERS: Final = count(1)
_TURN: Final = 32
"""Requests of one connection served in a row before it yields to the loop."""


class ServerConnection(asyncio.Protocol):
    """A client's connection to the node of `listener`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._service = listener.service
        self._loop = asyncio.get_running_loop()
        self._authenticator = listener.new_authenticator()
        self._frames = FrameBuffer(
            listener.max_request_bytes
            if self._authenticator is None
            else min(MAX_TOKEN_BYTES, listener.max_request_bytes)
        )
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._waiting: asyncio.Future[Any] | None = None  # the response of the request being served
        self._muted: asyncio.TimerHandle | None = None  # while a throttle time mutes the connection
        self._turn: asyncio.Handle | None = None  # the next turn, while complete frames wait for it
        self._idle: asyncio.TimerHandle | None = None  # the timer of `_expire`
        self._active_at = self._loop.time()
        """When a byte was last received or sent (loop time)."""
        self._unsent = 0
        """Bytes in the transport's write buffer when it was last checked."""
        self._stuck = (
            False  # no further request is served: a fault dropped the response, or the connection closes
        )
        self._can_write = True  # False while the client reads too slowly
        self._reading = True  # False while the transport's reading is paused
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.number = next(_NUMBERS)

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else "busy" if self._busy else "idle"
        return f"<ServerConnection to node {self._listener.node_id} from {self._peer} {state}>"

    @property
    def unread(self) -> int:
        """Bytes received and not yet served."""
        return self._frames.unread

    # -- asyncio.Protocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection at the listener and start its idle timer."""
        # not isinstance: the transports of uvloop do not derive from those of asyncio
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = f"/{peer[0]}" if peer else ""
        self._listener.connections.add(self)
        if not self._listener.is_open:  # accepted just as the node stopped
            self.abort()
        elif self._listener.connections_max_idle is not None:
            self._idle = self._loop.call_later(self._listener.connections_max_idle, self._expire)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Cancel the request being served and all timers."""
        self._transport = None
        self._listener.connections.discard(self)
        self._frames.clear()
        self._listener.request_memory.update(self, 0)
        for planned in (self._muted, self._turn, self._idle):
            if planned is not None:
                planned.cancel()
        if self._waiting is None:
            self._set_closed()
        else:
            self._waiting.add_done_callback(lambda _: self._set_closed())
            self._waiting.cancel()

    def _set_closed(self) -> None:
        """Mark the connection closed; it has no running task any more."""
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """Stop serving requests: the client reads its responses too slowly."""
        self._can_write = False

    def resume_writing(self) -> None:
        """Serve requests again: the client has read its responses."""
        self._can_write = True
        self._active_at = self._loop.time()
        self._serve()

    def data_received(self, data: bytes) -> None:
        """Serve the complete frames."""
        self._active_at = self._loop.time()
        self._frames.feed(data)
        self._serve()

    # -- frames ----------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Whether no further request may be served now."""
        return self._waiting is not None or self._muted is not None or self._stuck or not self._can_write

    def _serve(self) -> None:
        """Serve up to _TURN complete frames, then resume or pause reading.

        It is called whenever the connection may have become able to serve; while a next turn is scheduled, frames wait
        for that.
        """
        if self._turn is not None:
            return
        for _ in range(_TURN):
            if not self._frames.unread or self._busy:
                break
            try:
                frame = self._frames.next_frame()
            except DecodeError as error:
                self.close(str(error))
                return
            if frame is None:
                break
            self._handle_frame(frame)
        else:
            self._turn = self._loop.call_soon(self._next_turn)
        self._listener.request_memory.update(self, self._frames.unread)
        self.read_or_pause()

    def _next_turn(self) -> None:
        self._turn = None
        self._serve()

    def read_or_pause(self) -> None:
        """Resume reading, or pause it if enough bytes are waiting or memory is reserved for another request."""
        has_room = self._frames.unread <= _READ_AHEAD or not (self._busy or self._turn)
        wanted = has_room and self._listener.request_memory.may_read(self)
        if wanted is self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _handle_frame(self, frame: bytes) -> None:
        if self._authenticator is not None and self._authenticator.expects_raw_token:
            self._handle_raw_token(self._authenticator, frame)
            return
        try:
            header = decode_request_header(frame)
            handler = self._service.handler(header.api_key)
            if handler is None or header.api_version not in handler.versions:
                self._refuse_version(header)
                return
            admitted = self._authenticator is None or self._authenticator.admit(handler.name)
            request = decode_request_body(header, frame)
        except ProtocolError as error:
            self.close(f"malformed request: {error}")
            return
        except CloseConnection as reason:
            self.close(str(reason))
            return
        context = self._context(header, handler)
        call = self._service.call(context, handler, request, len(frame))
        self._answer_with(
            call, call.handle if admitted else lambda: call.error_response(ErrorCode.ILLEGAL_SASL_STATE)
        )

    def _handle_raw_token(self, authenticator: Authenticator, token: bytes) -> None:
        """Serve a SASL token without request header, as clients before Kafka 1.0 send it."""
        try:
            answer = authenticator.authenticate_raw(token)
        except CloseConnection as reason:
            self.close(str(reason))
            return
        self._write([len(answer).to_bytes(4, "big"), answer])
        self._check_authenticated()

    def _check_authenticated(self) -> None:
        """Close the connection if authentication failed; raise the frame limit once it is complete."""
        if self._authenticator is None:
            return
        if self._authenticator.failed:
            self.close("SASL authentication failed")
        elif self._authenticator.complete:
            self._frames.limit = self._listener.max_request_bytes

    def _context(self, header: DecodedRequestHeader, handler: ApiHandler) -> RequestContext:
        return RequestContext(
            self._loop.time(),
            self._listener.node_id,
            header.client_id or "",
            self._peer,
            handler.name,
            header.api_key,
            header.api_version,
            header.correlation_id,
            authenticator=self._authenticator,
            connection=self.number,
        )

    def _refuse_version(self, header: DecodedRequestHeader) -> None:
        if header.api_key != API_VERSIONS_KEY:
            self.close(f"API {header.api_key} version {header.api_version} is not supported")
            return
        # In version 0, which every client can read, with the supported versions to fall back to (KIP-511).
        self._write(encode_response(self._service.unsupported_version(), 0, header.correlation_id))

    # -- responses -------------------------------------------------------------------------------------------

    def _answer_with(self, call: Call, respond: Callable[[], Any]) -> None:
        """Send the response that `respond` returns: at once, or when its awaitable is done."""
        try:
            response = respond()
        except CloseConnection as reason:
            self.close(str(reason))
            response = None
        if response is None or isinstance(response, Message):
            self._answer(call, response)
            return
        future: asyncio.Future[Any] = response if asyncio.isfuture(response) else start_task(response)
        if future.done() and not future.cancelled() and future.exception() is None:
            self._answer(call, future.result())
            return
        self._waiting = future
        future.add_done_callback(lambda done: self._answer_later(call, done))

    def _answer_later(self, call: Call, done: asyncio.Future[Any]) -> None:
        self._waiting = None
        if done.cancelled():  # the connection was closed, or its node stopped
            call.release_payloads()
            return
        error = done.exception()
        if error is None or isinstance(error, CloseConnection):
            self._answer_with(call, done.result)
        else:
            self._answer_with(call, lambda: call.handle_failure(error))
        self._serve()

    def _answer(self, call: Call, response: Any) -> None:
        """Apply what the fault does to the response, and send it."""
        fault = call.fault
        if fault is not None and fault.cut == "before":
            self.abort()
        elif response is not None and self._transport is not None:
            if fault is not None and fault.throttle_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = fault.throttle_ms
                self._muted = self._loop.call_later(fault.throttle_ms / 1000, self._unmute)
            if fault is not None and fault.drops_response:
                self._stuck = True
            elif fault is not None and fault.cut == "after":
                self.abort()
            else:
                self._send(call, response)
        call.release_payloads()

    def _send(self, call: Call, response: Any) -> None:
        context = call.context
        try:
            pieces = encode_response(response, context.api_version, context.correlation_id)
        except ProtocolError:
            log.exception(
                "node %d: the response of %s cannot be encoded in version %d",
                self._listener.node_id,
                context.api,
                context.api_version,
            )
            self.close("the response cannot be encoded")
            return
        call.record_response(response, sum(map(len, pieces)) - 4, self._loop.time())
        if call.fault is not None and call.fault.cut == "mid-frame":
            whole = b"".join(pieces)
            self._write([whole[: len(whole) // 2]])
            self.close()
        else:
            self._write(pieces)
        if self._authenticator is not None:
            self._authenticator.answered(context.api, getattr(response, "error_code", 0))
            self._check_authenticated()

    def _unmute(self) -> None:
        self._muted = None
        self._serve()

    def _write(self, pieces: list[bytes]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._active_at = self._loop.time()
            self._transport.writelines(pieces)
            self._unsent = self._transport.get_write_buffer_size()

    # -- end -------------------------------------------------------------------------------------------------

    def close(self, reason: str | None = None) -> None:
        """Close the connection after sending what was written; a `reason` is logged."""
        if reason is not None:
            peer = self._peer.removeprefix("/")
            log.warning("node %d closes the connection from %s: %s", self._listener.node_id, peer, reason)
        self._stuck = True
        if self._transport is not None:
            self._transport.close()

    def _expire(self) -> None:
        """Close if no byte was received or sent for `connections.max.idle.ms`.

        As in Kafka's `Selector`, a request in progress does not prevent this. A transport does not report partial
        writes: the connection counts as active if its write buffer has shrunk since the last check. It is therefore
        closed after at most twice the time.
        """
        assert self._listener.connections_max_idle is not None
        if self._stuck and self._transport is not None and not self._transport.is_closing():
            return  # the fault action `drop` keeps it open
        if self._transport is not None and (unsent := self._transport.get_write_buffer_size()) < self._unsent:
            self._unsent = unsent
            self._active_at = self._loop.time()
        left = self._active_at + self._listener.connections_max_idle - self._loop.time()
        if left > 0:
            self._idle = self._loop.call_later(left, self._expire)
            return
        peer = self._peer.removeprefix("/")
        idle = self._listener.connections_max_idle
        log.info("node %d closes the connection from %s: idle for %g s", self._listener.node_id, peer, idle)
        self.abort()

    def close_for_memory(self, reason: str) -> None:
        """Close at once to free memory for other connections."""
        peer = self._peer.removeprefix("/")
        log.warning("node %d closes the connection from %s: %s", self._listener.node_id, peer, reason)
        self._frames.clear()
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._stuck = True
        if self._transport is not None:
            self._transport.abort()

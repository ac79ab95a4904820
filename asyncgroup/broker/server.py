"""The listener of a node: frames in, frames out (Kafka's `SocketServer` with its rules).

A connection serves one request at a time and answers in order. What Kafka answers by closing the connection
is closed here too: an unknown API, a version that is not served, malformed bytes, a frame beyond the size
limit.

No connection may take more than its share. It is served few requests in a row before the loop, and so all
others, get their turn. What it sends ahead of its turn stays in the network, and so does what it sends while it
leaves its answers unread: of each connection the node holds one frame under way and a little more, of all connections
together as much as `request_memory` lets it. A connection on which nothing moves for `connections.max.idle.ms` is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from asyncgroup.broker.call import Call
from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import CloseConnection
from asyncgroup.broker.frames import FrameBuffer
from asyncgroup.broker.handlers import HANDLERS, ApiHandler, unsupported_api_versions
from asyncgroup.broker.node import Node
from asyncgroup.broker.sasl import MAX_TOKEN_BYTES, Authenticator
from asyncgroup.error_codes import ErrorCode
from asyncgroup.errors import DecodeError, ProtocolError
from asyncgroup.escaping import escaping_logger
from asyncgroup.wire.message import Message
from asyncgroup.wire.protocol import (
    API_VERSIONS_KEY,
    DecodedRequestHeader,
    decode_request_body,
    decode_request_header,
    encode_response,
)

__all__ = ["Connection"]

log = escaping_logger(__name__)

_READ_AHEAD: Final = 1 << 18
"""Bytes of whole frames that may wait for their turn; more stays in the network."""

_NUMBERS: Final = count(1)
_TURN: Final = 32
"""Requests that one connection is served in a row before others get their turn."""


class Connection(asyncio.Protocol):
    """One client's connection to `node`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._authenticator = node.new_authenticator()
        self._frames = FrameBuffer(
            node.max_request_bytes
            if self._authenticator is None
            else min(MAX_TOKEN_BYTES, node.max_request_bytes)
        )
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._waiting: asyncio.Future[Any] | None = None
        self._muted: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None  # the next turn, while whole frames wait for it
        self._idle: asyncio.TimerHandle | None = None
        self._active_at = self._loop.time()
        """When bytes came or went last (the loop's time)."""
        self._unsent = 0
        """Bytes of answers that were still to be sent at the last look or write."""
        self._stuck = False
        self._can_write = True
        self._reading = True
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.number = next(_NUMBERS)

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else "busy" if self._busy else "idle"
        return f"<Connection to node {self._node.id} from {self._peer} {state}>"

    @property
    def unread(self) -> int:
        """Bytes that were received and not served yet."""
        return self._frames.unread

    # -- asyncio.Protocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = f"/{peer[0]}" if peer else ""
        self._node.connections.add(self)
        if not self._node.running:  # accepted in the moment in which the node stopped
            self.abort()
        elif self._node.connections_max_idle is not None:
            self._idle = self._loop.call_later(self._node.connections_max_idle, self._expire)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Give up what was under way."""
        self._transport = None
        self._node.connections.discard(self)
        self._frames.clear()
        self._node.request_memory.count(self, 0)
        for planned in (self._muted, self._turn, self._idle):
            if planned is not None:
                planned.cancel()
        if self._waiting is None:
            self._over()
        else:
            self._waiting.add_done_callback(lambda _: self._over())
            self._waiting.cancel()

    def _over(self) -> None:
        """Nothing of the connection is left, no task either."""
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        """The client reads too slowly: no further request is served until it has caught up."""
        self._can_write = False

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._can_write = True
        self._active_at = self._loop.time()
        self._serve()

    def data_received(self, data: bytes) -> None:
        """Serve the frames that are whole."""
        self._active_at = self._loop.time()
        self._frames.feed(data)
        self._serve()

    # -- frames ----------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self._waiting is not None or self._muted is not None or self._stuck or not self._can_write

    def _serve(self) -> None:
        """Serve what waits, up to a turn's worth; then see whether more should be read."""
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
            self._take(frame)
        else:
            self._turn = self._loop.call_soon(self._next_turn)
        self._node.request_memory.count(self, self._frames.unread)
        self.read_or_pause()

    def _next_turn(self) -> None:
        self._turn = None
        self._serve()

    def read_or_pause(self) -> None:
        """Read on unless enough waits to be served, or memory is scarce and another request's turn."""
        has_room = self._frames.unread <= _READ_AHEAD or not (self._busy or self._turn)
        wanted = has_room and self._node.request_memory.may_read(self)
        if wanted is self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _take(self, frame: bytes) -> None:
        if self._authenticator is not None and self._authenticator.takes_bare_token:
            self._take_token(self._authenticator, frame)
            return
        try:
            header = decode_request_header(frame)
            handler = HANDLERS.get(header.api_key)
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
        call = Call(self._node, context, handler, request, len(frame))
        self._answer_with(
            call, call.handle if admitted else lambda: call.error_response(ErrorCode.ILLEGAL_SASL_STATE)
        )

    def _take_token(self, authenticator: Authenticator, token: bytes) -> None:
        """A token of SASL as clients before Kafka 1.0 send it, without the headers of a request."""
        try:
            answer = authenticator.take_bare_token(token)
        except CloseConnection as reason:
            self.close(str(reason))
            return
        self._write([len(answer).to_bytes(4, "big"), answer])
        self._check_authenticated()

    def _check_authenticated(self) -> None:
        """Close after a failure; frames may be large once the client is known."""
        if self._authenticator is None:
            return
        if self._authenticator.failed:
            self.close("SASL authentication failed")
        elif self._authenticator.complete:
            self._frames.limit = self._node.max_request_bytes

    def _context(self, header: DecodedRequestHeader, handler: ApiHandler) -> RequestContext:
        return RequestContext(
            self._loop.time(),
            self._node.id,
            header.client_id or "",
            self._peer,
            handler.name,
            header.api_key,
            header.api_version,
            header.correlation_id,
            authenticator=self._authenticator,
        )

    def _refuse_version(self, header: DecodedRequestHeader) -> None:
        if header.api_key != API_VERSIONS_KEY:
            self.close(f"API {header.api_key} version {header.api_version} is not served")
            return
        # In version 0, which every client can read, with the ranges that the client can step down to (KIP-511).
        self._write(encode_response(unsupported_api_versions(), 0, header.correlation_id))

    # -- answers ---------------------------------------------------------------------------------------------

    def _answer_with(self, call: Call, respond: Callable[[], Any]) -> None:
        """Answer with what `respond` returns: now, or when that is done."""
        try:
            response = respond()
        except CloseConnection as reason:
            self.close(str(reason))
            response = None
        if response is None or isinstance(response, Message):
            self._answer(call, response)
            return
        future: asyncio.Future[Any] = asyncio.ensure_future(response, loop=self._loop)
        if future.done() and not future.cancelled() and future.exception() is None:
            self._answer(call, future.result())
            return
        self._waiting = future
        future.add_done_callback(lambda done: self._answer_later(call, done))

    def _answer_later(self, call: Call, done: asyncio.Future[Any]) -> None:
        self._waiting = None
        if done.cancelled():  # the connection is gone, or its node has died
            call.finish()
            return
        error = done.exception()
        if error is None or isinstance(error, CloseConnection):
            self._answer_with(call, done.result)
        else:
            self._answer_with(call, lambda: call.failed(error))
        self._serve()

    def _answer(self, call: Call, response: Any) -> None:
        fault = call.fault
        if fault is not None and fault.cut == "before":
            self.abort()
        elif response is not None and self._transport is not None:
            if fault is not None and fault.throttle_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = fault.throttle_ms
                self._muted = self._loop.call_later(fault.throttle_ms / 1000, self._unmute)
            if fault is not None and fault.dropped:
                self._stuck = True
            elif fault is not None and fault.cut == "after":
                self.abort()
            else:
                self._send(call, response)
        call.finish()

    def _send(self, call: Call, response: Any) -> None:
        context = call.context
        try:
            pieces = encode_response(response, context.api_version, context.correlation_id)
        except ProtocolError:
            log.exception(
                "node %d: a response that version %d cannot say", self._node.id, context.api_version
            )
            self.close("no response can be made")
            return
        call.answered(response, sum(map(len, pieces)) - 4, self._loop.time())
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
        """Close after what was written is sent."""
        if reason is not None:
            peer = self._peer.removeprefix("/")
            log.warning("node %d closes the connection from %s: %s", self._node.id, peer, reason)
        self._stuck = True
        if self._transport is not None:
            self._transport.close()

    def _expire(self) -> None:
        """Close if no byte came or went for `connections.max.idle.ms`, also with a request under way (Kafka's `Selector`).

        A transport does not say when it sends a part of an answer: the connection counts as active at this look if some
        of it went out since the last one. So it is closed after twice the time at the latest.
        """
        assert self._node.connections_max_idle is not None
        if self._stuck and self._transport is not None and not self._transport.is_closing():
            return  # a fault (`drop`) wants it to stay open
        if self._transport is not None and (unsent := self._transport.get_write_buffer_size()) < self._unsent:
            self._unsent = unsent
            self._active_at = self._loop.time()
        left = self._active_at + self._node.connections_max_idle - self._loop.time()
        if left > 0:
            self._idle = self._loop.call_later(left, self._expire)
            return
        peer = self._peer.removeprefix("/")
        idle = self._node.connections_max_idle
        log.info("node %d closes the connection from %s: idle for %g s", self._node.id, peer, idle)
        self.abort()

    def refuse_memory(self, reason: str) -> None:
        """Close at once: memory is needed for others."""
        peer = self._peer.removeprefix("/")
        log.warning("node %d closes the connection from %s: %s", self._node.id, peer, reason)
        self._frames.clear()
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._stuck = True
        if self._transport is not None:
            self._transport.abort()

"""One connection to one broker: sends requests and matches responses to them, in order.

Limits: the size of a response, a timeout per request, `max_in_flight_requests`. Throttle times are obeyed (KIP-219).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from asyncgroup.cluster.connect_errors import HINTS
from asyncgroup.cluster.throttling import throttle_seconds
from asyncgroup.config import ClientConfig
from asyncgroup.errors import (
    ConnectionLost,
    MalformedResponse,
    ProtocolError,
    RequestTimedOut,
    TransportError,
    UnsupportedVersionError,
)
from asyncgroup.hooks import Hooks
from asyncgroup.net.addresses import host_and_port
from asyncgroup.net.framing import FrameProtocol
from asyncgroup.net.slots import Slots
from asyncgroup.wire.apis import APIS
from asyncgroup.wire.codec import decode_response, encode_request, read_correlation_id
from asyncgroup.wire.kafka_releases import needs_release
from asyncgroup.wire.message import Message, Request
from asyncgroup.wire.schema import VersionRange

__all__ = ["Address", "Connection", "LastResponses", "OnResponse"]

R = TypeVar("R", bound=Message)

OnResponse: TypeAlias = Callable[[R | None, Exception | None], object]
"""Called once for a request: `on_response(response, None)` when the response is received, or `on_response(None, error)`.

An error is passed on in the next iteration of the event loop. The function must not raise.
"""

SESSION_LIFETIME_FACTOR: Final = 0.9
"""Fraction of a SASL session's lifetime in which requests are sent."""


class Address(NamedTuple):
    """A node's id, host and port; negative node ids are bootstrap addresses."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        place = host_and_port(self.host, self.port)
        return f"node {self.node_id} ({place})" if self.node_id >= 0 else place


class LastResponses:
    """Loop times of the last responses of a cluster's brokers; shared by its connections."""

    __slots__ = ("last", "nodes")

    def __init__(self) -> None:
        self.last = float("-inf")
        """Time of the last response of any broker."""
        self.nodes: dict[int, float] = {}
        """Time of the last response of each node id."""

    def record(self, node_id: int, now: float) -> None:
        """Record a response of a node."""
        self.last = self.nodes[node_id] = now


class _InFlightRequest:
    """A request that waits for its response."""

    __slots__ = ("api", "correlation_id", "on_response", "response", "sent_at", "timer", "version")

    def __init__(
        self,
        correlation_id: int,
        api: str,
        response: type[Message],
        version: int,
        on_response: OnResponse[Any],
        sent_at: float,
        timer: asyncio.TimerHandle,
    ) -> None:
        self.correlation_id = correlation_id
        self.api = api
        self.response = response
        self.version = version
        self.on_response: OnResponse[Any] | None = on_response
        """None once it was called, or will be."""
        self.sent_at = sent_at  # loop time
        self.timer = timer

    def succeed(self, response: Message) -> None:
        """Pass the response on."""
        on_response, self.on_response = self.on_response, None
        if on_response is not None:
            on_response(response, None)

    def fail(self, error: Exception, loop: asyncio.AbstractEventLoop) -> None:
        """Stop the timer and pass the error on in the next turn of the loop, unless that was done before."""
        self.timer.cancel()
        on_response, self.on_response = self.on_response, None
        if on_response is not None:
            loop.call_soon(on_response, None, error)


def _resolve(future: asyncio.Future[Any], response: Message | None, error: Exception | None) -> None:
    """Set the result of a caller's future; a cancelled caller no longer waits for it."""
    if future.done():
        return
    if error is None:
        future.set_result(response)
    else:
        future.set_exception(error)


class Connection:
    """An open connection, made by `connecting.connect`.

    It ends by `close`, when the broker closes it, when a request times out, or at a malformed response.
    """

    def __init__(
        self,
        address: Address,
        purpose: str,
        config: ClientConfig,
        hooks: Hooks,
        last_responses: LastResponses | None = None,
    ) -> None:
        self.address = address
        self.purpose = purpose
        self._config = config
        self._hooks = hooks
        self._last_responses = last_responses or LastResponses()
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_InFlightRequest] = deque()  # in the order of sending
        self._correlation_id = 0
        self._throttled_until = float("-inf")  # loop time (KIP-219)
        self._session_expires_at = float("inf")  # loop time (KIP-368)
        self._retired = False  # close when no request is in flight and no caller is inside `request`
        self._callers = 0  # callers inside `request`
        self._slots = Slots(config.max_in_flight_requests)
        """One slot per request in flight that `request`, `submit` or `try_submit` has sent."""
        self._closed = False
        self._ready = False  # ApiVersions and SASL succeeded
        self._has_response = False  # a response arrived since then
        self._ended: asyncio.Future[None] = self._loop.create_future()  # done when the transport is closed
        self._protocol = FrameProtocol(self._on_frame, self._on_lost, config.max_response_size, HINTS)
        self.versions: dict[int, VersionRange] = {}
        """The broker's version ranges by API key; empty until ApiVersions was answered."""
        self.features: dict[str, int] = {}
        """The cluster's finalized features, each with its highest level (KIP-584)."""
        self.features_epoch = -1
        """The epoch of the features; -1 without any."""
        self.last_used = self._loop.time()
        """Loop time of the last request sent."""

    @property
    def protocol(self) -> FrameProtocol:
        """The asyncio protocol to create the transport with."""
        return self._protocol

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return not self._closed and not self._protocol.is_closing

    @property
    def is_disconnected(self) -> bool:
        """Whether the connection is closed and so is its transport, if there ever was one."""
        return self._closed and (self._ended.done() or not self._protocol.has_transport)

    @property
    def session_expired(self) -> bool:
        """Whether the SASL session has expired or is about to: no further request should be sent (KIP-368)."""
        return self._loop.time() >= self._session_expires_at

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for a response."""
        return len(self._in_flight)

    def awaits(self, cls: type[Request[Any]]) -> bool:
        """Return whether a request of this API waits for a response."""
        name = APIS[cls.API_KEY].name
        return any(request.api == name for request in self._in_flight)

    def would_delay(self, cls: type[Request[Any]], held_apis: Collection[str], soon: float) -> bool:
        """Return whether a request may wait for long, as the broker serves those in flight first.

        That is the case if a request of another API is in flight, and either brokers hold that API back (`held_apis`), or it was
        sent more than `soon` seconds ago.
        """
        name, since = APIS[cls.API_KEY].name, self._loop.time() - soon
        return any(
            request.api != name and (request.api in held_apis or request.sent_at < since)
            for request in self._in_flight
        )

    @property
    def received_bytes(self) -> int:
        """Bytes received so far, including those of incomplete responses."""
        return self._protocol.received_bytes

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {self.address} {self.purpose}: {state}, {self.in_flight} in flight>"

    def set_ready(self, host: str, port: int) -> None:
        """Mark the connection ready for requests and emit `on_connect`; its end then emits `on_disconnect`.

        `host` and `port` are the resolved address that accepted the connection.
        """
        self._ready = True
        self._hooks.emit("on_connect", self.address.node_id, host, port, self.purpose)

    def set_session_lifetime(self, seconds: float) -> None:
        """Set the SASL session's lifetime; `session_expired` is true after 90 % of it, so that responses can still arrive.

        Java uses a random 85 to 95 % of the lifetime (`SaslClientAuthenticator`).
        """
        self._session_expires_at = self._loop.time() + seconds * SESSION_LIFETIME_FACTOR

    def version_for(self, cls: type[Request[Any]], highest: int | None = None, lowest: int = 0) -> int:
        """Return the newest version of a request that both broker and client support.

        `highest` and `lowest` narrow the client's range. Raises UnsupportedVersionError if there is no such version.
        """
        api = APIS[cls.API_KEY]
        theirs = self.versions.get(cls.API_KEY)
        high = api.versions.high if highest is None else min(highest, api.versions.high)
        low = max(lowest, api.versions.low)
        if theirs is None or theirs.high < low or theirs.low > high:
            offer = f"offers {theirs}" if theirs else "does not offer it"
            text = f"{api.name}: {self.address} {offer}, this client supports {VersionRange(low, high)}"
            is_older = theirs is None or theirs.high < low
            needed = needs_release(api.name) if is_older else None
            raise UnsupportedVersionError(f"{text} ({needed})" if needed else text)
        return min(theirs.high, high)

    # --- requests -----------------------------------------------------------------------------------------------

    async def request(self, message: Request[R], version: int, timeout: float) -> R:
        """Send a request and wait for its response, at most `timeout` seconds after it was sent.

        The request is held back while `max_in_flight_requests` are in flight and while the broker throttles this client
        (KIP-219). Raises RequestTimedOut (the connection is then closed, because responses arrive in order),
        ConnectionLost, UnsupportedVersionError, and MalformedResponse (the connection is closed, because the bytes that
        follow cannot be trusted either). Cancelling the caller does not affect the connection.
        """
        self._callers += 1
        try:
            response: asyncio.Future[R] = self._loop.create_future()
            await self._send_in_turn(lambda: message, version, timeout, partial(_resolve, response))
            return await response
        finally:
            self._callers -= 1
            self._end_if_retired()

    async def submit(
        self, build: Callable[[], Request[R]], version: int, timeout: float, on_response: OnResponse[R]
    ) -> None:
        """Send a request as `request` does, but return when it is sent.

        `build` is called when it is written: what it would have contained before the wait may be outdated. Raises
        ConnectionLost, UnsupportedVersionError, and what `build` raises; `on_response` gets what `request` returns or raises.
        """
        self._callers += 1
        try:
            await self._send_in_turn(build, version, timeout, on_response)
        finally:
            self._callers -= 1
            self._end_if_retired()

    @property
    def is_ready_to_send(self) -> bool:
        """Whether a request would be sent without waiting, except perhaps for a slot."""
        return (
            self.is_open
            and self._protocol.is_writable
            and self._throttled_until <= self._loop.time() < self._session_expires_at
        )

    def try_submit(
        self, build: Callable[[], Request[R]], version: int, timeout: float, on_response: OnResponse[R]
    ) -> bool:
        """Send a request as `submit` does, but now; False if it would have to wait, and nothing was built.

        Raises UnsupportedVersionError, and what `build` raises.
        """
        if not self.is_ready_to_send or not self._slots.try_take():
            return False
        try:
            self._send(build(), version, timeout, on_response)
        except BaseException:
            self._slots.release()
            raise
        return True

    async def _send_in_turn(
        self, build: Callable[[], Request[R]], version: int, timeout: float, on_response: OnResponse[R]
    ) -> None:
        # Once the request is sent, its slot is released by its response (`_match`) or the connection's end (`_fail`),
        # not by this caller: the request stays in flight if the caller is cancelled.
        await self._slots.take()
        sent = False
        try:
            await self._wait_unthrottled()
            await self._protocol.drain()
            self._send(build(), version, timeout, on_response)
            sent = True
        finally:
            if not sent:
                self._slots.release()

    async def send_oneway(self, message: Request[Any], version: int, timeout: float) -> None:
        """Send a request that has no response (Produce with acks=0); returns when the transport's buffer has room again.

        Raises RequestTimedOut if that takes longer than `timeout` seconds, ConnectionLost, UnsupportedVersionError.
        """
        await self._wait_unthrottled()
        self._write(message, version)
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.drain()
        except TimeoutError:
            error = RequestTimedOut(
                f"{self.address}: {message.NAME} could not be written within {timeout:g} s"
            )
            self._fail(error)
            raise error from None

    def _send(self, message: Request[R], version: int, timeout: float, on_response: OnResponse[R]) -> None:
        """Write a request without waiting. Raises ConnectionLost."""
        correlation_id, now = self._write(message, version)
        api = APIS[message.API_KEY]
        timer = self._loop.call_later(timeout, self._on_timeout, correlation_id, timeout)
        self._in_flight.append(
            _InFlightRequest(correlation_id, api.name, api.response, version, on_response, now, timer)
        )

    def _write(self, message: Request[Any], version: int) -> tuple[int, float]:
        """Write a request; return its correlation id, and the loop time."""
        # a closed transport of asyncio raises TypeError (Python 3.12), or drops the request
        if not self.is_open:
            raise ConnectionLost(f"{self.address}: the connection is closed")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        try:
            pieces = encode_request(message, version, correlation_id, self._config.client_id)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"{self.address}: {error}") from None
        self._protocol.transport.writelines(pieces)
        self.last_used = now = self._loop.time()
        name = APIS[message.API_KEY].name
        self._hooks.emit("on_request", self.address.node_id, name, version, sum(map(len, pieces)))
        return correlation_id, now

    async def _wait_unthrottled(self) -> None:
        while not self._closed and (wait := self._throttled_until - self._loop.time()) > 0:
            await asyncio.wait([self._ended], timeout=wait)

    # --- responses ----------------------------------------------------------------------------------------------

    def _on_frame(self, frame: bytes | bytearray) -> None:
        if self._closed:
            return
        try:
            request = self._match(read_correlation_id(frame))
        except ProtocolError as error:
            self._fail(error)
            return
        if self._retired:  # if the caller was cancelled, no other event would close the connection
            self._loop.call_soon(self._end_if_retired)
        request.timer.cancel()
        now = self._loop.time()
        if self._ready:  # answers to ApiVersions and SASL alone do not show that the broker serves requests
            self._has_response = True
            self._last_responses.record(self.address.node_id, now)
        seconds = now - request.sent_at
        self._hooks.emit("on_response", self.address.node_id, request.api, seconds, len(frame))
        try:
            response = decode_response(request.response, request.version, frame)
        except Exception as error:  # noqa: BLE001  any decoder failure must reach the caller
            text = f"{self.address}: {error}"
            request.fail(MalformedResponse(text), self._loop)
            self._fail(ProtocolError(f"{text} (the connection was closed)"))
            return
        if (asked := getattr(response, "throttle_time_ms", 0)) > 0:
            self._throttle(response, request, asked)
        request.succeed(response)

    def _throttle(self, response: Message, request: _InFlightRequest, milliseconds: int) -> None:
        pause = throttle_seconds(response, request.version, milliseconds, self.address)
        if pause > 0:
            self._throttled_until = self._loop.time() + pause
            self._hooks.emit("on_throttle", self.address.node_id, request.api, pause)

    def _match(self, correlation_id: int) -> _InFlightRequest:
        if not self._in_flight:
            raise ProtocolError(
                f"{self.address}: received a response with correlation id {correlation_id}, but no request is in flight"
            )
        due = self._in_flight[0]
        if due.correlation_id != correlation_id:
            raise ProtocolError(
                f"{self.address}: received a response with correlation id {correlation_id}, "
                f"expected {due.correlation_id} ({due.api})"
            )
        self._slots.release()
        return self._in_flight.popleft()

    # --- closing ------------------------------------------------------------------------------------------------

    def _on_timeout(self, correlation_id: int, timeout: float) -> None:
        (request,) = (each for each in self._in_flight if each.correlation_id == correlation_id)
        text = f"{self.address}: no response to {request.api} within {timeout:g} s"
        request.fail(RequestTimedOut(text), self._loop)
        self._fail(ConnectionLost(f"{text}; the connection was closed"))

    def _on_lost(self, error: TransportError | ProtocolError | None) -> None:
        self._fail(error or ConnectionLost(f"the broker closed the connection{self._sasl_hint()}"))
        if not self._ended.done():
            self._ended.set_result(None)

    def _sasl_hint(self) -> str:
        """Return a hint if the broker closed the connection at the first request and no SASL is configured.

        A SASL listener answers ApiVersions, and closes the connection at any other request before authentication.
        """
        security = self._config.security
        if (
            self._ready
            and self._in_flight
            and not self._has_response
            and (security is None or not security.sasl)
        ):
            return " before it answered any request (does the listener require SASL?)"
        return ""

    def _fail(self, error: TransportError | ProtocolError) -> None:
        """Fail all in-flight requests and abort the transport; safe to call again."""
        if self._closed:
            return
        self._closed = True
        requests, self._in_flight = self._in_flight, deque()
        text = str(error) if str(self.address) in str(error) else f"{self.address}: {error}"
        for request in requests:
            # each caller gets its own exception object, because raising it adds a traceback
            own = MalformedResponse(text) if isinstance(error, ProtocolError) else type(error)(text)
            request.fail(own, self._loop)
            self._slots.release()  # wakes callers that wait for a slot; they fail because the connection is closed
        if self._protocol.has_transport:
            self._protocol.transport.abort()
        if self._ready:
            node = self.address
            self._hooks.emit("on_disconnect", node.node_id, node.host, node.port, self.purpose, error)

    def retire(self) -> None:
        """Close as soon as no request is in flight or waiting to be sent; no new request should be made."""
        self._retired = True
        self._loop.call_soon(self._end_if_retired)

    def _end_if_retired(self) -> None:
        if self._retired and not self._callers and not self._in_flight:
            self.close()

    def close(self) -> None:
        """Close the connection now; in-flight requests fail with ConnectionLost."""
        self._fail(ConnectionLost(f"{self.address}: closed by this client"))

    async def aclose(self) -> None:
        """Close the connection and wait until the transport is closed."""
        self.close()
        if self._protocol.has_transport:
            await asyncio.shield(self._ended)

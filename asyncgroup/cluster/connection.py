"""One connection to one broker: requests out, responses in, in the same order.

Rules of its own, where aiokafka's connection has none: a limit for the size of a response, a time limit for each
request, throttle times obeyed (KIP-219).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple, TypeVar

from asyncgroup.cluster.framing import FrameProtocol
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
from asyncgroup.escaping import printable
from asyncgroup.hooks import Hooks
from asyncgroup.wire.message import Message, Request
from asyncgroup.wire.protocol import APIS, decode_response, encode_request, read_correlation_id
from asyncgroup.wire.schema import VersionRange

__all__ = ["Address", "Connection", "LastResponses"]

R = TypeVar("R", bound=Message)

_LONGEST_HOST: Final = 255
"""Characters of a host's name that are shown: DNS knows no longer one."""
SESSION_LIFETIME_FACTOR: Final = 0.9
"""Part of a SASL session's lifetime in which requests are sent."""


class Address(NamedTuple):
    """Where a node listens; node ids below zero stand for bootstrap addresses."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        host = printable(self.host, _LONGEST_HOST)
        host = f"[{host}]" if ":" in host else host
        return f"node {self.node_id} ({host}:{self.port})" if self.node_id >= 0 else f"{host}:{self.port}"


class LastResponses:
    """When the brokers of a cluster last answered anything, in the loop's time; shared by its connections.

    `last` is the latest time of all brokers, `nodes` has the latest of each node id.
    """

    __slots__ = ("last", "nodes")

    def __init__(self) -> None:
        self.last = float("-inf")
        self.nodes: dict[int, float] = {}

    def record(self, node_id: int, now: float) -> None:
        """Note an answer of a node."""
        self.last = self.nodes[node_id] = now


class _InFlightRequest:
    """A request whose response has not come yet."""

    __slots__ = ("api", "correlation_id", "future", "response", "sent_at", "timer", "version")

    def __init__(self, correlation_id: int, api: str, response: type[Message], version: int) -> None:
        self.correlation_id, self.api, self.response, self.version = correlation_id, api, response, version
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.sent_at = 0.0

    def fail(self, error: Exception) -> None:
        """No response will come any more."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_exception(error)


class Connection:
    """A live connection. Made by `connecting.connect`; ends by `close`, by the broker, or by a request that timed out."""

    def __init__(
        self,
        address: Address,
        purpose: str,
        config: ClientConfig,
        hooks: Hooks,
        last_responses: LastResponses | None = None,
    ) -> None:
        self.address, self.purpose = address, purpose
        self._config, self._hooks = config, hooks
        self._last_responses = last_responses or LastResponses()
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[_InFlightRequest] = deque()
        self._correlation_id = 0
        self._throttled_until = float("-inf")
        self._session_expires_at = float("inf")
        self._retired = False
        self._callers = 0
        self._slots = asyncio.Semaphore(config.max_in_flight_requests)
        self._closed = False
        self._ready = self._has_response = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._protocol = FrameProtocol(self._on_frame, self._on_lost, config.max_response_size)
        self.versions: dict[int, VersionRange] = {}
        self.last_used = self._loop.time()

    @property
    def protocol(self) -> FrameProtocol:
        """The protocol that the transport talks to."""
        return self._protocol

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return not self._closed

    @property
    def is_disconnected(self) -> bool:
        """Whether the transport has ended as well, or there never was one."""
        return self._closed and (self._ended.done() or not self._protocol.has_transport)

    @property
    def session_expired(self) -> bool:
        """Whether its SASL session is over, or nearly so: no further request should go this way (KIP-368)."""
        return self._loop.time() >= self._session_expires_at

    @property
    def in_flight(self) -> int:
        """Requests whose response has not come yet."""
        return len(self._in_flight)

    @property
    def received_bytes(self) -> int:
        """Bytes received so far, those of unfinished responses included."""
        return self._protocol.received_bytes

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {self.address} {self.purpose}: {state}, {self.in_flight} in flight>"

    def set_ready(self, host: str, port: int) -> None:
        """Tell the hooks that the connection stands, at the address that answered; its end will be told as well."""
        self._ready = True
        self._hooks.emit("on_connect", self.address.node_id, host, port, self.purpose)

    def set_session_lifetime(self, seconds: float) -> None:
        """The broker ends the SASL session after so many seconds; leave it a tenth earlier, for what is on its way.

        The tenth is Java's middle: it takes 85 to 95 % of the lifetime (`SaslClientAuthenticator`).
        """
        self._session_expires_at = self._loop.time() + seconds * SESSION_LIFETIME_FACTOR

    def version_for(self, cls: type[Request[Any]], highest: int | None = None, lowest: int = 0) -> int:
        """The newest version of a request that broker and client share; raises UnsupportedVersionError if none."""
        api = APIS[cls.API_KEY]
        theirs = self.versions.get(cls.API_KEY)
        high = api.versions.high if highest is None else min(highest, api.versions.high)
        low = max(lowest, api.versions.low)
        if theirs is None or theirs.high < low or theirs.low > high:
            offer = f"offers {theirs}" if theirs else "does not offer it"
            raise UnsupportedVersionError(
                f"{api.name}: {self.address} {offer}, this client speaks {VersionRange(low, high)}"
            )
        return min(theirs.high, high)

    # --- requests -----------------------------------------------------------------------------------------------

    async def request(self, message: Request[R], version: int, timeout: float) -> R:
        """Send a request and wait for its response, `timeout` seconds from the sending.

        Of `max_in_flight_requests` under way the next one waits for an answer; a throttled connection is left alone as
        long as the broker asked for (KIP-219). Raises RequestTimedOut (the connection is then given up: answers come
        in order), ConnectionLost, UnsupportedVersionError; MalformedResponse ends the connection, as nothing that comes
        behind such an answer can be believed. A caller that is cancelled leaves the connection in order.
        """
        self._callers += 1
        try:
            return await (await self._send_in_turn(message, version, timeout))
        finally:
            self._callers -= 1
            self._end_if_retired()

    async def _send_in_turn(self, message: Request[R], version: int, timeout: float) -> asyncio.Future[R]:
        await self._slots.acquire()
        sent = False
        try:
            await self._wait_unthrottled()
            await self._protocol.drain()
            future = self.send(message, version, timeout)
            sent = True
            return future
        finally:
            if not sent:
                self._slots.release()

    async def send_oneway(self, message: Request[Any], version: int, timeout: float) -> None:
        """Send a request that has no response (Produce with acks=0); returns when the transport has taken it.

        Raises RequestTimedOut if it has not within `timeout` seconds, ConnectionLost, UnsupportedVersionError.
        """
        await self._wait_unthrottled()
        self.send(message, version, timeout, expect_response=False)
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.drain()
        except TimeoutError:
            error = RequestTimedOut(
                f"{self.address}: {message.NAME} could not be written within {timeout:g} s"
            )
            self._fail(error)
            raise error from None

    def send(
        self, message: Request[R], version: int, timeout: float, *, expect_response: bool = True
    ) -> asyncio.Future[R]:
        """Write a request at once, whose turn it is; the future holds its response. Raises ConnectionLost."""
        if self._closed:
            raise ConnectionLost(f"{self.address}: the connection is closed")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        api = APIS[message.API_KEY]
        pieces = encode_request(message, version, self._correlation_id, self._config.client_id)
        request = _InFlightRequest(self._correlation_id, api.name, api.response, version)
        self._protocol.transport.writelines(pieces)
        self.last_used = request.sent_at = self._loop.time()
        self._hooks.emit("on_request", self.address.node_id, api.name, version, sum(map(len, pieces)))
        if expect_response:
            request.timer = self._loop.call_later(timeout, self._on_timeout, request, timeout)
            self._in_flight.append(request)
        else:
            request.future.set_result(None)
        return request.future

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
        if self._retired:
            self._loop.call_soon(self._end_if_retired)
        if request.timer is not None:
            request.timer.cancel()
        now = self._loop.time()
        if self._ready:  # a broker that answers handshakes and lets nobody in is no help to anyone
            self._has_response = True
            self._last_responses.record(self.address.node_id, now)
        seconds = now - request.sent_at
        self._hooks.emit("on_response", self.address.node_id, request.api, seconds, len(frame))
        try:
            response = decode_response(request.response, request.version, frame)
        except Exception as error:  # noqa: BLE001  whatever the bytes did to the decoder, the caller must hear of it
            text = f"{self.address}: {error}"
            request.fail(MalformedResponse(text))
            self._fail(ProtocolError(f"{text} (the connection was given up)"))
            return
        if (pause := throttle_seconds(response, request.version, self.address)) > 0:
            self._throttled_until = self._loop.time() + pause
            self._hooks.emit("on_throttle", self.address.node_id, request.api, pause)
        if not request.future.done():
            request.future.set_result(response)

    def _match(self, correlation_id: int) -> _InFlightRequest:
        if not self._in_flight:
            raise ProtocolError(f"{self.address}: a response {correlation_id} that nobody asked for")
        due = self._in_flight[0]
        if due.correlation_id != correlation_id:
            raise ProtocolError(
                f"{self.address}: response {correlation_id}, but {due.correlation_id} ({due.api}) is due"
            )
        self._slots.release()
        return self._in_flight.popleft()

    # --- the end ------------------------------------------------------------------------------------------------

    def _on_timeout(self, request: _InFlightRequest, timeout: float) -> None:
        text = f"{self.address}: no response to {request.api} within {timeout:g} s"
        request.fail(RequestTimedOut(text))
        self._fail(ConnectionLost(f"{text}; the connection was given up"))

    def _on_lost(self, error: TransportError | ProtocolError | None) -> None:
        self._fail(error or ConnectionLost(f"the broker closed the connection{self._sasl_hint()}"))
        if not self._ended.done():
            self._ended.set_result(None)

    def _sasl_hint(self) -> str:
        """Why a broker hangs up on the first request: a listener with SASL answers ApiVersions, and nothing else."""
        security = self._config.security
        if (
            self._ready
            and self._in_flight
            and not self._has_response
            and (security is None or not security.sasl)
        ):
            return " before it answered anything (does the listener ask for SASL?)"
        return ""

    def _fail(self, error: TransportError | ProtocolError) -> None:
        """Fail everything under way and drop the transport; safe to call again."""
        if self._closed:
            return
        self._closed = True
        pendings, self._in_flight = self._in_flight, deque()
        text = str(error) if str(self.address) in str(error) else f"{self.address}: {error}"
        for request in pendings:
            # one error a caller: each gets a traceback of its own
            request.fail(MalformedResponse(text) if isinstance(error, ProtocolError) else type(error)(text))
            self._slots.release()  # who waits for a turn hears that there is none
        if self._protocol.has_transport:
            self._protocol.transport.abort()
        if self._ready:
            node = self.address
            self._hooks.emit("on_disconnect", node.node_id, node.host, node.port, self.purpose, error)

    def retire(self) -> None:
        """Close as soon as nothing is under way and nobody is about to send; no further request should be sent."""
        self._retired = True
        self._loop.call_soon(self._end_if_retired)

    def _end_if_retired(self) -> None:
        if self._retired and not self._callers and not self._in_flight:
            self.close()

    def close(self) -> None:
        """End the connection now; what is under way fails with ConnectionLost."""
        self._fail(ConnectionLost(f"{self.address}: closed by this client"))

    async def aclose(self) -> None:
        """Close the connection and wait until the transport is gone."""
        self.close()
        if self._protocol.has_transport:
            await asyncio.shield(self._ended)

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

__all__ = ["Address", "Connection", "Pulse"]

R = TypeVar("R", bound=Message)

_LONGEST_HOST: Final = 255
"""Characters of a host's name that are shown: DNS knows no longer one."""
SESSION_SHARE: Final = 0.9
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


class Pulse:
    """When the brokers of a cluster last answered anything, in the loop's time; shared by its connections.

    `last` is the latest time of all brokers, `nodes` has the latest of each node id.
    """

    __slots__ = ("last", "nodes")

    def __init__(self) -> None:
        self.last = float("-inf")
        self.nodes: dict[int, float] = {}

    def beat(self, node_id: int, now: float) -> None:
        """Note an answer of a node."""
        self.last = self.nodes[node_id] = now


class _Pending:
    """A request whose response has not come yet."""

    __slots__ = ("api", "correlation_id", "future", "response", "sent_at", "timer", "version")

    def __init__(self, correlation_id: int, api: str, response: type[Message], version: int) -> None:
        self.correlation_id, self.api, self.response, self.version = correlation_id, api, response, version
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.sent_at = 0.0

    def end(self, error: Exception) -> None:
        """No response will come any more."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_exception(error)


class Connection:
    """A live connection. Made by `connecting.connect`; ends by `close`, by the broker, or by a request that timed out."""

    def __init__(
        self, address: Address, purpose: str, config: ClientConfig, hooks: Hooks, pulse: Pulse | None = None
    ) -> None:
        self.address, self.purpose = address, purpose
        self._config, self._hooks = config, hooks
        self._pulse = pulse or Pulse()
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._throttled_until = float("-inf")
        self._expires_at = float("inf")
        self._retired = False
        self._users = 0
        self._slots = asyncio.Semaphore(config.max_in_flight_requests)
        self._closed = False
        self._announced = self._answered = False
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
    def is_gone(self) -> bool:
        """Whether the transport has ended as well, or there never was one."""
        return self._closed and (self._ended.done() or not self._protocol.has_transport)

    @property
    def has_expired(self) -> bool:
        """Whether its SASL session is over, or nearly so: no further request should go this way (KIP-368)."""
        return self._loop.time() >= self._expires_at

    @property
    def in_flight(self) -> int:
        """Requests whose response has not come yet."""
        return len(self._pending)

    @property
    def received_bytes(self) -> int:
        """Bytes received so far, those of unfinished responses included."""
        return self._protocol.received_bytes

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<Connection {self.address} {self.purpose}: {state}, {self.in_flight} in flight>"

    def announce(self, host: str, port: int) -> None:
        """Tell the hooks that the connection stands, at the address that answered; its end will be told as well."""
        self._announced = True
        self._hooks.emit("on_connect", self.address.node_id, host, port, self.purpose)

    def expire_after(self, seconds: float) -> None:
        """The broker ends the SASL session after so many seconds; leave it a tenth earlier, for what is on its way.

        The tenth is Java's middle: it takes 85 to 95 % of the lifetime (`SaslClientAuthenticator`).
        """
        self._expires_at = self._loop.time() + seconds * SESSION_SHARE

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
        self._users += 1
        try:
            return await (await self._send_in_turn(message, version, timeout))
        finally:
            self._users -= 1
            self._end_if_retired()

    async def _send_in_turn(self, message: Request[R], version: int, timeout: float) -> asyncio.Future[R]:
        await self._slots.acquire()
        sent = False
        try:
            await self._unthrottled()
            await self._protocol.drained()
            future = self.send(message, version, timeout)
            sent = True
            return future
        finally:
            if not sent:
                self._slots.release()

    async def post(self, message: Request[Any], version: int, timeout: float) -> None:
        """Send a request that has no response (Produce with acks=0); returns when the transport has taken it.

        Raises RequestTimedOut if it has not within `timeout` seconds, ConnectionLost, UnsupportedVersionError.
        """
        await self._unthrottled()
        self.send(message, version, timeout, expect_response=False)
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.drained()
        except TimeoutError:
            error = RequestTimedOut(
                f"{self.address}: {message.NAME} could not be written within {timeout:g} s"
            )
            self._end(error)
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
        pending = _Pending(self._correlation_id, api.name, api.response, version)
        self._protocol.transport.writelines(pieces)
        self.last_used = pending.sent_at = self._loop.time()
        self._hooks.emit("on_request", self.address.node_id, api.name, version, sum(map(len, pieces)))
        if expect_response:
            pending.timer = self._loop.call_later(timeout, self._on_timeout, pending, timeout)
            self._pending.append(pending)
        else:
            pending.future.set_result(None)
        return pending.future

    async def _unthrottled(self) -> None:
        while not self._closed and (wait := self._throttled_until - self._loop.time()) > 0:
            await asyncio.wait([self._ended], timeout=wait)

    # --- responses ----------------------------------------------------------------------------------------------

    def _on_frame(self, frame: bytes | bytearray) -> None:
        if self._closed:
            return
        try:
            pending = self._match(read_correlation_id(frame))
        except ProtocolError as error:
            self._end(error)
            return
        if self._retired:
            self._loop.call_soon(self._end_if_retired)
        if pending.timer is not None:
            pending.timer.cancel()
        now = self._loop.time()
        if self._announced:  # a broker that answers handshakes and lets nobody in is no help to anyone
            self._answered = True
            self._pulse.beat(self.address.node_id, now)
        seconds = now - pending.sent_at
        self._hooks.emit("on_response", self.address.node_id, pending.api, seconds, len(frame))
        try:
            response = decode_response(pending.response, pending.version, frame)
        except Exception as error:  # noqa: BLE001  whatever the bytes did to the decoder, the caller must hear of it
            text = f"{self.address}: {error}"
            pending.end(MalformedResponse(text))
            self._end(ProtocolError(f"{text} (the connection was given up)"))
            return
        if (pause := throttle_seconds(response, pending.version, self.address)) > 0:
            self._throttled_until = self._loop.time() + pause
            self._hooks.emit("on_throttle", self.address.node_id, pending.api, pause)
        if not pending.future.done():
            pending.future.set_result(response)

    def _match(self, correlation_id: int) -> _Pending:
        if not self._pending:
            raise ProtocolError(f"{self.address}: a response {correlation_id} that nobody asked for")
        due = self._pending[0]
        if due.correlation_id != correlation_id:
            raise ProtocolError(
                f"{self.address}: response {correlation_id}, but {due.correlation_id} ({due.api}) is due"
            )
        self._slots.release()
        return self._pending.popleft()

    # --- the end ------------------------------------------------------------------------------------------------

    def _on_timeout(self, pending: _Pending, timeout: float) -> None:
        text = f"{self.address}: no response to {pending.api} within {timeout:g} s"
        pending.end(RequestTimedOut(text))
        self._end(ConnectionLost(f"{text}; the connection was given up"))

    def _on_lost(self, error: TransportError | ProtocolError | None) -> None:
        self._end(error or ConnectionLost(f"the broker closed the connection{self._guess()}"))
        if not self._ended.done():
            self._ended.set_result(None)

    def _guess(self) -> str:
        """Why a broker hangs up on the first request: a listener with SASL answers ApiVersions, and nothing else."""
        security = self._config.security
        if (
            self._announced
            and self._pending
            and not self._answered
            and (security is None or not security.sasl)
        ):
            return " before it answered anything (does the listener ask for SASL?)"
        return ""

    def _end(self, error: TransportError | ProtocolError) -> None:
        """Fail everything under way and drop the transport; safe to call again."""
        if self._closed:
            return
        self._closed = True
        pendings, self._pending = self._pending, deque()
        text = str(error) if str(self.address) in str(error) else f"{self.address}: {error}"
        for pending in pendings:
            # one error a caller: each gets a traceback of its own
            pending.end(MalformedResponse(text) if isinstance(error, ProtocolError) else type(error)(text))
            self._slots.release()  # who waits for a turn hears that there is none
        if self._protocol.has_transport:
            self._protocol.transport.abort()
        if self._announced:
            node = self.address
            self._hooks.emit("on_disconnect", node.node_id, node.host, node.port, self.purpose, error)

    def retire(self) -> None:
        """Close as soon as nothing is under way and nobody is about to send; no further request should be sent."""
        self._retired = True
        self._loop.call_soon(self._end_if_retired)

    def _end_if_retired(self) -> None:
        if self._retired and not self._users and not self._pending:
            self.close()

    def close(self) -> None:
        """End the connection now; what is under way fails with ConnectionLost."""
        self._end(ConnectionLost(f"{self.address}: closed by this client"))

    async def aclose(self) -> None:
        """Close the connection and wait until the transport is gone."""
        self.close()
        if self._protocol.has_transport:
            await asyncio.shield(self._ended)

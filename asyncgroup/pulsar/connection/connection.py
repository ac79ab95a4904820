"""PulsarConnection: one connection to one broker. It matches answers to requests, and hands on what the broker pushes.

Producers and consumers register before they send their request, as a message may arrive before the answer. A failure of
one of them does not end the connection of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from asyncgroup.errors import ConnectionLost, DecodeError, ProtocolError, RequestTimedOut
from asyncgroup.escaping import escaping_logger
from asyncgroup.hooks import Hooks
from asyncgroup.lifecycle import copy_error
from asyncgroup.net.framing import FrameProtocol, ReadTurns
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.connection.credentials import ConnectionCredentials
from asyncgroup.pulsar.connection.keep_alive import PingTimer
from asyncgroup.pulsar.connection.registered import RegisteredListeners
from asyncgroup.pulsar.connection.reports import connection_reports
from asyncgroup.pulsar.connection.requests import ANSWERS, Answered, PendingRequests, RequestRate
from asyncgroup.pulsar.connection.send_buffer import SendBuffer
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.service_url import HINTS, BrokerAddress
from asyncgroup.pulsar.wire.commands import (
    NO_REQUEST,
    Command,
    CommandAckResponse,
    CommandAuthChallenge,
    CommandConnected,
    CommandError,
    CommandMessage,
    CommandPing,
    CommandPong,
    CommandProducer,
    FeatureFlags,
)
from asyncgroup.pulsar.wire.frames import FRAME_HEADROOM, decode_frame, encode_frame

__all__ = ["DEFAULT_MAX_MESSAGE_SIZE", "PulsarConnection"]

DEFAULT_MAX_MESSAGE_SIZE: Final = 5 << 20
"""Bytes of a message that a broker accepts which says no limit."""

_LENGTH_BYTES: Final = 4
"""Bytes before each frame that hold its length."""

_FLUSH_SECONDS: Final = 5.0
"""How long an orderly close waits for a peer that reads nothing."""

_log = escaping_logger("asyncgroup.pulsar")


class PulsarConnection:
    """An open connection, made by `connecting.connect`.

    It ends by `close`, when the broker closes it or does not answer, and at malformed bytes outside of a message.
    """

    def __init__(
        self,
        logical: BrokerAddress,
        physical: BrokerAddress,
        config: PulsarConfig,
        ids: count[int],
        hooks: Hooks | None = None,
    ) -> None:
        self.logical = logical
        """The broker that is meant."""
        self.physical = physical
        """Where it is connected to: a proxy, or the broker."""
        self._config = config
        self._loop = asyncio.get_running_loop()
        self.protocol = FrameProtocol(
            self._on_frame,
            self._on_lost,
            DEFAULT_MAX_MESSAGE_SIZE + FRAME_HEADROOM,
            HINTS,
            ReadTurns(self._loop),
        )
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        """Bytes of metadata and payload that the broker accepts in a message."""
        self.features = FeatureFlags()
        """What the broker understands."""
        self.server_version = ""
        self._closed = False
        self._buffer = SendBuffer(self._loop, self.protocol)
        self.send = self._buffer.send  # a method here would be another call for each message
        self.credentials = ConnectionCredentials(
            config.authentication, physical, self.send_command, self.close
        )
        """What authenticates it."""
        self.last_used = self._loop.time()
        """Loop time when it last had a producer, a consumer or a request."""
        self.unknown_commands = 0
        """Number of commands of a type that this client does not know; they are ignored."""
        self._requests = PendingRequests(self._loop, ids)
        self.reports = connection_reports(hooks, self._requests)
        """What its events are given to; None without hooks."""
        self._refusals = RequestRate(config.max_rejected_requests)
        self.registered = RegisteredListeners(
            self, str(physical), self._check_open, self._is_tls, self._touch
        )
        """Its producers, consumers, watchers and transaction coordinators."""
        self._consumers = self.registered.consumers
        self._connected: asyncio.Future[CommandConnected] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._error: Exception | None = None
        self._pings = PingTimer(
            self._loop,
            config.keep_alive_interval,
            lambda: self.protocol.received_bytes,
            lambda: self.send_command(CommandPing()),
            self._expire,
        )
        self._received = self._handlers()

    def _handlers(self) -> dict[int, Callable[[Any], None]]:
        """Return functions by the type of a command; MESSAGE, and answers that only their request waits for, have none."""
        return {
            **self.registered.handlers,
            CommandAckResponse.TYPE: self._on_ack_response,
            CommandPing.TYPE: lambda _: self.send_command(CommandPong()),
            CommandPong.TYPE: lambda _: None,
            CommandError.TYPE: self._on_error,
            CommandConnected.TYPE: self._on_connected,
            CommandAuthChallenge.TYPE: self.credentials.challenged,
        }

    def __repr__(self) -> str:
        via = "" if self.physical == self.logical else f" through {self.physical}"
        state = "closed" if self.is_closed else str(self.registered)
        return f"<PulsarConnection {self.logical}{via}: {state}>"

    # --- use ----------------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent."""
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Whether nothing is registered and no request waits."""
        return not (self.registered or self._requests)

    def send_command(self, command: Command) -> None:
        """Write a command without payload."""
        self.send(encode_frame(command))

    async def drain(self) -> None:
        """Wait until the transport's write buffer has room."""
        await self.protocol.drain()

    @property
    def is_writable(self) -> bool:
        """Whether it has room."""
        return self.protocol.is_writable

    async def request(
        self,
        about: str,
        make: Callable[[int], Command],
        *,
        timeout: float | None,
        on_answer: Callable[[], object] | None = None,
    ) -> Any:
        """Send the command that `make(request_id)` returns, and return its answer; `about` names it in errors.

        `on_answer` is called at once when it is answered without an error: the caller goes on only after all that has arrived with it.
        Raises PulsarServerError, RequestTimedOut, ConnectionLost, and what `make` raises.
        """
        command, waiting = self._start(about, make, timeout, on_answer)
        try:
            answer = await waiting
        except (PulsarServerError, RequestTimedOut) as error:
            if self._refusals.is_exceeded(error, self._loop.time()):
                self.close(
                    ConnectionLost(f"{self.physical}: it has refused, or not answered, too many requests")
                )
            raise
        finally:
            self.last_used = self._loop.time()
        expected = ANSWERS.get(type(command))
        if expected is not None and type(answer) is not expected:
            wrong = f"{self.physical}: {about}: the answer is a {type(answer).__name__}"
            self.close(ProtocolError(wrong))
            raise ProtocolError(wrong)
        return answer

    def _check_open(self) -> None:
        if self._error is not None:
            raise copy_error(self._error)

    def start_request(
        self, about: str, make: Callable[[int], Command], *, timeout: float | None
    ) -> asyncio.Future[Any]:
        """Send a command now, and return the future of its answer, which raises as `request` does.

        Raises ConnectionLost if the connection is closed.
        """
        return self._start(about, make, timeout)[1]

    def _start(
        self,
        about: str,
        make: Callable[[int], Command],
        timeout: float | None,
        on_answer: Callable[[], object] | None = None,
    ) -> tuple[Command, asyncio.Future[Any]]:
        self._check_open()
        number, waiting = self._requests.future(about, timeout, on_answer)
        return self._send_request(number, make), waiting

    def call_with_answer(
        self, about: str, make: Callable[[int], Command], timeout: float | None, done: Answered
    ) -> None:
        """Send a command now, as `start_request`; `done` is called with the answer or the error, also of a connection that ends.

        It costs less than a future. Raises ConnectionLost if the connection is closed.
        """
        self._check_open()
        self._send_request(self._requests.begin(about, timeout, done), make)

    def _send_request(self, number: int, make: Callable[[int], Command]) -> Command:
        try:
            command = make(number)
            if type(command) is CommandProducer:
                self._requests.allow_turns(number)
            frame = encode_frame(command)
            self.send(frame)
        except BaseException:
            self._requests.give_up(number)
            raise
        self.last_used = now = self._loop.time()
        if self.reports is not None:
            self.reports.sent(number, command, len(frame), now)
        return command

    def _touch(self) -> None:
        self.last_used = self._loop.time()

    # --- its life -----------------------------------------------------------------------------------------------------

    async def wait_connected(self) -> None:
        """Wait for CONNECTED. Raises PulsarServerError, AuthenticationError, ConnectError, ConnectionLost."""
        await self._connected
        self._check_open()  # it may have ended since

    def _expire(self) -> None:
        interval = self._config.keep_alive_interval
        self.close(ConnectionLost(f"{self.physical}: no answer to a ping within {interval:g} s"))

    def close(self, error: Exception | None = None) -> None:
        """Close at once; requests and listeners get `error`."""
        if self.is_closed:
            return
        self._closed = True
        self._error = error or ConnectionLost(f"{self.physical}: the connection was closed")
        if self.protocol.has_transport:
            if error is None:
                self._buffer.flush()
                self.protocol.transport.close()  # what was written is sent
            else:
                self.protocol.transport.abort()
        else:
            self._ended.set_result(None)
        self._end(self._error)

    async def aclose(self) -> None:
        """Close, and wait until the transport is closed."""
        self.close()
        await self.credentials.aclose()
        await asyncio.wait([self._ended], timeout=_FLUSH_SECONDS)
        if not self._ended.done():
            self.protocol.transport.abort()
            await asyncio.wait([self._ended])

    def _on_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if not self.is_closed:
            self._closed = True
            lost = error or ConnectionLost("the broker closed the connection")
            self._error = type(lost)(f"{self.physical}: {lost}") if type(lost) in _NAMED else lost
            self._end(self._error)

    def _end(self, error: Exception) -> None:
        """Give the end to all that waits for something; each listener only once."""
        self._buffer.close()
        self._pings.stop()
        self.credentials.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # nothing may wait for it
        self._requests.fail_all(error)
        self.registered.end(error)
        if self.reports is not None:
            self.reports.ended(error)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: bytes | bytearray) -> None:
        if self.is_closed:
            return
        try:
            command, end = decode_frame(frame)
        except DecodeError as error:
            self.close(ProtocolError(f"{self.physical}: malformed command: {error}"))
            return
        try:
            if self.reports is not None and command is not None:
                self.reports.received(command, len(frame) + _LENGTH_BYTES, self._loop.time())
            if type(command) is CommandMessage:
                consumer = self._consumers.get(command.consumer_id)
                if consumer is not None:  # the broker may not know yet that it was closed
                    consumer.on_message(self, command, frame, end)
            elif command is None:
                self.unknown_commands += 1
            elif (received := self._received.get(command.TYPE)) is not None:
                received(command)
            elif (number := getattr(command, "request_id", None)) is not None:
                self._requests.answered(number, command)
        except Exception:  # noqa: BLE001  its error must not end the connection of the others
            _log.exception("%s: a listener failed", self.physical)

    def _on_ack_response(self, answer: CommandAckResponse) -> None:
        if answer.request_id is not None:
            self._requests.answered(answer.request_id, answer)

    def _on_error(self, error: CommandError) -> None:
        if not self._connected.done():
            self._refuse(PulsarServerError(error.error, f"{self.physical}: CONNECT", error.message))
        elif error.request_id != NO_REQUEST:
            self._requests.answered(error.request_id, error)

    def _refuse(self, error: Exception) -> None:
        self._connected.set_exception(error)
        self.close(error)

    def _on_connected(self, answer: CommandConnected) -> None:
        if self._connected.done():
            return
        self.server_version = answer.server_version
        self.features = answer.feature_flags or FeatureFlags()
        if answer.max_message_size is not None and answer.max_message_size > 0:
            self.max_message_size = answer.max_message_size
            self.protocol.max_size = self.max_message_size + FRAME_HEADROOM
        self._pings.start()
        self._connected.set_result(answer)

    def _is_tls(self) -> bool:
        return self.protocol.transport.get_extra_info("ssl_object") is not None


_NAMED: Final = (ConnectionLost, ProtocolError)
"""Errors of the transport to which the address is added."""

"""PulsarServerConnection: a client's connection to a node: frames, faults, and which handler gets a command (Pulsar's `ServerCnx`)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, Protocol

from asyncgroup.broker.traffic.injection import Injection, Injector
from asyncgroup.errors import ConfigError, DecodeError, ProtocolError
from asyncgroup.escaping import escaping_logger
from asyncgroup.lifecycle import start_task
from asyncgroup.net.framing import FrameProtocol
from asyncgroup.pulsar.service_url import HINTS
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import FRAME_HEADROOM, decode_frame, encode_frame, encode_message
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.net.failure_answers import failure_answer
from asyncgroup.pulsar_broker.net.handshake import ClientHandshake, HandshakeNode
from asyncgroup.pulsar_broker.traffic import PulsarExchange, PulsarRecorder, PulsarRequest

__all__ = ["PulsarServerConnection", "ServingNode", "Traffic"]

_log = escaping_logger("asyncgroup.pulsar_broker")


class ServingNode(HandshakeNode, Protocol):
    """A node, as its connections see it."""

    number: int
    delay: float
    traffic: Traffic

    def handle(
        self, connection: PulsarServerConnection, command: c.Command, frame: bytes | bytearray, at: int
    ) -> None:
        """Serve a command, whose payload begins at `at`. Raises ServerFailure."""
        ...

    def connection_lost(self, connection: PulsarServerConnection) -> None:
        """A connection has ended."""
        ...


class Traffic(NamedTuple):
    """What is recorded of the requests, and done to them; shared by all nodes."""

    recorder: PulsarRecorder
    injector: Injector[Injection]


class _Call:
    """A request that is being served."""

    __slots__ = ("at", "command", "exchange", "fault", "frame")

    def __init__(self, command: c.Command, frame: bytes | bytearray, at: int) -> None:
        self.command = command
        self.frame = frame
        self.at = at
        self.exchange: PulsarExchange | None = None
        self.fault: Injection | None = None


class PulsarServerConnection:
    """A connection. `protocol` is what the listener's transport gets."""

    def __init__(self, node: ServingNode, number: int) -> None:
        self.number = number
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.protocol = FrameProtocol(
            self._on_frame, self._on_lost, node.max_message_size + FRAME_HEADROOM, HINTS
        )
        self.is_closed = False
        self.handshake = ClientHandshake(node, self)
        """Which client it is, and its credential."""
        self.producers: dict[int, Any] = {}
        """What the handlers keep of its producers, by id."""
        self.consumers: dict[int, Any] = {}
        """The same of its consumers."""
        self._awaits_pong = False
        self._call: _Call | None = None  # that is being served
        self._disturbed: asyncio.Task[None] | None = None  # one that a fault holds
        self._later: deque[_Call] = deque()  # those after it
        self._is_stuck = False  # by a fault: nothing more is served

    def __repr__(self) -> str:
        return (
            f"<PulsarServerConnection {self.number} of {self.client_version!r}: {len(self.producers)} producers, "
            f"{len(self.consumers)} consumers>"
        )

    @property
    def client_version(self) -> str:
        """The name and version of the client; empty until it has connected."""
        return self.handshake.client_version

    # --- what is sent -----------------------------------------------------------------------------------------------------

    def send(self, command: c.Command, payload: bytes = b"") -> None:
        """Write a command that is no answer, and what follows it in its frame."""
        self._write(encode_message(command, payload) if payload else encode_frame(command))

    def reply(self, request: c.Command, answer: c.Command) -> None:
        """Write the answer to a request; an injected fault may change it."""
        call = self._call
        if (
            call is None or call.command is not request
        ):  # it comes later, as that of a producer that has waited
            self.send(answer)
            return
        fault = call.fault
        if fault is not None:
            answer = fault.apply_mutations(answer)
            if fault.drops_response:
                self._is_stuck = True
                return
            if fault.cut == "after":
                self.cut()
                return
        frame = encode_frame(answer)
        if call.exchange is not None:
            self._node.traffic.recorder.record_response(call.exchange, answer, len(frame), self._loop.time())
        if fault is not None and fault.cut == "mid-frame":
            self._write(frame[: len(frame) // 2])
            self.close()
        else:
            self._write(frame)

    def _write(self, frame: bytes) -> None:
        if not self.is_closed and self.protocol.has_transport:
            self.protocol.transport.write(frame)

    def ping(self) -> None:
        """Ask the client whether it is there; cut the connection of one that was silent since the last call (`PulsarHandler`)."""
        if self._awaits_pong:
            self.cut()
            return
        self._awaits_pong = True
        if self.handshake.is_done:  # else it has to send CONNECT until the next call
            self.send(c.CommandPing())

    def close(self) -> None:
        """Close it after what was written."""
        self._is_stuck = True
        if self.protocol.has_transport:
            self.protocol.transport.close()

    def cut(self) -> None:
        """Abort it, as when the node has died."""
        self._is_stuck = True
        if self.protocol.has_transport:
            self.protocol.transport.abort()

    # --- what arrives -----------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: bytes | bytearray) -> None:
        if self.is_closed or self._is_stuck:
            return
        try:
            command, at = decode_frame(frame)
        except DecodeError as error:
            _log.warning("%r: malformed command: %s", self, error)
            self.cut()
            return
        if self.handshake.is_done or type(command) is c.CommandConnect:
            self._awaits_pong = False
        if command is None or type(command) is c.CommandPong:
            return  # of a newer client, or an answer
        call = _Call(command, frame, at)
        if self._disturbed is not None:
            self._later.append(call)
        else:
            self._begin(call)

    def _begin(self, call: _Call) -> None:
        """Record a request, and serve it now, or when its fault lets it."""
        recorder, injector = self._node.traffic
        if recorder.recording or injector.injections:
            info = self._info(call.command)
            size = call.at  # without the payload, which is not kept
            exchange = recorder.record_request(info, call.command, size) if recorder.recording else None
            call.exchange = exchange
            if injector.injections:
                shown = exchange if exchange is not None else PulsarExchange(info, call.command, size)
                call.fault = injector.select(info, call.command, shown)
        if call.fault is None and not self._node.delay:
            self._serve(call)
        else:
            self._disturbed = start_task(self._serve_disturbed(call, call.fault))

    def _info(self, command: c.Command) -> PulsarRequest:
        topic, subscription = getattr(command, "topic", None), getattr(command, "subscription", None)
        if isinstance(command, c.CommandAddPartitionToTxn):
            topic = next(iter(command.partitions), None)
        elif isinstance(command, c.CommandAddSubscriptionToTxn):
            topic, subscription = _place_of(next(iter(command.subscription), None))
        elif isinstance(command, c.CommandEndTxnOnSubscription):
            topic, subscription = _place_of(command.subscription)
        name = None if topic is None else known_topic(topic)
        for places, key in ((self.producers, "producer_id"), (self.consumers, "consumer_id")):
            place = places.get(getattr(command, key, -1))
            if place is not None and name is None:
                name, subscription = place.topic.name, getattr(place, "subscription_name", None)
        return PulsarRequest(
            self._loop.time(),
            self._node.number,
            self.handshake.client_version,
            self.number,
            type(command).__name__.removeprefix("Command"),
            name,
            subscription,
        )

    async def _serve_disturbed(self, call: _Call, fault: Injection | None) -> None:
        """Serve a request as its fault wants it, and later at a slow broker, then those that have arrived since."""
        if self._node.delay:
            await asyncio.sleep(self._node.delay)
        if fault is not None:
            await fault.wait_before()
        if fault is not None and fault.cut == "before":
            self.cut()
        else:
            self._serve(call)
        self._go_on()

    def _go_on(self) -> None:
        """Serve the requests that have arrived since one was held."""
        self._disturbed = None
        while self._later and self._disturbed is None and not (self.is_closed or self._is_stuck):
            self._begin(self._later.popleft())

    def hold(self, seconds: float) -> None:
        """Serve no further request for a time; those that arrive wait."""
        if self._disturbed is None:
            self._disturbed = start_task(self._hold(seconds))

    async def _hold(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._go_on()

    def _serve(self, call: _Call) -> None:
        self._call = call
        try:
            try:
                self._handle(call)
            except ServerFailure as failure:
                self.fail(call.command, failure)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  impossible values, or a test's function: as in `exceptionCaught`
            name, is_of_client = type(call.command).__name__, isinstance(error, ProtocolError | ValueError)
            _log.warning(
                "%r: %s cannot be served, the connection ends: %r",
                self,
                name,
                error,
                exc_info=not is_of_client,
            )
            self.cut()
        finally:
            self._call = None

    def _handle(self, call: _Call) -> None:
        fault, command = call.fault, call.command
        if fault is not None and fault.answer is not None:
            self.reply(command, fault.make_answer(command))
        elif fault is not None and fault.error is not None:
            raise ServerFailure(fault.error, "injected by the test")
        elif self.handshake.is_done:
            self._node.handle(self, command, call.frame, call.at)
        else:
            self.handshake.connect(command)

    def fail(self, command: c.Command, failure: ServerFailure) -> None:
        """Answer a request with an error; log it for a command without such an answer."""
        answer = failure_answer(command, failure)
        if answer is None:
            _log.warning("%r: %s: %s", self, type(command).__name__, failure)
        else:
            self.reply(command, answer)

    def _on_lost(self, _: Exception | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._later.clear()
            if self._disturbed is not None and self._disturbed is not asyncio.current_task():
                self._disturbed.cancel()
            self._node.connection_lost(self)


def known_topic(text: str) -> TopicName | None:
    """Return a topic's name; None if it is none."""
    try:
        return TopicName.parse(text)
    except ConfigError:
        return None


def _place_of(subscription: c.SubscriptionOfTxn | None) -> tuple[str | None, str | None]:
    return (None, None) if subscription is None else (subscription.topic, subscription.subscription)

"""PulsarServerConnection: a client's connection to a node: frames, the handshake, and which handler gets a command (Pulsar's `ServerCnx`)."""

from __future__ import annotations

from typing import Any, Final, Protocol

from asyncgroup.errors import DecodeError
from asyncgroup.escaping import escaping_logger
from asyncgroup.net.framing import FrameProtocol
from asyncgroup.pulsar.service_url import HINTS
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.frames import FRAME_HEADROOM, decode_frame, encode_frame, encode_message
from asyncgroup.pulsar_broker.errors import ServerFailure

__all__ = ["PulsarServerConnection", "ServingNode"]

FEATURES: Final = c.FeatureFlags(
    supports_auth_refresh=True,
    supports_broker_entry_metadata=True,
    supports_partial_producer=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
)

_log = escaping_logger("asyncgroup.pulsar_broker")


class ServingNode(Protocol):
    """A node, as its connections see it."""

    max_message_size: int
    server_version: str

    def handle(
        self, connection: PulsarServerConnection, command: c.Command, frame: bytes | bytearray, at: int
    ) -> None:
        """Serve a command, whose payload begins at `at`. Raises ServerFailure."""
        ...

    def connection_lost(self, connection: PulsarServerConnection) -> None:
        """A connection has ended."""
        ...


class PulsarServerConnection:
    """A connection. `protocol` is what the listener's transport gets."""

    def __init__(self, node: ServingNode) -> None:
        self._node = node
        self.protocol = FrameProtocol(
            self._on_frame, self._on_lost, node.max_message_size + FRAME_HEADROOM, HINTS
        )
        self.is_closed = False
        self.client_version = ""
        self.producers: dict[int, Any] = {}
        """What the handlers keep of its producers, by id."""
        self.consumers: dict[int, Any] = {}
        """The same of its consumers."""
        self._is_connected = False

    def __repr__(self) -> str:
        return f"<PulsarServerConnection of {self.client_version!r}: {len(self.producers)} producers, {len(self.consumers)} consumers>"

    def send(self, command: c.Command, payload: bytes = b"") -> None:
        """Write a command, and what follows it in its frame."""
        if not self.is_closed and self.protocol.has_transport:
            frame = encode_message(command, payload) if payload else encode_frame(command)
            self.protocol.transport.write(frame)

    def fail(self, request_id: int, failure: ServerFailure) -> None:
        """Answer a request with an error."""
        self.send(c.CommandError(request_id=request_id, error=failure.code, message=failure.text))

    def cut(self) -> None:
        """Abort it, as when the node has died."""
        if self.protocol.has_transport:
            self.protocol.transport.abort()

    def _on_frame(self, frame: bytes | bytearray) -> None:
        if self.is_closed:
            return
        try:
            command, end = decode_frame(frame)
        except DecodeError as error:
            _log.warning("%r: malformed command: %s", self, error)
            self.cut()
            return
        if command is None:
            return  # of a newer client
        if not self._is_connected:
            self._connect(command)
            return
        try:
            self._node.handle(self, command, frame, end)
        except ServerFailure as failure:
            request_id = getattr(command, "request_id", None)
            if request_id is None:
                _log.warning("%r: %s: %s", self, type(command).__name__, failure)
            else:
                self.fail(request_id, failure)

    def _connect(self, command: c.Command) -> None:
        if not isinstance(command, c.CommandConnect):
            self.cut()
            return
        self._is_connected = True
        self.client_version = command.client_version
        self.send(
            c.CommandConnected(
                server_version=self._node.server_version,
                protocol_version=min(command.protocol_version, c.PROTOCOL_VERSION),
                max_message_size=self._node.max_message_size,
                feature_flags=FEATURES,
            )
        )

    def _on_lost(self, _: Exception | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._node.connection_lost(self)

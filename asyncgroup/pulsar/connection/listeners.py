"""Callbacks of a connection for its producers, consumers and watchers; none of these methods waits, and none may raise."""

from __future__ import annotations

from typing import Protocol

from asyncgroup.pulsar.wire.commands import (
    Command,
    CommandMessage,
    CommandSendError,
    CommandSendReceipt,
    CommandWatchTopicUpdate,
)

__all__ = ["ConnectionListener", "ConsumerListener", "ProducerListener", "SendsCommands", "WatcherListener"]


class SendsCommands(Protocol):
    """The connection (PulsarConnection), as far as its listeners use it."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent."""
        ...

    def send(self, *pieces: bytes) -> None:
        """Write bytes in this turn of the loop; of a closed connection nothing."""
        ...

    def send_command(self, command: Command) -> None:
        """Write a command without payload."""
        ...


class ConnectionListener(Protocol):
    """Callbacks that all listeners have. After either call the connection has forgotten the listener."""

    def on_broker_close(self, connection: SendsCommands, assigned_url: str | None) -> None:
        """The broker has closed this one: connect again, at `assigned_url` if there is one (PIP-307)."""
        ...

    def on_connection_lost(self, connection: SendsCommands, error: Exception) -> None:
        """The connection has ended."""
        ...


class ProducerListener(ConnectionListener, Protocol):
    """A producer."""

    def on_migrated(self, url: str) -> None:
        """Its topic is in the cluster of a service URL from now on; the broker closes it next (PIP-188)."""
        ...

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """What was sent is stored."""
        ...

    def on_send_error(self, error: CommandSendError) -> None:
        """What was sent is not stored."""
        ...


class ConsumerListener(ConnectionListener, Protocol):
    """A consumer."""

    def on_migrated(self, url: str) -> None:
        """Its topic is in the cluster of a service URL from now on; the broker closes it next (PIP-188)."""
        ...

    def on_message(
        self, connection: SendsCommands, command: CommandMessage, frame: bytes | bytearray, at: int
    ) -> None:
        """An entry has arrived: its metadata and payload begin at `at` of the frame."""
        ...

    def on_active_change(self, is_active: bool) -> None:
        """This consumer is the active one of a Failover subscription, or no longer."""
        ...

    def on_end_of_topic(self) -> None:
        """The topic was terminated and is read to its end."""
        ...


class WatcherListener(ConnectionListener, Protocol):
    """A watcher of the topics of a namespace."""

    def on_topics_changed(self, update: CommandWatchTopicUpdate) -> None:
        """Topics were created or deleted."""
        ...

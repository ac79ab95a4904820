"""ConnectionReports: the events of a connection for hooks, and Pulsar's names of its requests.

Messages and receipts are no requests: consumers and producers report them, by entry and by batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.hooks import Hooks
from asyncgroup.pulsar.connection.requests import PendingRequests
from asyncgroup.pulsar.wire.commands import (
    PROTOCOL_VERSION,
    Command,
    CommandAck,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    CommandGetLastMessageId,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandProducerSuccess,
    CommandSeek,
    CommandSubscribe,
    CommandTcClientConnectRequest,
    CommandUnsubscribe,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)

__all__ = ["NO_NODE", "PURPOSE", "REQUEST_NAMES", "ConnectionReports", "connection_reports"]

NO_NODE: Final = -1
"""Pulsar's brokers have no numbers: `node_id` of all events."""

PURPOSE: Final = "pulsar"
"""Lookups, producers and consumers share connections: `purpose` of all of them."""

REQUEST_NAMES: Final[Mapping[type[Command], str]] = {
    CommandLookupTopic: "LOOKUP",
    CommandPartitionedTopicMetadata: "PARTITIONED_METADATA",
    CommandGetTopicsOfNamespace: "GET_TOPICS_OF_NAMESPACE",
    CommandWatchTopicList: "WATCH_TOPIC_LIST",
    CommandWatchTopicListClose: "WATCH_TOPIC_LIST_CLOSE",
    CommandProducer: "PRODUCER",
    CommandCloseProducer: "CLOSE_PRODUCER",
    CommandSubscribe: "SUBSCRIBE",
    CommandCloseConsumer: "CLOSE_CONSUMER",
    CommandUnsubscribe: "UNSUBSCRIBE",
    CommandSeek: "SEEK",
    CommandGetLastMessageId: "GET_LAST_MESSAGE_ID",
    CommandAck: "ACK",
    CommandTcClientConnectRequest: "TC_CLIENT_CONNECT_REQUEST",
    CommandNewTxn: "NEW_TXN",
    CommandAddPartitionToTxn: "ADD_PARTITION_TO_TXN",
    CommandAddSubscriptionToTxn: "ADD_SUBSCRIPTION_TO_TXN",
    CommandEndTxn: "END_TXN",
    CommandEndTxnOnPartition: "END_TXN_ON_PARTITION",
    CommandEndTxnOnSubscription: "END_TXN_ON_SUBSCRIPTION",
}
"""The names of requests in `BaseCommand.Type` of `PulsarApi.proto`."""

_EVENTS: Final = ("on_connect", "on_disconnect", "on_request", "on_response")


class ConnectionReports:
    """The events of one connection."""

    def __init__(self, hooks: Hooks, requests: PendingRequests) -> None:
        self._hooks = hooks
        self._requests = requests
        self._address: tuple[str, int] | None = None  # once it is connected, until it ends

    def __repr__(self) -> str:
        return f"<ConnectionReports {self._address}>"

    def connected(self, host: str, port: int) -> None:
        """The broker has accepted the connection, at the address that answered."""
        self._address = host, port
        self._hooks.emit("on_connect", NO_NODE, host, port, PURPOSE)

    def ended(self, error: Exception) -> None:
        """The connection has ended; nothing is reported of one that was never accepted."""
        address, self._address = self._address, None
        if address is not None:
            host, port = address
            self._hooks.emit("on_disconnect", NO_NODE, host, port, PURPOSE, error)

    def sent(self, number: int, command: Command, size: int, now: float) -> None:
        """A request was written."""
        name = REQUEST_NAMES[type(command)]
        self._requests.note_sent(number, name, now)
        self._hooks.emit("on_request", NO_NODE, name, PROTOCOL_VERSION, size)

    def received(self, command: Command, size: int, now: float) -> None:
        """A command has arrived: report it if it answers a request that waits.

        The first answer to a producer that waits for its turn is none.
        """
        number = getattr(command, "request_id", None)
        if number is None or (isinstance(command, CommandProducerSuccess) and not command.producer_ready):
            return
        if (sent := self._requests.sent(number)) is not None:
            name, at = sent
            self._hooks.emit("on_response", NO_NODE, name, now - at, size)


def connection_reports(hooks: Hooks | None, requests: PendingRequests) -> ConnectionReports | None:
    """Return what a connection calls for each event; None without listeners."""
    listening = None if hooks is None else hooks.with_listener(*_EVENTS)
    return None if listening is None else ConnectionReports(listening, requests)

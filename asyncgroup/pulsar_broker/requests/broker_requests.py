"""BrokerRequests: what a node does for each command, by a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.errors import ProtocolError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import LookupType
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.requests.consumer_requests import ConsumerRequests
from asyncgroup.pulsar_broker.requests.producer_requests import ProducerRequests
from asyncgroup.pulsar_broker.requests.schema_requests import SchemaCommands
from asyncgroup.pulsar_broker.requests.services import ConnectedClient, NodeServices
from asyncgroup.pulsar_broker.requests.topic_lists import TopicLists
from asyncgroup.pulsar_broker.requests.topic_names import parse_topic
from asyncgroup.pulsar_broker.requests.transaction_requests import TransactionRequests

__all__ = ["BrokerRequests"]


class BrokerRequests:
    """The commands that a node serves."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        schemas = SchemaCommands(node.namespaces)
        self.producers = ProducerRequests(node, schemas)
        self.consumers = ConsumerRequests(node, schemas)
        self.transactions = TransactionRequests(node)
        self.topic_lists = TopicLists(node)
        self._table: Final[dict[type[c.Command], Callable[..., None]]] = {
            c.CommandPing: self._ping,
            c.CommandPong: self._pong,
            c.CommandAuthResponse: self._auth_response,
            c.CommandLookupTopic: self._lookup,
            c.CommandPartitionedTopicMetadata: self._partitions,
            **schemas.table,
            **self.producers.table,
            **self.consumers.table,
            **self.transactions.table,
            **self.topic_lists.table,
        }

    def __repr__(self) -> str:
        return f"<BrokerRequests of {self._node!r}>"

    def handle(
        self, connection: ConnectedClient, command: c.Command, frame: bytes | bytearray, at: int
    ) -> None:
        """Serve a command, whose payload begins at `at`. Raises ServerFailure, and ProtocolError, after which its connection ends."""
        handler = self._table.get(type(command))
        if handler is None:
            raise ProtocolError("it is no command of a client, or not at this time")
        if type(command) is c.CommandSend:
            handler(connection, command, frame, at)
        else:
            handler(connection, command)

    def _ping(self, connection: ConnectedClient, command: c.CommandPing) -> None:
        connection.reply(command, c.CommandPong())

    def _pong(self, connection: ConnectedClient, _: c.CommandPong) -> None:
        pass

    def _auth_response(self, connection: ConnectedClient, command: c.CommandAuthResponse) -> None:
        connection.handshake.renew_credential(command)

    # --- topics -----------------------------------------------------------------------------------------------------------

    def _lookup(self, connection: ConnectedClient, command: c.CommandLookupTopic) -> None:
        name = parse_topic(command.topic)
        self._node.namespaces.check(name)
        listener = command.advertised_listener_name
        if listener:
            raise ServerFailure(ServerError.SERVICE_NOT_READY, f"the broker do not have {listener} listener")
        owner = self._node.owner_of(name)
        owner.load(name)
        connection.reply(
            command,
            c.CommandLookupTopicResponse(
                request_id=command.request_id,
                response=LookupType.CONNECT,
                broker_service_url=owner.service_url,
                broker_service_url_tls=owner.service_url_tls,
                authoritative=True,
            ),
        )

    def _partitions(self, connection: ConnectedClient, command: c.CommandPartitionedTopicMetadata) -> None:
        count = self._node.namespaces.partitions_of(
            parse_topic(command.topic), creates=command.metadata_auto_creation_enabled
        )
        answer = c.CommandPartitionedTopicMetadataResponse(
            request_id=command.request_id, partitions=count, response=0
        )
        connection.reply(command, answer)

"""ProducerRequests: PRODUCER, SEND and CLOSE_PRODUCER."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from asyncgroup.errors import DecodeError, ProtocolError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import InitialPosition, MigratedResource
from asyncgroup.pulsar.wire.frames import ChecksumError, payload_bounds
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.requests.schema_requests import SchemaCommands
from asyncgroup.pulsar_broker.requests.services import ConnectedClient, NodeServices
from asyncgroup.pulsar_broker.schemas.schema_registry import SchemaKind
from asyncgroup.pulsar_broker.topics.policy_checks import check_quota
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.topics.topic_producers import ConnectedProducer

__all__ = ["ProducerRequests"]


class _Place:
    """A producer of a connection, and its topic."""

    def __init__(self, topic: BrokerTopic, producer: ConnectedProducer, schema_version: bytes) -> None:
        self.topic = topic
        self.producer = producer
        self.schema_version = schema_version


class ProducerRequests:
    """The commands of producers; `table` has them by type."""

    def __init__(self, node: NodeServices, schemas: SchemaCommands) -> None:
        self._node = node
        self._homes: dict[ConnectedProducer, ConnectedClient] = {}  # the connections of producers
        self._closed: dict[
            ConnectedClient, set[int]
        ] = {}  # producers that the broker has closed (`recentlyClosedProducers`)
        self._schemas = schemas
        self.table: dict[type[c.Command], Callable[..., None]] = {
            c.CommandProducer: self._register,
            c.CommandSend: self._send,
            c.CommandCloseProducer: self._close,
        }

    def __repr__(self) -> str:
        return f"<ProducerRequests of {self._node!r}>"

    def _register(self, connection: ConnectedClient, command: c.CommandProducer) -> None:
        if command.schema is not None:
            SchemaKind(command.schema.type)  # raises ValueError
        known: _Place | None = connection.producers.get(command.producer_id)
        if known is not None:
            self._repeat(connection, command, known)
            return
        topic = self._node.loaded(command.topic)
        if topic.migrated_to is not None:
            self._close_migrated(connection, command.producer_id, topic.migrated_to)
            return
        if topic.is_terminated:
            raise ServerFailure(ServerError.TOPIC_TERMINATED_ERROR, f"Topic {topic.name} has been terminated")
        check_quota(topic)
        schema_version = self._schemas.of_producer(topic, command.schema)
        name = command.producer_name or self._node.new_name()
        producer = ConnectedProducer(
            command, name, connection, partial(self._evict, connection, command.producer_id)
        )
        success = partial(self._succeed, connection, command, topic, name, schema_version)
        if topic.producers.add(producer, success):
            success()
        else:
            self._succeed(connection, command, topic, name, b"", is_ready=False)
        connection.producers[command.producer_id] = _Place(topic, producer, schema_version)
        self._homes[producer] = connection
        self._closed.get(connection, set()).discard(command.producer_id)
        if command.initial_subscription_name:
            topic.subscription(command.initial_subscription_name, InitialPosition.EARLIEST)

    def _repeat(self, connection: ConnectedClient, command: c.CommandProducer, known: _Place) -> None:
        """Answer a second request for an id: the first producer stays (`ServerCnx.handleProducer`)."""
        if not known.producer.is_ready:
            raise ServerFailure(
                ServerError.SERVICE_NOT_READY, "Producer is already present on the connection"
            )
        connection.reply(
            command,
            c.CommandProducerSuccess(
                request_id=command.request_id,
                producer_name=known.producer.name,
                last_sequence_id=-1,
                schema_version=known.schema_version,
                producer_ready=True,
            ),
        )

    def _succeed(
        self,
        connection: ConnectedClient,
        command: c.CommandProducer,
        topic: BrokerTopic,
        name: str,
        schema_version: bytes,
        *,
        is_ready: bool = True,
    ) -> None:
        connection.reply(
            command,
            c.CommandProducerSuccess(
                request_id=command.request_id,
                producer_name=name,
                last_sequence_id=topic.producers.last_sequence_id(name),
                schema_version=schema_version,
                topic_epoch=topic.producers.epoch,
                producer_ready=is_ready,
            ),
        )

    def _evict(self, connection: ConnectedClient, producer_id: int) -> None:
        place: _Place | None = connection.producers.pop(producer_id, None)
        if place is not None:
            self._homes.pop(place.producer, None)
            self._close_by_broker(connection, producer_id)

    def _send(
        self, connection: ConnectedClient, command: c.CommandSend, frame: bytes | bytearray, at: int
    ) -> None:
        place: _Place | None = connection.producers.get(command.producer_id)
        if place is None:
            if command.producer_id not in self._closed.get(connection, ()):
                raise ProtocolError("there is no such producer")
            return  # the broker has closed it, and its client may not know it yet
        self._store(connection, command, place, frame, at)

    def _store(
        self,
        connection: ConnectedClient,
        command: c.CommandSend,
        place: _Place,
        frame: bytes | bytearray,
        at: int,
    ) -> None:
        try:
            bounds = payload_bounds(frame, at)
            metadata = MessageMetadata.decode(frame, *bounds.metadata)
        except ChecksumError as error:
            raise ServerFailure(ServerError.CHECKSUM_ERROR, str(error)) from None
        except DecodeError as error:
            raise ServerFailure(ServerError.PERSISTENCE_ERROR, str(error)) from None
        if not 0 <= (metadata.num_messages_in_batch or 0) <= _MAX_BATCH:
            raise ServerFailure(
                ServerError.NOT_ALLOWED_ERROR,
                f"a batch of {metadata.num_messages_in_batch} messages; 0 to {_MAX_BATCH} are stored",
            )
        if not place.producer.is_ready:
            raise ServerFailure(ServerError.PRODUCER_FENCED, "the producer waits for its turn")
        highest = command.highest_sequence_id or command.sequence_id
        topic = place.topic
        if (
            topic.deduplicates
            and _is_last_chunk(metadata)
            and topic.producers.is_duplicate(place.producer.name, command.sequence_id, highest)
        ):
            self._receipt(connection, command, c.MessageIdData(ledger_id=-1, entry_id=-1))
            return
        transaction = None if command.txnid_most_bits is None else self._node.coordinators.id_of(command)
        entry = topic.store(metadata, bytes(frame[at:]), transaction)
        throttle = topic.throttle
        if throttle is not None:
            wait = throttle.take(entry.count)
            if wait:
                connection.hold(wait)
        ledger, number = entry.position
        partition = topic.name.partition
        self._receipt(
            connection, command, c.MessageIdData(ledger_id=ledger, entry_id=number, partition=partition)
        )
        topic.dispatch()  # after the receipt, as in Pulsar (`OpAddEntry`)

    def _receipt(
        self, connection: ConnectedClient, command: c.CommandSend, message_id: c.MessageIdData
    ) -> None:
        connection.reply(
            command,
            c.CommandSendReceipt(
                producer_id=command.producer_id,
                sequence_id=command.sequence_id,
                message_id=message_id,
                highest_sequence_id=command.highest_sequence_id,
            ),
        )

    def _close(self, connection: ConnectedClient, command: c.CommandCloseProducer) -> None:
        self.forget(connection, command.producer_id)
        connection.reply(command, c.CommandSuccess(request_id=command.request_id))

    def forget(self, connection: ConnectedClient, producer_id: int) -> None:
        """A producer has left."""
        place: _Place | None = connection.producers.pop(producer_id, None)
        if place is not None:
            self._homes.pop(place.producer, None)
            place.topic.producers.remove(place.producer)

    def connection_lost(self, connection: ConnectedClient) -> None:
        """A connection has ended, and its producers with it."""
        for number in list(connection.producers):
            self.forget(connection, number)
        self._closed.pop(connection, None)

    def evict(self, topic: BrokerTopic) -> None:
        """Close the producers of a topic, which is unloaded or deleted."""
        for producer in topic.producers.everyone:
            connection = self._homes.get(producer)  # None: it is at another node
            if connection is not None:
                number = producer.command.producer_id
                self.forget(connection, number)
                if topic.migrated_to is not None:
                    self._close_migrated(connection, number, topic.migrated_to)
                else:
                    self._close_by_broker(connection, number)

    def _close_migrated(self, connection: ConnectedClient, producer_id: int, url: str) -> None:
        connection.send(
            c.CommandTopicMigrated(
                resource_id=producer_id, resource_type=MigratedResource.PRODUCER, broker_service_url=url
            )
        )
        self._close_by_broker(connection, producer_id)

    def _close_by_broker(self, connection: ConnectedClient, producer_id: int) -> None:
        self._closed.setdefault(connection, set()).add(producer_id)
        connection.send(c.CommandCloseProducer(producer_id=producer_id, request_id=c.NO_REQUEST))


def _is_last_chunk(metadata: MessageMetadata) -> bool:
    """Whether a value is complete with an entry: its number counts only then (`MessageDeduplication.isDuplicate`)."""
    chunks = metadata.num_chunks_from_msg
    return chunks is None or metadata.chunk_id == chunks - 1


_MAX_BATCH: Final = 1 << 20
"""Messages of a batch: each takes a bit in each cursor."""

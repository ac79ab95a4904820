"""ConsumerRequests: the commands of consumers."""

from __future__ import annotations

from collections.abc import Callable

from asyncgroup.errors import ProtocolError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.ack_set import bits_of
from asyncgroup.pulsar.wire.enums import AckType, KeySharedMode, MigratedResource, SubType
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.requests.schema_requests import SchemaCommands
from asyncgroup.pulsar_broker.requests.services import ConnectedClient, NodeServices
from asyncgroup.pulsar_broker.schemas.schema_registry import SchemaKind
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["ConsumerRequests"]


class _Place:
    """A consumer of a connection, with its topic and subscription."""

    def __init__(
        self, topic: BrokerTopic, subscription: TopicSubscription, consumer: SubscribedConsumer
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.consumer = consumer

    @property
    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self.subscription.name


def _check_numbers(command: c.CommandSubscribe) -> None:
    """Raise ValueError for a number that its enum does not have, before anything is created; optional fields count as left out."""
    SubType(command.sub_type)
    if command.schema is not None:
        SchemaKind(command.schema.type)
    if command.key_shared_meta is not None:
        KeySharedMode(command.key_shared_meta.key_shared_mode)


class ConsumerRequests:
    """The commands of consumers; `table` has them by type."""

    def __init__(self, node: NodeServices, schemas: SchemaCommands) -> None:
        self._node = node
        self._homes: dict[SubscribedConsumer, ConnectedClient] = {}  # the connections of consumers
        self._schemas = schemas
        self.table: dict[type[c.Command], Callable[..., None]] = {
            c.CommandSubscribe: self._subscribe,
            c.CommandFlow: self._flow,
            c.CommandAck: self._ack,
            c.CommandRedeliverUnacknowledgedMessages: self._redeliver,
            c.CommandSeek: self._seek,
            c.CommandGetLastMessageId: self._last_id,
            c.CommandUnsubscribe: self._unsubscribe,
            c.CommandCloseConsumer: self._close,
        }

    def __repr__(self) -> str:
        return f"<ConsumerRequests of {self._node!r}>"

    def _subscribe(self, connection: ConnectedClient, command: c.CommandSubscribe) -> None:
        _check_numbers(command)
        if command.consumer_id in connection.consumers:  # the first one stays (`ServerCnx.handleSubscribe`)
            connection.reply(command, c.CommandSuccess(request_id=command.request_id))
            return
        topic = self._node.loaded(command.topic, creates=command.force_topic_creation)
        self._schemas.check_consumer(topic, command.schema)
        subscription = topic.subscribe(command)
        consumer = SubscribedConsumer(
            command,
            command.consumer_name or self._node.new_name(),
            topic.name.partition,
            connection.send,
            max_unacked=self._node.max_unacked,
        )
        try:
            subscription.add(consumer)
        except ServerFailure:
            topic.end_subscription_without_consumers(subscription)
            raise
        connection.consumers[command.consumer_id] = _Place(topic, subscription, consumer)
        self._homes[consumer] = connection
        if topic.migrated_to is not None and not subscription.backlog:
            self.evict(subscription, topic.migrated_to)
            return
        connection.reply(command, c.CommandSuccess(request_id=command.request_id))

    def _place(self, connection: ConnectedClient, consumer_id: int) -> _Place:
        found: _Place | None = connection.consumers.get(consumer_id)
        if found is None:
            raise ServerFailure(ServerError.METADATA_ERROR, "Consumer not found")
        return found

    def _flow(self, connection: ConnectedClient, command: c.CommandFlow) -> None:
        found: _Place | None = connection.consumers.get(command.consumer_id)
        if found is not None:
            if not 0 < command.message_permits < 1 << 31:
                raise ProtocolError(f"{command.message_permits} permits")
            found.subscription.flow(found.consumer, command.message_permits)

    def _ack(self, connection: ConnectedClient, command: c.CommandAck) -> None:
        kind = AckType(command.ack_type)
        found: _Place | None = connection.consumers.get(command.consumer_id)
        if found is None:
            return  # without an answer: it was closed, and its client may not know it yet (`ServerCnx.handleAck`)
        if command.txnid_most_bits is None:
            found.subscription.ack(kind, command.message_id)
        else:
            transaction = self._node.coordinators.id_of(command)
            found.subscription.ack_in_transaction(transaction, kind, command.message_id)
        if command.request_id is not None:
            answer = c.CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
            connection.reply(command, answer)
        if found.topic.migrated_to is not None and not found.subscription.backlog:
            self.evict(found.subscription, found.topic.migrated_to)

    def _redeliver(
        self, connection: ConnectedClient, command: c.CommandRedeliverUnacknowledgedMessages
    ) -> None:
        found: _Place | None = connection.consumers.get(command.consumer_id)
        if found is not None:
            found.subscription.redeliver(found.consumer, command.message_ids, command.consumer_epoch)

    def _seek(self, connection: ConnectedClient, command: c.CommandSeek) -> None:
        found = self._place(connection, command.consumer_id)
        log, unacked = found.topic.log, None
        if command.message_id is not None:
            position = MessageId.of(command.message_id)
            index = log.first if position.ledger_id < 0 else log.index_of(position[:2])
            if command.message_id.ack_set and log.find(position[:2]) is not None:
                unacked = bits_of(command.message_id.ack_set)
        elif command.message_publish_time is not None:
            index = log.index_at(command.message_publish_time)
        else:
            raise ServerFailure(ServerError.METADATA_ERROR, "SEEK has neither an id nor a time")
        self._node.close_consumers(found.subscription)
        found.subscription.seek(index, unacked)
        connection.reply(command, c.CommandSuccess(request_id=command.request_id))

    def _last_id(self, connection: ConnectedClient, command: c.CommandGetLastMessageId) -> None:
        found = self._place(connection, command.consumer_id)
        ledger, entry = found.topic.log.position_of(max(found.subscription.cursor.mark_delete, 0))
        if found.subscription.cursor.mark_delete < found.topic.log.first:
            entry = -1
        connection.reply(
            command,
            c.CommandGetLastMessageIdResponse(
                request_id=command.request_id,
                last_message_id=found.topic.last_id,
                consumer_mark_delete_position=c.MessageIdData(ledger_id=ledger, entry_id=entry),
            ),
        )

    def _unsubscribe(self, connection: ConnectedClient, command: c.CommandUnsubscribe) -> None:
        found = self._place(connection, command.consumer_id)
        if len(found.subscription.consumers) > 1 and not command.force:
            raise ServerFailure(
                ServerError.METADATA_ERROR, "Unconnected or shared consumer attempting to unsubscribe"
            )
        self.forget(connection, command.consumer_id)
        self._node.close_consumers(found.subscription)
        found.topic.subscriptions.pop(found.subscription.name, None)
        connection.reply(command, c.CommandSuccess(request_id=command.request_id))

    def _close(self, connection: ConnectedClient, command: c.CommandCloseConsumer) -> None:
        self.forget(connection, command.consumer_id)
        connection.reply(command, c.CommandSuccess(request_id=command.request_id))

    def forget(self, connection: ConnectedClient, consumer_id: int, *, comes_back: bool = False) -> None:
        """A consumer has left. `comes_back`: a subscription that is not durable stays, as when it is moved."""
        found: _Place | None = connection.consumers.pop(consumer_id, None)
        if found is not None:
            self._homes.pop(found.consumer, None)
            found.subscription.remove(found.consumer)
            if not comes_back:
                found.topic.end_subscription_without_consumers(found.subscription)

    def evict(self, subscription: TopicSubscription, migrated_to: str | None = None) -> None:
        """Close the consumers of a subscription: it moves, or its topic is unloaded, deleted, or has migrated to another cluster."""
        for consumer in subscription.consumers:
            connection = self._homes.get(consumer)  # None: it is at another node
            if connection is not None:
                self.forget(connection, consumer.id, comes_back=True)
                if migrated_to is not None:
                    migrated = c.CommandTopicMigrated(
                        resource_id=consumer.id,
                        resource_type=MigratedResource.CONSUMER,
                        broker_service_url=migrated_to,
                    )
                    connection.send(migrated)
                connection.send(c.CommandCloseConsumer(consumer_id=consumer.id, request_id=c.NO_REQUEST))

"""RegisteredListeners: the producers, consumers, watchers and transaction coordinators of a connection, and what the broker pushes to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncgroup.escaping import escaping_logger
from asyncgroup.pulsar.connection.listeners import (
    ConnectionListener,
    ConsumerListener,
    ProducerListener,
    SendsCommands,
    WatcherListener,
)
from asyncgroup.pulsar.wire.commands import (
    CommandActiveConsumerChange,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandReachedEndOfTopic,
    CommandSendError,
    CommandSendReceipt,
    CommandTopicMigrated,
    CommandWatchTopicUpdate,
)
from asyncgroup.pulsar.wire.enums import MigratedResource

__all__ = ["RegisteredListeners"]

_log = escaping_logger("asyncgroup.pulsar")


class RegisteredListeners:
    """Those of `connection`, by their ids.

    `is_tls()` says which of two assigned URLs is meant; `on_removed()` is called when the broker has closed one.
    """

    def __init__(
        self,
        connection: SendsCommands,
        name: str,
        is_tls: Callable[[], bool],
        on_removed: Callable[[], object],
    ) -> None:
        self._connection = connection
        self._name = name
        self._is_tls = is_tls
        self._on_removed = on_removed
        self.producers: dict[int, ProducerListener] = {}
        self.consumers: dict[int, ConsumerListener] = {}
        self.watchers: dict[int, WatcherListener] = {}
        self.coordinators: dict[int, ConnectionListener] = {}
        self.handlers: dict[int, Callable[[Any], None]] = {
            CommandSendReceipt.TYPE: self._on_receipt,
            CommandSendError.TYPE: self._on_send_error,
            CommandCloseProducer.TYPE: self._on_close_producer,
            CommandCloseConsumer.TYPE: self._on_close_consumer,
            CommandActiveConsumerChange.TYPE: self._on_active_change,
            CommandReachedEndOfTopic.TYPE: self._on_end_of_topic,
            CommandTopicMigrated.TYPE: self._on_migrated,
            CommandWatchTopicUpdate.TYPE: self._on_topics_changed,
        }
        """Functions by the type of a command. MESSAGE has none: the connection gives it to its consumer directly."""

    def __repr__(self) -> str:
        return f"<RegisteredListeners {self}>"

    def __str__(self) -> str:
        return f"{len(self.producers)} producers, {len(self.consumers)} consumers"

    def __bool__(self) -> bool:
        return bool(self.producers or self.consumers or self.watchers or self.coordinators)

    def end(self, error: Exception) -> None:
        """The connection has ended: forget all, and call each once."""
        listeners: list[ConnectionListener] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.watchers.values(),
            *self.coordinators.values(),
        ]
        for each in (self.producers, self.consumers, self.watchers, self.coordinators):
            each.clear()
        for listener in listeners:
            try:
                listener.on_connection_lost(self._connection, error)
            except Exception:  # noqa: BLE001  its error must not keep the others waiting
                _log.exception("%s: a listener failed", self._name)

    # --- pushes -------------------------------------------------------------------------------------------------------

    def _on_receipt(self, receipt: CommandSendReceipt) -> None:
        producer = self.producers.get(receipt.producer_id)
        if producer is not None:
            producer.on_receipt(receipt)

    def _on_send_error(self, error: CommandSendError) -> None:
        producer = self.producers.get(error.producer_id)
        if producer is not None:
            producer.on_send_error(error)

    def _on_close_producer(self, close: CommandCloseProducer) -> None:
        self._closed_by_broker(self.producers.pop(close.producer_id, None), close)

    def _on_close_consumer(self, close: CommandCloseConsumer) -> None:
        self._closed_by_broker(self.consumers.pop(close.consumer_id, None), close)

    def _closed_by_broker(
        self, listener: ConnectionListener | None, close: CommandCloseProducer | CommandCloseConsumer
    ) -> None:
        if listener is not None:
            self._on_removed()
            url = close.assigned_broker_service_url
            if self._is_tls():
                url = close.assigned_broker_service_url_tls
            listener.on_broker_close(self._connection, url or None)

    def _on_active_change(self, change: CommandActiveConsumerChange) -> None:
        consumer = self.consumers.get(change.consumer_id)
        if consumer is not None:
            consumer.on_active_change(change.is_active)

    def _on_end_of_topic(self, reached: CommandReachedEndOfTopic) -> None:
        consumer = self.consumers.get(reached.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _on_migrated(self, migrated: CommandTopicMigrated) -> None:
        """A topic has moved to another cluster; the broker closes its producer or consumer next."""
        url = migrated.broker_service_url_tls if self._is_tls() else migrated.broker_service_url
        is_producer = migrated.resource_type == MigratedResource.PRODUCER
        number = migrated.resource_id
        found = self.producers.get(number) if is_producer else self.consumers.get(number)
        if url and found is not None:
            found.on_migrated(url)
        else:
            _log.warning("%s: a topic has moved to another cluster: %s", self._name, url)

    def _on_topics_changed(self, update: CommandWatchTopicUpdate) -> None:
        watcher = self.watchers.get(update.watcher_id)
        if watcher is not None:
            watcher.on_topics_changed(update)

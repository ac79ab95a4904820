"""RegisteredListeners: the producers, consumers, watchers and transaction coordinators of a connection, and what the broker pushes to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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

L = TypeVar("L", bound=ConnectionListener)

_log = escaping_logger("asyncgroup.pulsar")


class RegisteredListeners:
    """The listeners of `connection`, by their ids.

    `check_open()` raises ConnectionLost when the connection has ended; `is_tls()` says which of two assigned URLs is meant; `on_removed()`
    is called when one was removed, or was closed by the broker.
    """

    def __init__(
        self,
        connection: SendsCommands,
        name: str,
        check_open: Callable[[], object],
        is_tls: Callable[[], bool],
        on_removed: Callable[[], object],
    ) -> None:
        self._connection = connection
        self._name = name
        self._check_open = check_open
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

    # --- members ------------------------------------------------------------------------------------------------------

    def add_producer(self, producer_id: int, listener: ProducerListener) -> None:
        """Register a producer, before it sends its request. Raises ConnectionLost, as the others."""
        self._add(self.producers, producer_id, listener)

    def add_consumer(self, consumer_id: int, listener: ConsumerListener) -> None:
        """Register a consumer, before it sends its request."""
        self._add(self.consumers, consumer_id, listener)

    def add_watcher(self, watcher_id: int, listener: WatcherListener) -> None:
        """Register a watcher, before it sends its request."""
        self._add(self.watchers, watcher_id, listener)

    def add_coordinator(self, coordinator_id: int, listener: ConnectionListener) -> None:
        """Register a transaction coordinator, before the request that connects to it."""
        self._add(self.coordinators, coordinator_id, listener)

    def _add(self, registered: dict[int, L], number: int, listener: L) -> None:
        self._check_open()
        registered[number] = listener

    def remove_producer(self, producer_id: int) -> None:
        """Forget a producer."""
        self._remove(self.producers, producer_id)

    def remove_consumer(self, consumer_id: int) -> None:
        """Forget a consumer."""
        self._remove(self.consumers, consumer_id)

    def remove_watcher(self, watcher_id: int) -> None:
        """Forget a watcher."""
        self._remove(self.watchers, watcher_id)

    def remove_coordinator(self, coordinator_id: int) -> None:
        """Forget a transaction coordinator."""
        self._remove(self.coordinators, coordinator_id)

    def _remove(self, registered: dict[int, Any], number: int) -> None:
        self._on_removed()
        registered.pop(number, None)

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

"""TransactionCoordinators: the open transactions of all coordinators, and their end (Pulsar's `TransactionMetadataStoreService`).

A coordinator runs in the broker that owns its partition of COORDINATOR_TOPIC, from the first connection of a client to it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.commands import CommandAck, CommandSend
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import TransactionId
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.transactions.transaction_metadata_store import TransactionMetadataStore, TxnMeta

__all__ = ["COORDINATOR_TOPIC", "TransactionCoordinators"]

COORDINATOR_TOPIC: Final = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Its partitions are the coordinators."""


class TransactionCoordinators:
    """All coordinators; `count` 0: there are no transactions. `load(topic)` has the broker of a topic load it."""

    def __init__(
        self, count: int, namespaces: Namespaces, load: Callable[[TopicName], None], timing: Timing
    ) -> None:
        self.count = count
        self._namespaces = namespaces
        self._load = load
        self._coordinators = [TransactionMetadataStore(number, self._end, timing) for number in range(count)]
        if count:
            namespaces.define(COORDINATOR_TOPIC, count)

    def __repr__(self) -> str:
        return f"<TransactionCoordinators {self._coordinators!r}>"

    @property
    def transactions(self) -> list[TxnMeta]:
        """All open transactions."""
        return [found for coordinator in self._coordinators for found in coordinator.transactions]

    def coordinator(self, number: int) -> TransactionMetadataStore:
        """Return a coordinator. Raises ServerFailure."""
        if number >= self.count:
            raise ServerFailure(
                ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
                f"Transaction coordinator with id {number} not found!",
            )
        return self._coordinators[number]

    def find(self, transaction: TransactionId) -> TxnMeta:
        """Return an open transaction. Raises ServerFailure."""
        return self.coordinator(transaction[0]).find(transaction[1])

    def id_of(self, command: CommandSend | CommandAck) -> TransactionId:
        """Return the transaction of a command that has one. Raises ServerFailure if there are none here."""
        if not self.count:
            raise ServerFailure(ServerError.NOT_ALLOWED_ERROR, "Transactions are not enabled.")
        return command.txnid_most_bits or 0, command.txnid_least_bits or 0

    def _end(self, transaction: TxnMeta, low_water_mark: int, action: TxnAction) -> None:
        commits = action is TxnAction.COMMIT
        for text, name in transaction.subscriptions:
            topic = self._topic(text)
            subscription = None if topic is None else topic.subscriptions.get(name)
            if subscription is not None:
                subscription.end_transaction(transaction.id, low_water_mark, commits=commits)
        for text in transaction.topics:
            topic = self._topic(text)
            if topic is not None:
                topic.end_transaction(transaction.id, low_water_mark, commits=commits)

    def _topic(self, text: str) -> BrokerTopic | None:
        """Return a topic, loaded by its broker; None if it does not exist any more."""
        try:
            found = self._namespaces.topics.get(TopicName.parse(text))
        except ConfigError:
            return None
        if found is not None:
            self._load(found.name)
        return found

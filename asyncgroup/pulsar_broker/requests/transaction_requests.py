"""TransactionRequests: the commands of transactions, for the coordinators that a node runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.enums import TxnAction
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import TransactionId
from asyncgroup.pulsar_broker.net.transaction_answers import transaction_answer
from asyncgroup.pulsar_broker.requests.services import ConnectedClient, NodeServices
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import COORDINATOR_TOPIC
from asyncgroup.pulsar_broker.transactions.transaction_metadata_store import TransactionMetadataStore, TxnMeta

__all__ = ["TransactionRequests"]


class TransactionRequests:
    """The commands of transactions; `table` has them by type."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._running: dict[int, TransactionMetadataStore] = {}
        self.table: dict[type[c.Command], Callable[..., None]] = {
            c.CommandTcClientConnectRequest: self._connect,
            c.CommandNewTxn: self._new,
            c.CommandAddPartitionToTxn: self._add_partitions,
            c.CommandAddSubscriptionToTxn: self._add_subscriptions,
            c.CommandEndTxn: self._end,
            c.CommandEndTxnOnPartition: self._end_on_partition,
            c.CommandEndTxnOnSubscription: self._end_on_subscription,
        }

    def __repr__(self) -> str:
        return f"<TransactionRequests of {self._node!r}: {sorted(self._running)}>"

    def close(self, name: TopicName) -> None:
        """The node does not own a topic any more: if it is a coordinator's partition, it does not run the coordinator."""
        if name.whole == COORDINATOR_TOPIC:
            coordinator = self._running.pop(name.partition, None)
            if coordinator is not None:
                coordinator.is_running = False

    def _is_enabled(self, connection: ConnectedClient, command: Any) -> bool:
        """Whether there are transactions; if not, the command is answered."""
        if self._node.coordinators.count:
            return True
        text = "Transactions are not enabled."
        error = c.CommandError(
            request_id=command.request_id, error=ServerError.NOT_ALLOWED_ERROR, message=text
        )
        connection.reply(command, error)
        return False

    def _connect(self, connection: ConnectedClient, command: c.CommandTcClientConnectRequest) -> None:
        if not self._is_enabled(connection, command):
            return
        name = COORDINATOR_TOPIC.of_partition(command.tc_id)
        if command.tc_id not in self._running:
            if not self._node.owns(name):
                raise ServerFailure(
                    ServerError.SERVICE_NOT_READY,
                    f"Namespace bundle for topic ({name}) not served by this instance. Please redo the lookup.",
                )
            coordinator = self._node.coordinators.coordinator(command.tc_id)
            self._running[command.tc_id] = coordinator
            coordinator.start()
        connection.reply(command, c.CommandTcClientConnectResponse(request_id=command.request_id))

    def _coordinator(self, number: int) -> TransactionMetadataStore:
        """Return a coordinator that this node runs. Raises ServerFailure."""
        found = self._running.get(number)
        if found is None:
            raise ServerFailure(
                ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
                f"Transaction coordinator with id {number} not found!",
            )
        return found

    def _new(self, connection: ConnectedClient, command: c.CommandNewTxn) -> None:
        if self._is_enabled(connection, command):
            most, least = self._coordinator(command.tc_id).begin(command.txn_ttl_seconds)
            connection.reply(
                command, transaction_answer(command, txnid_most_bits=most, txnid_least_bits=least)
            )

    def _transaction(self, command: Any) -> TxnMeta:
        return self._coordinator(command.txnid_most_bits).find(command.txnid_least_bits)

    def _add_partitions(self, connection: ConnectedClient, command: c.CommandAddPartitionToTxn) -> None:
        if self._is_enabled(connection, command):
            self._transaction(command).topics.update(dict.fromkeys(command.partitions))
            connection.reply(command, transaction_answer(command))

    def _add_subscriptions(self, connection: ConnectedClient, command: c.CommandAddSubscriptionToTxn) -> None:
        if self._is_enabled(connection, command):
            added = [(each.topic, each.subscription) for each in command.subscription]
            self._transaction(command).subscriptions.update(dict.fromkeys(added))
            connection.reply(command, transaction_answer(command))

    def _end(self, connection: ConnectedClient, command: c.CommandEndTxn) -> None:
        if self._is_enabled(connection, command):
            coordinator = self._coordinator(command.txnid_most_bits)
            coordinator.end(command.txnid_least_bits, TxnAction(command.txn_action or 0))
            connection.reply(command, transaction_answer(command))

    def _end_on_partition(self, connection: ConnectedClient, command: c.CommandEndTxnOnPartition) -> None:
        topic = self._topic(command.topic or "")
        if topic is not None:
            transaction, mark, commits = _end_of(command)
            topic.end_transaction(transaction, mark, commits=commits)
        connection.reply(command, transaction_answer(command))

    def _end_on_subscription(
        self, connection: ConnectedClient, command: c.CommandEndTxnOnSubscription
    ) -> None:
        place = command.subscription or c.SubscriptionOfTxn(topic="", subscription="")
        topic = self._topic(place.topic)
        subscription = None if topic is None else topic.subscriptions.get(place.subscription)
        if subscription is not None:
            transaction, mark, commits = _end_of(command)
            subscription.end_transaction(transaction, mark, commits=commits)
        connection.reply(command, transaction_answer(command))

    def _topic(self, text: str) -> BrokerTopic | None:
        """Return a topic that this node owns; None if there is none. Raises ServerFailure (`ServerCnx.handleEndTxnOnPartition`)."""
        try:
            name = TopicName.parse(text)
        except ConfigError as error:
            raise ServerFailure(ServerError.UNKNOWN_ERROR, str(error)) from None
        found = self._node.namespaces.topics.get(name)
        if found is not None and not self._node.owns(name):
            raise ServerFailure(ServerError.SERVICE_NOT_READY, f"The topic {name} does not exist in broker.")
        return found


def _end_of(command: Any) -> tuple[TransactionId, int, bool]:
    """Return the transaction, the low water mark, a signed number, and whether it commits."""
    mark = command.txnid_least_bits_of_low_watermark or 0
    signed = mark - (1 << 64) if mark >> 63 else mark
    transaction = command.txnid_most_bits, command.txnid_least_bits
    return transaction, signed, command.txn_action == TxnAction.COMMIT

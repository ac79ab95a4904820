"""NonPersistentTopic: a topic that keeps nothing (Pulsar's `NonPersistentTopic`).

A message goes to the consumers that have permits when it arrives, and to no other; it is not acknowledged, and all ids are 0:0.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.topic_log import Position, StoredEntry, TopicLog, TransactionId
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.policies import TopicPolicies
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["NonPersistentTopic"]


class NonPersistentTopic(BrokerTopic):
    """Its subscriptions and its producers."""

    def __init__(
        self, name: TopicName, ledger_ids: Iterator[int], timing: Timing, policies: TopicPolicies
    ) -> None:
        super().__init__(name, ledger_ids, timing, policies, log=_Passing(ledger_ids))

    def store(
        self, metadata: MessageMetadata, payload: bytes, transaction: TransactionId | None = None
    ) -> StoredEntry:
        """Keep an entry until `dispatch`. Raises ServerFailure."""
        if transaction is not None:
            text = "PublishTxnMessage is not supported by non-persistent topic"
            raise ServerFailure(ServerError.NOT_ALLOWED_ERROR, text)
        return super().store(metadata, payload)

    def dispatch(self) -> None:
        """Push entries to those that have permits, and forget them."""
        super().dispatch()
        for entry in self.log:
            for subscription in self.subscriptions.values():
                subscription.drop(entry)
        self.log.trim(self.log.end)

    def end_transaction(self, transaction: TransactionId, low_water_mark: int, *, commits: bool) -> None:
        """Nothing: it has no messages of transactions."""


class _Passing(TopicLog):
    """A log whose entries have no positions."""

    def position_of(self, index: int) -> Position:  # noqa: ARG002  all are the same
        return (0, 0)

    def index_of(self, position: Position) -> int:  # noqa: ARG002  none is kept
        return self.end

"""BrokerTopic: a topic without partitions, or one partition (Pulsar's `PersistentTopic`)."""

from __future__ import annotations

from collections.abc import Iterator

from asyncgroup.pulsar.wire.commands import CommandSubscribe, MessageIdData
from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.metadata import MessageMetadata
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.log.compaction import compact
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry, TopicLog, TransactionId
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.policies import Policies, TopicPolicies
from asyncgroup.pulsar_broker.topics.publish_throttle import PublishThrottle
from asyncgroup.pulsar_broker.topics.topic_producers import TopicProducers
from asyncgroup.pulsar_broker.topics.transaction_buffer import TransactionBuffer

__all__ = ["BrokerTopic"]


class BrokerTopic:
    """Its entries, its subscriptions and its producers."""

    def __init__(
        self,
        name: TopicName,
        ledger_ids: Iterator[int],
        timing: Timing,
        policies: TopicPolicies | None = None,
        log: TopicLog | None = None,
    ) -> None:
        self.name = name
        self.policies = policies if policies is not None else TopicPolicies(Policies())
        self.log = log if log is not None else TopicLog(ledger_ids)
        self.subscriptions: dict[str, TopicSubscription] = {}
        self.producers = TopicProducers()
        self.transactions = TransactionBuffer(self.log)
        self.is_terminated = False
        self.migrated_to: str | None = None
        """The service URL of the cluster that its clients use from now on; None for this one."""
        self.message_count = 0
        """Messages that were stored."""
        self.throttle: PublishThrottle | None = None
        """Limits the messages per second; None: any number."""
        self.deduplicates = False
        """Whether it drops messages whose sequence ids of their producer are stored."""
        self._timing = timing

    def __repr__(self) -> str:
        return f"<BrokerTopic {self.name}: {self.log!r}, {len(self.subscriptions)} subscriptions>"

    @property
    def last_id(self) -> MessageIdData:
        """The id of the last message that consumers may get; -1:-1 for none (`PersistentTopic.getLastDispatchablePosition`).

        Of a topic that is compacted to its end it is the last one that compaction has kept.
        """
        last, compacted = self.log.read_end - 1, self.log.compacted
        while last in self.log.hidden:
            last -= 1
        entry: StoredEntry | None = None
        if compacted is not None and last < compacted.end:
            entry = compacted.entries[-1] if compacted.entries else None
        elif last >= self.log.first:
            entry = self.log[last]
        if entry is None:
            return MessageId(-1, -1, self.name.partition).data()
        kept = entry.metadata.compacted_batch_indexes
        index = (kept[-1] if kept else entry.count - 1) if entry.is_batch else -1
        return MessageId(*entry.position, self.name.partition, index).data()

    @property
    def backlog_size(self) -> int:
        """Bytes from the first entry on that a durable subscription has not acknowledged."""
        starts = [each.cursor.mark_delete + 1 for each in self.subscriptions.values() if each.is_durable]
        return self.log.size_from(min(starts)) if starts else 0

    def now(self) -> int:
        """Return the time of day in ms."""
        return self._timing.now()

    def policies_changed(self) -> None:
        """Follow its policies from now on."""
        self.deduplicates = self.policies.deduplication
        if not self.deduplicates:
            self.producers.forget_sequence_ids()
        self._apply_publish_rate()

    def _apply_publish_rate(self) -> None:
        rate = self.policies.publish_rate
        if rate <= 0:
            self.throttle = None
        elif self.throttle is None or self.throttle.rate != rate:
            self.throttle = PublishThrottle(rate, self.now)

    def compact(self) -> None:
        """Compact it: readers of the compacted topic get the last value of each key, up to here."""
        self.log.compacted = compact(self.log)

    def append(
        self, metadata: MessageMetadata, payload: bytes, transaction: TransactionId | None = None
    ) -> StoredEntry:
        """Store an entry, and push it to those that have permits. Raises ServerFailure."""
        entry = self.store(metadata, payload, transaction)
        self.dispatch()
        return entry

    def store(
        self, metadata: MessageMetadata, payload: bytes, transaction: TransactionId | None = None
    ) -> StoredEntry:
        """Store an entry, which `dispatch` pushes. Raises ServerFailure."""
        if self.is_terminated:
            raise ServerFailure(ServerError.TOPIC_TERMINATED_ERROR, "Topic was already terminated")
        if transaction is not None:
            self.transactions.check(transaction)
        entry = self.log.append(metadata, payload)
        if transaction is not None:
            self.transactions.add(transaction, entry)
        self.message_count += entry.count
        return entry

    def dispatch(self) -> None:
        """Push entries to those that have permits."""
        for subscription in self.subscriptions.values():
            subscription.dispatch()

    def end_transaction(self, transaction: TransactionId, low_water_mark: int, *, commits: bool) -> None:
        """Make the messages of a transaction readable, or hide them. `low_water_mark`: its coordinator has none up to this number."""
        self.transactions.end(transaction, low_water_mark, self._timing.now(), commits=commits)
        self.dispatch()

    def terminate(self) -> None:
        """Accept no entry any more."""
        self.is_terminated = True
        for subscription in self.subscriptions.values():
            subscription.terminate()

    # --- subscriptions ----------------------------------------------------------------------------------------------------

    def subscription(self, name: str, position: InitialPosition) -> TopicSubscription:
        """Return a durable subscription; a new one begins at `position`."""
        found = self.subscriptions.get(name)
        if found is None:
            start = self.log.first if position is InitialPosition.EARLIEST else self.log.end
            found = self._add(name, start, is_durable=True)
        return found

    def subscribe(self, command: CommandSubscribe) -> TopicSubscription:
        """Return the subscription of a command, which may be a new one."""
        if command.durable or command.subscription in self.subscriptions:
            is_early = command.initial_position == InitialPosition.EARLIEST
            position = InitialPosition.EARLIEST if is_early else InitialPosition.LATEST
            return self.subscription(command.subscription, position)
        return self._add(command.subscription, self._start_of(command), is_durable=False)

    def _start_of(self, command: CommandSubscribe) -> int:
        """Return the first entry of a subscription that is not durable."""
        given = command.start_message_id
        if given is None:
            is_early = command.initial_position == InitialPosition.EARLIEST
            return self.log.first if is_early else self.log.end
        start = MessageId.of(given)
        if start.ledger_id < 0:
            return self.log.first
        # the entry itself comes once more, and the client leaves out what it had of it (`getNonDurableSubscription`)
        return self.log.index_of(start[:2])

    def _add(self, name: str, start: int, *, is_durable: bool) -> TopicSubscription:
        found = self.subscriptions[name] = TopicSubscription(
            name, self.name, self.log, start, self._timing, is_durable=is_durable
        )
        if self.is_terminated:
            found.terminate()
        return found

    def end_subscription_without_consumers(self, subscription: TopicSubscription) -> None:
        """Forget a subscription that is not durable when its last consumer has left."""
        if not subscription.is_durable and not subscription.consumers:
            self.subscriptions.pop(subscription.name, None)

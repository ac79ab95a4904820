"""Snapshots of an embedded Pulsar's brokers, topics and subscriptions, as `EmbeddedPulsar` returns them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asyncgroup.pulsar.wire.message_id import MessageId
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.node import PulsarNode
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from asyncgroup.pulsar_broker.transactions.transaction_metadata_store import TxnMeta

__all__ = [
    "BrokerView",
    "ConsumerView",
    "ProducerView",
    "PulsarTopicView",
    "PulsarTransactionView",
    "SubscriptionView",
    "view_broker",
    "view_pulsar_topic",
    "view_pulsar_transaction",
    "view_subscription",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker. It listens on `host` and `port`, and sends `advertised_host` to clients; it keeps its port while stopped.

    `delay` is what `EmbeddedPulsar.slow_broker` has set, in seconds; `topics` are the topics and partitions that it has loaded.
    """

    id: int
    host: str
    advertised_host: str
    port: int
    running: bool
    delay: float
    connections: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerView:
    """A producer that is connected; `partition` is -1 in a topic without partitions, `access_mode` has Java's name."""

    name: str
    partition: int
    access_mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarTopicView:
    """A topic with its partitions; `partitions` is 0 if it has none, and the tuples then have one member.

    `messages` counts those that were stored, also those that are no longer kept. `last_message_ids` has `-1:-1` where there
    is no message. `brokers` are the ids of those that have it loaded, None where none has. `producers` are those connected.
    """

    name: str
    partitions: int
    messages: int
    last_message_ids: tuple[MessageId, ...]
    terminated: bool
    brokers: tuple[int | None, ...]
    producers: tuple[ProducerView, ...]
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerView:
    """A consumer that is connected: `permits` for more messages, and `unacked` ones that it has.

    `active` is whether it gets messages: in Exclusive and Failover subscriptions one consumer does. `blocked`: it has
    too many messages without acknowledgement.
    """

    name: str
    partition: int
    permits: int
    unacked: int
    active: bool
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarTransactionView:
    """A transaction that has not ended. `deadline` is when it is aborted, in ms since 1970 as `opened_at`.

    `topics` are those that it writes to, partitions one by one; `subscriptions` are pairs of a topic and the name of a
    subscription that it acknowledges messages of.
    """

    id: str
    opened_at: int
    deadline: int
    topics: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionView:
    """A snapshot of a subscription, over all partitions of its topic.

    `type` is Pulsar's name (`Key_Shared`), None before the first consumer. `backlog` counts the messages that are not
    acknowledged, also those in batches (the admin API's `msgBacklog` counts entries), `acknowledged` the other ones that the
    topic keeps, and `unacked` those that consumers have. `mark_delete` has the last position of each partition up to which
    all messages are acknowledged. Messages of aborted transactions do not count; those of open ones are in the backlog.
    """

    topic: str
    name: str
    type: str | None
    durable: bool
    backlog: int
    acknowledged: int
    mark_delete: tuple[MessageId, ...]
    consumers: tuple[ConsumerView, ...]

    @property
    def unacked(self) -> int:
        """The messages that consumers have and have not acknowledged."""
        return sum(consumer.unacked for consumer in self.consumers)

    @property
    def permits(self) -> int:
        """The messages that the consumers may get now."""
        return sum(consumer.permits for consumer in self.consumers)


def view_broker(node: PulsarNode) -> BrokerView:
    """Return a snapshot of a broker."""
    return BrokerView(
        id=node.number,
        host=node.host,
        advertised_host=node.advertised_host,
        port=node.port,
        running=node.is_running,
        delay=node.delay,
        connections=len(node.connections),
        topics=tuple(sorted(str(name) for name in node.owned)),
    )


def view_pulsar_topic(
    name: TopicName, parts: Sequence[BrokerTopic], loaded_at: Callable[[TopicName], int | None]
) -> PulsarTopicView:
    """Return a snapshot of a topic: of its partitions, or of itself. `loaded_at` returns the broker that has one loaded."""
    return PulsarTopicView(
        name=str(name),
        partitions=0 if parts[0].name == name else len(parts),
        messages=sum(part.message_count for part in parts),
        last_message_ids=tuple(MessageId.of(part.last_id) for part in parts),
        terminated=all(part.is_terminated for part in parts),
        brokers=tuple(loaded_at(part.name) for part in parts),
        producers=tuple(
            ProducerView(name=each.name, partition=part.name.partition, access_mode=each.mode.published_name)
            for part in parts
            for each in part.producers
        ),
        subscriptions=tuple(sorted({name for part in parts for name in part.subscriptions})),
    )


def view_pulsar_transaction(transaction: TxnMeta) -> PulsarTransactionView:
    """Return a snapshot of a transaction."""
    most, least = transaction.id
    return PulsarTransactionView(
        id=f"({most},{least})",
        opened_at=transaction.opened_at,
        deadline=transaction.deadline,
        topics=tuple(transaction.topics),
        subscriptions=tuple(transaction.subscriptions),
    )


def view_subscription(
    name: TopicName, parts: Sequence[tuple[BrokerTopic, TopicSubscription]]
) -> SubscriptionView:
    """Return a snapshot of a subscription of a topic: at its partitions, or at itself."""
    first = parts[0][1]
    counts = [_counts(each, subscription) for each, subscription in parts]
    kinds = [each.kind for _, each in parts if each.kind is not None]
    return SubscriptionView(
        topic=str(name),
        name=first.name,
        type=kinds[0].published_name if kinds else None,
        durable=first.is_durable,
        backlog=sum(open_ones for open_ones, _ in counts),
        acknowledged=sum(closed for _, closed in counts),
        mark_delete=tuple(_mark_delete(each, subscription) for each, subscription in parts),
        consumers=tuple(
            ConsumerView(
                name=each.name,
                partition=part.name.partition,
                permits=each.permits,
                unacked=each.unacked,
                active=subscription.active in (None, each),
                blocked=each.is_blocked,
            )
            for part, subscription in parts
            for each in subscription.consumers
        ),
    )


def _counts(topic: BrokerTopic, subscription: TopicSubscription) -> tuple[int, int]:
    """Return the numbers of messages that are not acknowledged, and that are."""
    cursor = subscription.cursor
    hidden = topic.log.hidden
    entries = [entry for entry in topic.log if entry.index not in hidden]
    left = sum(cursor.unacked(entry).bit_count() for entry in entries)
    return left, sum(entry.count for entry in entries) - left


def _mark_delete(topic: BrokerTopic, subscription: TopicSubscription) -> MessageId:
    index, log = subscription.cursor.mark_delete, topic.log
    if index < log.first:
        ledger, entry = log.position_of(log.first)
        return MessageId(ledger, entry - 1, topic.name.partition)
    return MessageId(*log.position_of(index), topic.name.partition)

"""What the brokers push, by patches of their classes: rules of dispatchers, and the permits as their own account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from asyncgroup.pulsar.wire.commands import CommandSubscribe, MessageIdData
from asyncgroup.pulsar_broker.log.topic_log import StoredEntry
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from tests.simulate_pulsar.oracle import MessagePlace, SubscriptionOracle
from tests.simulation.story import Violation

__all__ = ["PushObserver"]

ANSWERED_WITHIN: Final = 10.0
"""Seconds from a refused acknowledgement until its client has sent its parts again."""


class PushObserver:
    """Checks each push. `fail(violation)` is called with what is violated."""

    def __init__(
        self,
        oracles: dict[str, SubscriptionOracle],
        fail: Callable[[Violation], None],
        now: Callable[[], int],
        time: Callable[[], float],
        count: Callable[[str], None],
    ) -> None:
        self._oracles = oracles
        self._fail = fail
        self._now = now  # of the day, in ms
        self._time = time  # of the loop
        self._count = count
        self._topics: dict[TopicSubscription, BrokerTopic] = {}
        self._subscriptions: dict[SubscribedConsumer, TopicSubscription] = {}
        self._granted: dict[SubscribedConsumer, int] = {}
        self._refused: list[tuple[float, BrokerTopic]] = []

    def __repr__(self) -> str:
        return f"<PushObserver {len(self._subscriptions)} consumers>"

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe all brokers for the duration of a block."""
        subscribe, add, flow = BrokerTopic.subscribe, TopicSubscription.add, TopicSubscription.flow
        seek, take = TopicSubscription.seek, SubscribedConsumer.take
        redeliver, lose = TopicSubscription.redeliver, TopicSubscription._lose

        def subscribed(topic: BrokerTopic, command: CommandSubscribe) -> TopicSubscription:
            found = subscribe(topic, command)
            self._topics[found] = topic
            return found

        def added(subscription: TopicSubscription, consumer: SubscribedConsumer) -> None:
            self._subscriptions[consumer] = subscription
            self._granted[consumer] = 0
            add(subscription, consumer)

        def flowed(subscription: TopicSubscription, consumer: SubscribedConsumer, permits: int) -> None:
            self._granted[consumer] += permits
            flow(subscription, consumer, permits)

        def sought(subscription: TopicSubscription, index: int, unacked: int | None = None) -> None:
            oracle = self._oracles.get(subscription.name)
            if oracle is not None:
                topic = self._topics[subscription]
                ledger, number = topic.log.position_of(index)
                first = 0 if unacked is None else (unacked & -unacked).bit_length() - 1
                oracle.at(str(topic.name)).move(MessagePlace(ledger, number, first), self._time())
            seek(subscription, index, unacked)

        def redelivered(
            subscription: TopicSubscription,
            consumer: SubscribedConsumer,
            ids: Sequence[MessageIdData],
            *rest: Any,
        ) -> None:
            oracle = self._oracles.get(subscription.name)
            if oracle is not None and not ids:
                topic = self._topics[subscription]
                oracle.at(str(topic.name)).redeliver_all(map(topic.log.position_of, consumer.pending))
            redeliver(subscription, consumer, ids, *rest)

        def lost(subscription: TopicSubscription, ids: Sequence[MessageIdData]) -> None:
            self._refused.append((self._time(), self._topics[subscription]))
            lose(subscription, ids)

        def taken(consumer: SubscribedConsumer, entry: StoredEntry, unacked: int, *rest: Any) -> None:
            self._check(consumer, entry, unacked)
            take(consumer, entry, unacked, *rest)
            self._charge(consumer, unacked.bit_count())

        with ExitStack() as stack:
            for owner, name, function in (
                (BrokerTopic, "subscribe", subscribed),
                (TopicSubscription, "add", added),
                (TopicSubscription, "flow", flowed),
                (TopicSubscription, "seek", sought),
                (TopicSubscription, "redeliver", redelivered),
                (TopicSubscription, "_lose", lost),
                (SubscribedConsumer, "take", taken),
            ):
                stack.enter_context(patch.object(owner, name, function))
            yield

    def stranded(self, deaths: Sequence[float]) -> list[str]:
        """Return the topics in which a transaction was refused shortly before one of these times, the deaths of processes.

        The broker has taken all messages of such an acknowledgement from its consumer (`Consumer.individualAckWithTransaction`). The client
        brings them back; if its process dies before, they are delivered when the topic is loaded again.
        """
        return sorted(
            {
                str(topic.name)
                for time, topic in self._refused
                if any(time <= death < time + ANSWERED_WITHIN for death in deaths)
            }
        )

    def _charge(self, consumer: SubscribedConsumer, count: int) -> None:
        self._granted[consumer] -= count
        if consumer.permits != self._granted[consumer]:
            text = f"{consumer!r} has {self._granted[consumer]} by its requests"
            self._fail(Violation("the broker's permits balance", text))

    def _check(self, consumer: SubscribedConsumer, entry: StoredEntry, unacked: int) -> None:
        self._count("pushes")
        subscription = self._subscriptions[consumer]
        oracle = self._oracles.get(subscription.name)
        if oracle is None:
            return
        where = f"entry {entry.position} of {self._topics[subscription].name} to {consumer.name}"
        try:
            oracle.at(str(self._topics[subscription].name)).push(
                entry.position, unacked, self._time(), count=entry.count
            )
            self._check_holders(oracle, subscription, consumer, entry, where)
            if consumer.permits <= 0 and entry.metadata.uuid is None:
                raise Violation("a push needs a permit", where)
            time = entry.metadata.deliver_at_time
            if time is not None and not oracle.spec.in_order and time > self._now():
                raise Violation("delayed messages wait", f"{where}, {time - self._now()} ms early")
        except Violation as violation:
            self._fail(violation)

    def _check_holders(
        self,
        oracle: SubscriptionOracle,
        subscription: TopicSubscription,
        consumer: SubscribedConsumer,
        entry: StoredEntry,
        where: str,
    ) -> None:
        log = self._topics[subscription].log
        for other in subscription.consumers:
            if other is consumer:
                continue
            if entry.index in other.pending:
                raise Violation("one consumer has a message", f"{where}, and {other.name} has it")
            if oracle.spec.in_order and other.pending:
                raise Violation(
                    "one consumer is active", f"{where}, and {other.name} has {len(other.pending)}"
                )
            if oracle.spec.kind == "key_shared" and any(log[each].key == entry.key for each in other.pending):
                raise Violation("a key has one consumer", f"{where}, and {other.name} has {entry.key!r}")

"""Random programs on a subscription: who gets which entry, permits, redeliveries, and that nothing is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.pulsar.wire.commands import Command, CommandMessage, CommandSubscribe, MessageIdData
from asyncgroup.pulsar.wire.enums import AckType, SubType
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.log.topic_log import TopicLog
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from asyncgroup.pulsar_broker.subscriptions.subscription import TopicSubscription
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from tests.pulsar_broker.subscriptions.key_owners import ACTIVE
from tests.pulsar_broker.support import metadata

KEYS = ["a", "b", "c", "d"]
ORDERED = (SubType.EXCLUSIVE, SubType.FAILOVER)


class Client:
    """A consumer, and the messages that it has."""

    def __init__(self, scene: Scene, number: int, priority: int = 0) -> None:
        self.scene = scene
        self.has: dict[int, MessageIdData] = {}
        command = CommandSubscribe(
            topic="t",
            subscription="s",
            sub_type=scene.kind,
            consumer_id=number,
            request_id=0,
            consumer_epoch=0,
            priority_level=priority,
        )
        self.consumer = SubscribedConsumer(command, f"c{number}", -1, self._push, max_unacked=30)
        self.granted = 0

    def _push(self, command: Command, _: bytes) -> None:
        if isinstance(command, CommandMessage):
            self.scene.pushed(self, command)

    def flow(self, permits: int) -> None:
        self.granted += permits
        self.scene.subscription.flow(self.consumer, permits)


class Scene:
    """A subscription with a topic, and a model of who has what."""

    def __init__(self, kind: SubType) -> None:
        self.kind = kind
        self.time = 1_000
        self.calls: list[tuple[int, Callable[[], None]]] = []
        timing = Timing(lambda: self.time, lambda at, call: self.calls.append((at, call)), self._at_once)
        self.topic = BrokerTopic(TopicName.parse("t"), count(1), timing)
        self.subscription = self.topic.subscribe(
            CommandSubscribe(
                topic="t", subscription="s", sub_type=kind, consumer_id=0, request_id=0, initial_position=1
            )
        )
        self.clients: dict[int, Client] = {}
        self.acked: set[int] = set()
        self.first_deliveries: defaultdict[str, list[int]] = defaultdict(list)
        self.seen: set[int] = set()
        self.numbers = count()

    @staticmethod
    def _at_once(call: Callable[[], None]) -> None:
        call()

    def pushed(self, client: Client, command: CommandMessage) -> None:
        entry = self.topic.log.find((command.message_id.ledger_id, command.message_id.entry_id))
        assert entry is not None
        index = entry.index
        assert index not in self.acked, "what is acknowledged does not come again"
        for other in self.clients.values():
            if other is not client:
                assert index not in other.has, "two consumers have an entry"
        if self.kind is SubType.KEY_SHARED:
            key = entry.metadata.partition_key
            for other in self.clients.values():
                if other is not client:
                    keys = {self.topic.log[each].metadata.partition_key for each in other.has}
                    assert key not in keys, "two consumers have a key"
        time = entry.metadata.deliver_at_time
        assert time is None or self.kind in ORDERED or time <= self.time, "before its time"
        client.has[index] = command.message_id
        if index not in self.seen:
            self.seen.add(index)
            if time is None:
                self.first_deliveries[entry.metadata.partition_key or ""].append(index)

    # --- steps ------------------------------------------------------------------------------------------------------------

    def join(self, priority: int) -> None:
        if self.kind is SubType.EXCLUSIVE and self.clients:
            return
        number = next(self.numbers)
        client = Client(self, number, priority)
        self.clients[number] = client
        self.subscription.add(client.consumer)
        self._forget_given_back()

    def leave(self, which: int) -> None:
        if self.clients:
            number = sorted(self.clients)[which % len(self.clients)]
            client = self.clients.pop(number)
            client.has.clear()
            self.subscription.remove(client.consumer)
            self._forget_given_back()

    def _forget_given_back(self) -> None:
        """What the dispatcher took away from a consumer that is not active any more."""
        for client in self.clients.values():
            client.has = {each: data for each, data in client.has.items() if each in client.consumer.pending}

    def publish(self, key: int, delay: int) -> None:
        time = self.time + delay * 100 if delay else None
        self.topic.append(metadata(partition_key=KEYS[key % 4], deliver_at_time=time), b"")

    def flow(self, which: int, permits: int) -> None:
        if self.clients:
            sorted_clients = [self.clients[number] for number in sorted(self.clients)]
            sorted_clients[which % len(sorted_clients)].flow(permits)

    def ack(self, which: int) -> None:
        owned = [(client, index) for client in self.clients.values() for index in client.has]
        if owned:
            client, index = owned[which % len(owned)]
            self.acked.add(index)
            self.subscription.ack(AckType.INDIVIDUAL, [client.has.pop(index)])

    def redeliver(self, which: int) -> None:
        able = [client for client in self.clients.values() if client.has]
        if not able:
            return
        client = able[which % len(able)]
        if self.kind in ORDERED:
            client.has.clear()
            self.subscription.redeliver(client.consumer, [], (client.consumer.epoch or 0) + 1)
        else:
            index = sorted(client.has)[which % len(client.has)]
            self.subscription.redeliver(client.consumer, [client.has.pop(index)], None)

    def pass_time(self, ms: int) -> None:
        self.time += ms
        due, self.calls = (
            [call for at, call in self.calls if at <= self.time],
            [each for each in self.calls if each[0] > self.time],
        )
        for call in due:
            call()

    def check(self) -> None:
        for client in self.clients.values():
            consumer = client.consumer
            assert set(consumer.pending) == set(client.has)
            assert consumer.unacked == len(client.has)
            assert consumer.permits >= 0, "there are no batches"
            if self.kind in ORDERED and client.consumer is not self.subscription.active:
                assert client.has == {}

    def finish(self) -> None:
        """All leave, and one consumer takes the rest: everything is delivered and acknowledged in the end."""
        for _ in list(self.clients):
            self.leave(0)
        self.pass_time(1_000_000)
        self.join(0)
        for _ in range(self.topic.log.end + 1):
            self.flow(0, 1)
            self.ack(0)
        self.pass_time(1_000_000)
        while any(client.has for client in self.clients.values()):
            self.ack(0)
        assert self.subscription.backlog == 0
        assert self.acked == set(range(self.topic.log.end))
        if self.kind in (*ORDERED, SubType.KEY_SHARED):
            for found in self.first_deliveries.values():
                assert found == sorted(found), "the first deliveries of a key are in order"


NUMBER = st.integers(0, 20)
STEP = st.one_of(
    st.tuples(st.just("join"), st.integers(0, 2)),
    st.tuples(st.just("leave"), NUMBER),
    st.tuples(st.just("publish"), NUMBER, st.sampled_from([0, 0, 0, 1, 5])),
    st.tuples(st.just("publish"), NUMBER, st.just(0)),
    st.tuples(st.just("flow"), NUMBER, st.integers(1, 8)),
    st.tuples(st.just("ack"), NUMBER),
    st.tuples(st.just("redeliver"), NUMBER),
    st.tuples(st.just("pass_time"), st.integers(1, 1000)),
)


@pytest.mark.parametrize("kind", SubType)
@settings(max_examples=100)
@given(data=st.data())
def test_random_programs(kind: SubType, data: Any) -> None:
    scene = Scene(kind)
    for name, *arguments in data.draw(st.lists(STEP, max_size=60)):
        getattr(scene, name)(*arguments)
        scene.check()
    scene.finish()


def test_lower_priorities_wait_while_others_have_permits() -> None:
    scene = Scene(SubType.SHARED)
    for priority in (0, 0, 1):
        scene.join(priority)
    for number, permits in enumerate((2, 1, 5)):
        scene.flow(number, permits)
    for _ in range(6):
        scene.publish(0, 0)
    assert [len(client.has) for client in scene.clients.values()] == [2, 1, 3]


def test_a_consumer_with_too_many_unacknowledged_messages_gets_no_more_until_half_are() -> None:
    scene = Scene(SubType.SHARED)
    scene.join(0)
    scene.flow(0, 100)
    for _ in range(50):
        scene.publish(0, 0)
    [client] = scene.clients.values()
    assert len(client.has) == 30
    for _ in range(14):
        scene.ack(0)
    assert len(client.has) == 16
    scene.ack(0)
    assert sorted(client.has) == list(range(15, 45)), "15 were left, and 15 came"


def test_redeliveries_are_counted_until_the_last_consumer_leaves() -> None:
    scene = Scene(SubType.SHARED)
    scene.join(0)
    scene.flow(0, 10)
    scene.publish(0, 0)
    counts = []
    [client] = scene.clients.values()
    take = client.consumer.take

    def noted(entry: Any, unacked: int, ack_set: Any, redeliveries: int) -> None:
        counts.append(redeliveries)
        take(entry, unacked, ack_set, redeliveries)

    client.consumer.take = noted  # type: ignore[method-assign]
    for _ in range(3):
        scene.redeliver(0)
    assert counts == [1, 2, 3]
    scene.leave(0)
    scene.join(0)
    scene.flow(0, 10)
    [client] = scene.clients.values()
    assert set(client.has) == {0}


def active_consumer(topic: str, *names: str) -> str:
    timing = Timing(lambda: 0, lambda *_: None, lambda _: None)
    subscription = TopicSubscription("s", TopicName.parse(topic), TopicLog(), 0, timing, is_durable=True)
    for number, name in enumerate(names):
        command = CommandSubscribe(
            topic=topic, subscription="s", sub_type=SubType.FAILOVER, consumer_id=number, request_id=0
        )
        subscription.add(SubscribedConsumer(command, name, -1, lambda *_: None))
    assert subscription.active is not None
    return subscription.active.name


def test_the_active_consumer_depends_on_names() -> None:
    found = [active_consumer(f"topic-{number}", "c", "a", "b") for number in range(len(ACTIVE))]
    assert "".join(found) == ACTIVE
    assert [active_consumer(f"t-partition-{number}", "c", "a", "b") for number in range(4)] == list("abca")

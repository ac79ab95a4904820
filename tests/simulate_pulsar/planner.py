"""Draw the plan of a seed. Pure: no clock, no I/O.

The strings and the order in which this module draws random values are part of a seed's meaning.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tests.simulate_pulsar.plan import (
    ORDERLY,
    RESULTS,
    ConsumerSpec,
    ProducerSpec,
    PulsarSetting,
    QueueRules,
    SimPlan,
    SubscriptionSpec,
)
from tests.simulation.action import Action

__all__ = ["ACTIONS", "FAULTY", "TRANSACTIONS", "plan_of", "spare_of"]

Args = tuple[Any, ...]

KINDS: Final = ("exclusive", "shared", "failover", "key_shared")

FAULTY: Final = (
    "LookupTopic",
    "PartitionedTopicMetadata",
    "Producer",
    "Subscribe",
    "Send",
    "Send",
    "Ack",
    "Ack",
    "Flow",
    "RedeliverUnacknowledgedMessages",
    "Seek",
    "CloseConsumer",
    "CloseProducer",
)
"""Commands that faults are for."""

OF_TRANSACTIONS: Final = ("NewTxn", "AddPartitionToTxn", "AddSubscriptionToTxn", "EndTxn", "EndTxn")

TRANSACTIONS: Final = 1_000_000
"""The first seed of plans with transactions."""


def plan_of(seed: int) -> SimPlan:
    """Return the plan of a seed; it is the same on every machine."""
    return _Planner(seed).plan()


def spare_of(plan: SimPlan, subscription: str) -> ConsumerSpec:
    """Return the consumer that joins at the end if a subscription has no other."""
    rng = random.Random(f"{plan.seed} spare of {subscription}")
    spec = _consumer(rng, f"spare-{subscription}", plan.setting.subscriptions[subscription])
    return replace(spec, nacks=0.0, index_acks=True)


class _Planner:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"pulsar {seed}")
        self.has_transactions = seed >= TRANSACTIONS
        self.setting = _setting(rng)
        if self.has_transactions:
            self.setting = _with_transactions(rng, self.setting)
        self.is_orderly = rng.random() < 0.15
        self.seconds = rng.choice([10.0, 20.0, 40.0])
        self.consumers: dict[str, ConsumerSpec] = {}
        self.producers: dict[str, ProducerSpec] = {}
        self.alive: list[str] = []
        self.sizes = dict(self.setting.topics)
        self.actions: list[Action] = []

    def plan(self) -> SimPlan:
        rng = self.rng
        for topic in sorted(self.setting.topics.keys() - {RESULTS}):
            for number in range(rng.choice([1, 1, 2])):
                name = f"p{len(self.producers) + 1}"
                self.producers[name] = _producer(rng, name, topic, self.setting, number)
        for subscription in self.setting.subscriptions:
            for _ in range(rng.choice([1, 1, 2, 3])):
                self._join(round(rng.uniform(0.0, 2.0), 3), subscription)
        at = 0.0
        while (at := at + rng.expovariate(1.2)) < self.seconds:
            self._act(round(at, 3))
        return SimPlan(
            seed=self.seed,
            setting=self.setting,
            consumers=self.consumers,
            producers=self.producers,
            actions=tuple(sorted(self.actions, key=lambda action: action.at)),
            faults_end_at=self.seconds,
        )

    def _act(self, at: float) -> None:
        rng = self.rng
        if rng.random() < 0.35:
            self._add(at, "produce", rng.choice(sorted(self.producers)), rng.choice([1, 3, 10, 30]))
            return
        kind = rng.choice(KINDS_OF_ORDERLY if self.is_orderly else KINDS_OF_ACTIONS)
        if kind == "join":
            self._join(at, rng.choice(sorted(self.setting.subscriptions)))
        elif (args := ACTIONS[kind](self)) is not None:
            self._add(at, kind, *args)

    def _add(self, at: float, kind: str, *args: Any) -> None:
        self.actions.append(Action(at, kind, args))

    def _join(self, at: float, subscription: str) -> None:
        spec = self.setting.subscriptions[subscription]
        others = sum(self.consumers[name].subscription == subscription for name in self.alive)
        if others >= (1 if spec.kind == "exclusive" else 4):
            return
        name = f"c{len(self.consumers) + 1}"
        self.consumers[name] = _consumer(self.rng, name, spec)
        self.alive.append(name)
        self._add(at, "join", name)

    # --- arguments of actions; None if there is no object -----------------------------------------------------------------

    def a_consumer(self) -> Args | None:
        return (self.rng.choice(self.alive),) if self.alive else None

    def a_leaving_consumer(self) -> Args | None:
        return (self.alive.pop(self.rng.randrange(len(self.alive))),) if self.alive else None

    def consumer_for_a_time(self) -> Args | None:
        who = self.a_consumer()
        return who and (*who, self.rng.choice([0.3, 1.5, 4.0, 9.0]))

    def a_seeker(self) -> Args | None:
        """The consumer of an Exclusive subscription: others would acknowledge what the seek has moved."""
        able = [
            name
            for name in self.alive
            if (spec := self.setting.subscriptions[self.consumers[name].subscription]).kind == "exclusive"
            and spec.queue is None
            and not spec.transforms
        ]
        if not able:
            return None
        return (self.rng.choice(able), self.rng.choice(["earliest", "message", "message", "time", "latest"]))

    def a_client(self) -> Args:
        return (self.rng.choice([*self.alive, *sorted(self.producers)]),)

    def client_for_a_time(self) -> Args:
        return (*self.a_client(), self.rng.choice([0.3, 1.5, 4.0, 9.0]))

    def client_with_latency(self) -> Args:
        return (*self.a_client(), self.rng.choice([0.1, 0.5, 2.0]), self.rng.uniform(1, 6))

    def a_producer(self) -> Args:
        return (self.rng.choice(sorted(self.producers)),)

    def a_broker(self) -> Args:
        return (self.rng.randint(1, self.setting.brokers),)

    def broker_for_a_time(self) -> Args:
        return (*self.a_broker(), self.rng.choice([0.2, 1.0, 3.0, 6.0]))

    def broker_with_latency(self) -> Args:
        return (*self.a_broker(), self.rng.choice([0.1, 0.5, 2.0]), self.rng.uniform(1, 6))

    def a_topic(self) -> Args:
        return (self.rng.choice(sorted(self.sizes)),)

    def a_moved_topic(self) -> Args:
        return (*self.a_topic(), self.rng.choice([None, self.rng.randint(1, self.setting.brokers)]))

    def a_subscription(self) -> Args:
        return (self.rng.choice(sorted(self.setting.subscriptions)),)

    def more_partitions(self) -> Args | None:
        (topic,) = self.a_topic()
        if not 0 < self.sizes[topic] < 6:
            return None
        self.sizes[topic] += 1
        return (topic, self.sizes[topic])

    def a_jump(self) -> Args:
        return (self.rng.choice([-60.0, -5.0, -0.3, 0.3, 5.0, 3600.0]),)

    def a_fault(self) -> Args:
        what = self.rng.choice(["drop", "before", "after", "mid-frame", "delay", "error"])
        apis = (*FAULTY, *OF_TRANSACTIONS) if self.has_transactions else FAULTY
        return (self.rng.choice(apis), what, self.rng.randint(1, 3))


ACTIONS: Final[dict[str, Callable[[_Planner], Args | None]]] = {
    "join": lambda _: None,
    "produce": lambda _: None,
    # programs
    "leave": _Planner.a_leaving_consumer,
    "crash": _Planner.a_leaving_consumer,
    "lose_host": _Planner.a_leaving_consumer,
    "restart": _Planner.a_consumer,
    "block_handler": _Planner.consumer_for_a_time,
    "pause": _Planner.consumer_for_a_time,
    "redeliver_all": _Planner.a_consumer,
    "seek": _Planner.a_seeker,
    "restart_producer": _Planner.a_producer,
    # network
    "block_client": _Planner.client_for_a_time,
    "reset_client": _Planner.a_client,
    "close_client": _Planner.a_client,
    "half_open_client": _Planner.a_client,
    "slow_client": _Planner.client_with_latency,
    "freeze_broker": _Planner.broker_for_a_time,
    "refuse_broker": _Planner.broker_for_a_time,
    "reset_broker": _Planner.a_broker,
    "slow_broker": _Planner.broker_with_latency,
    # brokers
    "stop_broker": _Planner.broker_for_a_time,
    "unload": _Planner.a_moved_topic,
    "close_consumers": _Planner.a_subscription,
    "add_partitions": _Planner.more_partitions,
    "jump": _Planner.a_jump,
    "fault": _Planner.a_fault,
}
"""Every kind of action, and the method that draws its arguments. Their effects are in `actions`."""

KINDS_OF_ACTIONS: Final = [
    *(kind for kind in ACTIONS if kind != "produce"),
    *["fault"] * 3,
    *["seek"] * 4,
    "unload",
]
KINDS_OF_ORDERLY: Final = [kind for kind in ACTIONS if kind in ORDERLY - {"produce"}]


def _setting(rng: random.Random) -> PulsarSetting:
    topics = {"orders": rng.choice([0, 0, 1, 2, 4])}
    if rng.random() < 0.3:
        topics["others"] = rng.choice([0, 1, 3])
    names = [f"s{number}" for number in range(1, rng.choice([1, 1, 2, 3]) + 1)]
    subscriptions = {name: _subscription(rng, name, topics) for name in names}
    with_keys = {spec.topic for spec in subscriptions.values() if spec.kind == "key_shared"}
    chunked = frozenset(topic for topic in topics if rng.random() < 0.4 and topic not in with_keys)
    return PulsarSetting(
        brokers=rng.choice([1, 2, 3]),
        topics=topics,
        subscriptions=subscriptions,
        deduplicates=rng.random() < 0.5,
        chunked=chunked,
        delayed=rng.choice([0.0, 0.0, 0.1]),
        max_unacked=rng.choice([50_000, 50_000, 20]),
        failover_delay=rng.choice([1.0, 0.0]),
        latency_profile=rng.choice(["still", "near", "near", "far", "gusty"]),
        segment_size=rng.choice([1 << 18, 1 << 18, 1 << 18, 700, 97]),
    )


def _with_transactions(rng: random.Random, setting: PulsarSetting) -> PulsarSetting:
    kind = rng.choice(["shared", "shared", "failover", "exclusive"])
    topic = rng.choice(sorted(setting.topics))
    spec = SubscriptionSpec(name="transforms", topic=topic, kind=kind, queue=None, transforms=True)
    reader = SubscriptionSpec(name="reads", topic=RESULTS, kind=rng.choice(KINDS[:3]), queue=None)
    return replace(
        setting,
        topics={**setting.topics, RESULTS: rng.choice([0, 2])},
        subscriptions={**setting.subscriptions, spec.name: spec, reader.name: reader},
    )


def _subscription(rng: random.Random, name: str, topics: dict[str, int]) -> SubscriptionSpec:
    rules = None
    if rng.random() < 0.3:
        rules = QueueRules(
            max_redeliveries=rng.choice([1, 2, 4]),
            has_retry=rng.random() < 0.3,
            poison=rng.choice([0.0, 0.05, 0.2]),
            failing=rng.choice([0.0, 0.2]),
        )
    return SubscriptionSpec(name=name, topic=rng.choice(sorted(topics)), kind=rng.choice(KINDS), queue=rules)


def _consumer(rng: random.Random, name: str, subscription: SubscriptionSpec) -> ConsumerSpec:
    in_order, is_queue = subscription.in_order, subscription.queue is not None
    return ConsumerSpec(
        name=name,
        subscription=subscription.name,
        style=rng.choice(["receive", "batch", "iterate"]),
        acks=rng.choice(["each", "each", "late", *["cumulative"] * in_order]),
        by_id=rng.random() < 0.2,
        queue_size=rng.choice([1, 3, 10, 1000, 1000] if is_queue else [0, 1, 3, 10, 1000, 1000]),
        queue_bytes=rng.choice([None, None, 3000]),
        ack_group_time=rng.choice([0.0, 0.1, 0.1, 1.0]),
        index_acks=rng.random() < 0.85,
        nacks=rng.choice([0.0, 0.05, 0.3]),
        nack_delay=rng.choice([0.2, 1.0, 5.0]),
        flush_every=rng.choice([1, 5, 1000]),
        work_seconds=rng.choice([0.0, 0.0, 0.02, 0.2]),
        priority=rng.choice([0, 0, 1]),
    )


def _producer(rng: random.Random, name: str, topic: str, setting: PulsarSetting, number: int) -> ProducerSpec:
    has_keys = any(
        spec.topic == topic and spec.kind == "key_shared" for spec in setting.subscriptions.values()
    )
    batching = rng.random() < 0.7
    # a batch has one key for Key_Shared subscriptions, which have no order otherwise
    by_key = batching and has_keys
    return ProducerSpec(
        name=name,
        topic=topic,
        batching=batching,
        by_key=by_key,
        max_messages=rng.choice([1000, 5, 2]),
        max_delay=rng.choice([0.001, 0.05, 0.5]),
        compression=rng.choice(["none", "none", "lz4", "zlib"]),
        keys=rng.choice([3, 20]) if has_keys else rng.choice([0, 3, 20]),
        large=0.15 if topic in setting.chunked and number == 0 else 0.0,
        send_timeout=0.0 if setting.deduplicates else rng.choice([0.0, 4.0, 30.0]),
    )

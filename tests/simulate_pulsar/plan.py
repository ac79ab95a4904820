"""The plan of a run: brokers, topics, subscriptions, programs, and all actions. Plain values; `planner` draws them from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation.action import Action, without_actions

__all__ = [
    "ORDERLY",
    "RESULTS",
    "ConsumerSpec",
    "ProducerSpec",
    "PulsarSetting",
    "QueueRules",
    "SimPlan",
    "SubscriptionSpec",
]


RESULTS: Final = "results"
"""The topic of what transactions send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """What the work queues of a subscription share.

    - `max_redeliveries`: of the dead letter policy;
    - `has_retry`: whether there is a retry topic, and handlers use it;
    - `poison`, `failing`: shares of the messages that always fail, and that fail at their first delivery.
    """

    max_redeliveries: int
    has_retry: bool
    poison: float
    failing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSpec:
    """A subscription. `kind` is its type; `queue` is set if its consumers are work queues."""

    name: str
    topic: str
    kind: str
    queue: QueueRules | None
    transforms: bool = False
    """Whether its consumers acknowledge in transactions, in which they also send."""

    @property
    def in_order(self) -> bool:
        """Whether one consumer gets all messages of a partition."""
        return self.kind in ("exclusive", "failover")


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarSetting:
    """The brokers and the network of a run.

    - `topics`: the number of partitions, 0 for none;
    - `chunked`: topics with values in chunks, which a Key_Shared subscription cannot have while its consumers change;
    - `delayed`: the share of messages with a delivery time;
    - `latency_profile`, `segment_size`: see the simulation of Kafka.
    """

    brokers: int
    topics: dict[str, int]
    subscriptions: dict[str, SubscriptionSpec]
    deduplicates: bool
    chunked: frozenset[str]
    delayed: float
    max_unacked: int
    failover_delay: float
    latency_profile: str
    segment_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """A program with a consumer or a work queue.

    - `style`: how it reads: `receive`, `batch` or `iterate`;
    - `acks`: `each` message, several `late` in another order, or `cumulative`; `by_id`: with the id instead of the message;
    - `nacks`: the share of messages that are negatively acknowledged;
    - `flush_every`: messages between two calls of `flush`;
    - `work_seconds`: time that some of the messages take.
    """

    name: str
    subscription: str
    style: str
    acks: str
    by_id: bool
    queue_size: int
    queue_bytes: int | None
    ack_group_time: float
    index_acks: bool
    nacks: float
    nack_delay: float
    flush_every: int
    work_seconds: float
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSpec:
    """A program with a producer. `keys`: the number of keys, 0 for none; `large`: the share of values in chunks."""

    name: str
    topic: str
    batching: bool
    by_key: bool
    max_messages: int
    max_delay: float
    compression: str
    keys: int
    large: float
    send_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimPlan:
    """A whole run; all faults end at `faults_end_at` seconds."""

    seed: int
    setting: PulsarSetting
    consumers: dict[str, ConsumerSpec]
    producers: dict[str, ProducerSpec]
    actions: tuple[Action, ...]
    faults_end_at: float

    @property
    def is_orderly(self) -> bool:
        """Whether nothing happens that may cost an acknowledgement: then no message that was acknowledged comes again."""
        return self.setting.latency_profile != "gusty" and all(
            action.kind in ORDERLY for action in self.actions
        )

    def is_exact(self, subscription: str) -> bool:
        """Whether no message of a subscription comes again that was acknowledged.

        A message of a batch that is negatively acknowledged brings the others again.
        """
        specs = [spec for spec in self.consumers.values() if spec.subscription == subscription]
        return self.is_orderly and all(spec.index_acks and not spec.nacks for spec in specs)

    def without(self, actions: Sequence[Action]) -> SimPlan:
        """Return the plan without some actions."""
        return replace(self, actions=without_actions(self.actions, actions))


ORDERLY: Final = frozenset(
    {"join", "leave", "restart", "produce", "restart_producer", "block_handler", "pause", "add_partitions"}
)
"""Actions under which each acknowledgement reaches the broker before another consumer gets the message."""

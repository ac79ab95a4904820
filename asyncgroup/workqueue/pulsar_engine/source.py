"""PulsarSource: a subscription of Apache Pulsar as the source of a work queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Final

from asyncgroup.checks import DURATION_OR_ZERO, FLAG, TEXT
from asyncgroup.errors import ConfigError
from asyncgroup.hooks import check_hooks
from asyncgroup.off_loop import load_module
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.pulsar.consumer.topics_pattern import TopicsPattern
from asyncgroup.pulsar.service_url import ServiceUrl
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.workqueue.engine import Engine, EngineFeatures
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.policies import QueueArguments
from asyncgroup.workqueue.settings import QueueSettings
from asyncgroup.workqueue.topic_names import (
    DEAD_LETTER_ARGUMENT,
    DEAD_LETTER_NAMES,
    RETRY_ARGUMENT,
    RETRY_NAMES,
    NameFunction,
    TopicNames,
    check_copy_topics,
)

if TYPE_CHECKING:
    from asyncgroup.config import ConsumerConfig

__all__ = ["FEATURES", "PulsarPlan", "PulsarSource"]

FEATURES: Final = EngineFeatures(
    modes=tuple(Mode),
    redelivers="queue",
    keeps_key_order="queue",
    counts_deliveries=False,
    copies=True,
    delays=True,
    transactions=True,
    cumulative=True,
    durable=True,
    seek=True,
    offsets=False,
)

_ENGINE: Final = "asyncgroup.workqueue.pulsar_engine.engine"  # by name: it imports this file

_TOPICS: Final = "a topic's name, a sequence of names, not empty, or a compiled pattern"


@dataclass(frozen=True, slots=True)
class PulsarSource(QueueArguments):
    """A subscription of Apache Pulsar 4, `WorkQueue(PulsarSource("pulsar://localhost:6650", "billing", "orders"))`.

    `WorkQueue("pulsar://localhost:6650", "billing", "orders")` is the same; what only Pulsar has is given here. The mode of the queue
    is the type of the subscription: the broker divides messages among the consumers of all processes. A message that
    failed waits in the queue, unacknowledged; then in Mode.SHARED the broker gives it to any consumer, and in the other modes it is
    delivered again here, so the order of its key survives a nack. In Mode.SHARED one of a batch also stays while others of it are not
    acknowledged, and one that has more deliveries than the broker would count. The
    numbers of deliveries are those of this process, or of the broker, which counts requests for redelivery, if these are more.

    Raises ConfigError for invalid arguments.
    """

    service_url: str | PulsarClient
    """`pulsar://host:6650` or `pulsar+ssl://host:6651`, also with several hosts; or a client, which several queues share."""
    subscription: str
    """The name of the subscription."""
    topics: str | Sequence[str] | re.Pattern[str]
    """One topic, or several, or a compiled pattern of the names of topics in a namespace, `re.compile("public/default/orders-.*")`; of
    a topic with partitions all are read. Topics and partitions that are added later are read as well."""
    config: PulsarConfig | None = field(default=None, kw_only=True)
    """That of the connections; None with an existing client."""
    hooks: Iterable[object] = field(default=(), kw_only=True)
    """See Hook."""
    consumer_name: str | None = field(default=None, kw_only=True)
    """Shown in the topic's statistics; None lets the broker choose one. In Mode.FAILOVER it is the queue's `name`."""
    priority_level: int = field(default=0, kw_only=True)
    """In Mode.SHARED, consumers with a higher number get messages when those before have no room. In Mode.FAILOVER it is the
    queue's `priority`."""
    key_ranges: Sequence[tuple[int, int]] | None = field(default=None, kw_only=True)
    """In Mode.KEY_SHARED the hashes of keys (0 to 65535) that this consumer gets; None lets the broker divide them."""
    durable: bool = field(default=True, kw_only=True)
    """Whether the broker keeps the subscription when its last consumer has left."""
    index_acks: bool = field(default=True, kw_only=True)
    """Whether messages of a batch are acknowledged one by one, which the broker has to allow
    (`acknowledgmentAtBatchIndexLevelEnabled`). Otherwise a batch comes again as a whole if one of its messages does."""
    dead_letter_subscription: str | None = field(default=None, kw_only=True)
    """A subscription that is created with the dead letter topic (Java's `initialSubscriptionName`). Without any subscription a
    broker keeps a message only for the retention of its namespace, which is 0 by default: then dead letters are lost."""
    pattern_auto_discovery_period: float = field(default=60.0, kw_only=True)
    """Seconds between lists of the topics of a pattern, if no broker watches them; 0 for never."""
    transactional_copies: bool = field(default=False, kw_only=True)
    """Whether a copy to the retry or dead letter topic and the acknowledgement of its original are one transaction.

    Then each copy is there exactly once, also after a crash or a lost connection. The broker has to allow transactions (`transactionCoordinatorEnabled`), and all topics are persistent.
    """
    close_timeout: float = field(default=10.0, kw_only=True)
    """Seconds that a closing queue waits for the end of its deliveries before it cancels their handlers."""

    def __post_init__(self) -> None:
        if not isinstance(self.service_url, PulsarClient):
            ServiceUrl.parse(self.service_url)
        elif self.config is not None:
            raise ConfigError("config", self.config, "None with a PulsarClient, which has its own")
        if self.config is not None and not isinstance(self.config, PulsarConfig):
            raise ConfigError("config", type(self.config).__name__, "None or a PulsarConfig")
        if not TEXT[0](self.subscription) or not self.subscription:
            raise ConfigError("subscription", self.subscription, "a string, not empty")
        if isinstance(self.topics, re.Pattern):
            TopicsPattern(self.topics)
        else:
            object.__setattr__(self, "topics", _check_topics(self.topics))
        object.__setattr__(self, "hooks", check_hooks(self.hooks))
        for key in ("durable", "index_acks", "transactional_copies"):
            if not FLAG[0](getattr(self, key)):
                raise ConfigError(key, getattr(self, key), FLAG[1])
        created = self.dead_letter_subscription
        if created is not None and (not TEXT[0](created) or not created):
            raise ConfigError("dead_letter_subscription", created, "None or a string, not empty")
        for key in ("pattern_auto_discovery_period", "close_timeout"):
            if not DURATION_OR_ZERO[0](getattr(self, key)):
                raise ConfigError(key, getattr(self, key), DURATION_OR_ZERO[1])

    @property
    def features(self) -> EngineFeatures:
        """What its engine can do."""
        return FEATURES

    def plan(self, settings: QueueSettings) -> PulsarPlan:
        """Check the source for a queue with these settings. Raises ConfigError."""
        pattern = TopicsPattern(self.topics) if isinstance(self.topics, re.Pattern) else None
        names = () if isinstance(self.topics, re.Pattern) else self.topics
        topics = [str(TopicName.parse(topic)) for topic in names]
        first = min(topics, default=None)
        retry, policy = settings.retry, settings.dead_letter_policy
        retry_topic = dead_letter_topic = None
        if retry is not None:
            retry_topic = retry.topic or _name(
                RETRY_NAMES, retry.names, first, self.subscription, RETRY_ARGUMENT
            )
            retry_topic = str(TopicName.parse(retry_topic))
        if policy is not None:
            dead_letter_topic = policy.topic or _name(
                DEAD_LETTER_NAMES, policy.names, first, self.subscription, DEAD_LETTER_ARGUMENT
            )
            dead_letter_topic = str(TopicName.parse(dead_letter_topic))
        check_copy_topics(topics, retry_topic, dead_letter_topic)
        if (
            dead_letter_topic is not None
            and pattern is not None
            and pattern.matches(TopicName.parse(dead_letter_topic))
        ):
            allowed = (
                f"a dead letter topic that {pattern} does not match; choose one by {DEAD_LETTER_ARGUMENT}"
            )
            raise ConfigError("topic", dead_letter_topic, allowed)
        if self.transactional_copies:
            self._check_transactions([*topics, *filter(None, (retry_topic, dead_letter_topic))], settings)
        if self.key_ranges is not None and settings.mode is not Mode.KEY_SHARED:
            raise ConfigError(
                "key_ranges", self.key_ranges, f"None in {settings.mode}: only Mode.KEY_SHARED has them"
            )
        return PulsarPlan(self, topics, pattern, retry_topic, dead_letter_topic)

    def _check_transactions(self, topics: list[str], settings: QueueSettings) -> None:
        key = "transactional_copies"
        if settings.dead_letter_policy is None and settings.retry is None:
            raise ConfigError(key, True, "False without retry and dead_letter: there are no copies")
        if not self.durable:
            raise ConfigError(key, True, "False with durable=False: such a subscription has no transactions")
        for topic in topics:
            if not TopicName.parse(topic).is_persistent:
                raise ConfigError(key, True, f"False for {topic}, which is not persistent")


@dataclass(frozen=True, slots=True)
class PulsarPlan:
    """A PulsarSource that was checked for a queue."""

    source: PulsarSource
    topics: list[str]
    """The complete names; none with a pattern."""
    pattern: TopicsPattern | None
    """The pattern of topics; None for named ones."""
    retry_topic: str | None
    dead_letter_topic: str | None

    @property
    def config(self) -> ConsumerConfig | None:
        """None: there is no consumer group."""
        return None

    async def load_engine(self) -> type[Engine]:
        """Import the engine on a thread, and return its class."""
        await load_module(_ENGINE)
        engine: type[Engine] = import_module(_ENGINE).PulsarEngine
        return engine


def _check_topics(topics: object) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else topics
    if isinstance(names, Mapping | bytes) or not isinstance(names, Iterable):
        raise ConfigError("topics", topics, _TOPICS)
    found = tuple(names)
    if not found or not all(isinstance(name, str) for name in found):
        raise ConfigError("topics", topics, _TOPICS)
    for name in found:
        TopicName.parse(name)
    if len({str(TopicName.parse(name)) for name in found}) < len(found):
        raise ConfigError("topics", topics, "each topic once")
    return found


def _name(
    presets: Mapping[str, NameFunction],
    names: TopicNames,
    topic: str | None,
    subscription: str,
    argument: str,
) -> str:
    """Return the name of a topic of copies: a preset is of the name without tenant and namespace, which stay."""
    if topic is None:
        allowed = f"a topic or several topics: a pattern does not give the name of another topic; set it by {argument}"
        raise ConfigError("topics", "a pattern", allowed)
    if not isinstance(names, str):
        return names(topic, subscription)
    parts = TopicName.parse(topic)
    return str(parts._replace(local_name=presets[names](parts.local_name, subscription)))

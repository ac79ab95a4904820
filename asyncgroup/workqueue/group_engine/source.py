"""GroupSource: a consumer group as the source of a work queue, and what follows from it for the group and its copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncgroup.checks import COUNT, FLAG, check_group_id, parse_servers
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.group.topics.topics import Pattern, Topics, check_topics
from asyncgroup.hooks import check_hooks
from asyncgroup.off_loop import load_module
from asyncgroup.workqueue.engine import Engine, EngineFeatures
from asyncgroup.workqueue.group_engine.exclusive_group import ExclusiveAssignor
from asyncgroup.workqueue.group_engine.failover_assignor import FailoverAssignor
from asyncgroup.workqueue.group_engine.topic_names import (
    CopyTopics,
    copy_topics,
    dead_letter_topic_name,
    retry_topic_name,
)
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.policies import QueueArguments
from asyncgroup.workqueue.settings import QueueSettings

if TYPE_CHECKING:
    from asyncgroup.cluster import Cluster
    from asyncgroup.cluster.bootstrap import BootstrapServers

__all__ = ["FEATURES", "GroupPlan", "GroupSource"]

FEATURES: Final = EngineFeatures(
    modes=tuple(Mode),
    redelivers="queue",
    keeps_key_order="queue",
    counts_deliveries=True,
    copies=True,
    delays=True,
    transactions=True,
    cumulative=True,
    durable=True,
    seek=True,
    offsets=True,
)

_ENGINE: Final = "asyncgroup.workqueue.group_engine.engine"  # by name: it imports this file

TRANSACTION_TIMEOUT: Final = 10.0
"""The transaction timeout in seconds without a `producer_config`, as with ConsumeTransformProduce: after a crash, the next owners
of the partitions wait at most this long for the offsets of an open transaction."""


@dataclass(frozen=True, slots=True)
class GroupSource(QueueArguments):
    """A consumer group of Kafka, `WorkQueue(GroupSource("localhost:9092", "billing", "orders"))`.

    `WorkQueue("localhost:9092", "billing", "orders")` is the same; what only a consumer group has is given here. Raises
    ConfigError for invalid arguments.
    """

    bootstrap_servers: BootstrapServers | Cluster
    """The addresses, or a Cluster that several clients share."""
    group_id: str
    """The consumer group: the subscription."""
    topics: Topics
    """One name, names, or a pattern."""
    config: ConsumerConfig | None = field(default=None, kw_only=True)
    """That of the group. By default rebalances are cooperative, and values in chunks are assembled."""
    producer_config: ProducerConfig | None = field(default=None, kw_only=True)
    """That of the producer of copies. By default large copies are written in chunks."""
    hooks: Iterable[object] = field(default=(), kw_only=True)
    """See Hook; none with an existing Cluster."""
    transactional_copies: bool = field(default=False, kw_only=True)
    """Whether a copy and the acknowledgement of its original are committed in one transaction (KIP-98, KIP-447).

    Then readers with `read_committed` see each copy exactly once, also after crashes. Otherwise a copy may be written twice after
    a crash, a timeout or a rebalance. Acknowledgements of the partitions in a transaction are committed when it has ended. The
    transactional id is that of `producer_config`, which must differ between the members (after ProducerFencedError the queue ends),
    or else `<group>-<group_instance_id>`, or `<group>-` and a random number. The transaction timeout is 10 s without a
    `producer_config`. The default isolation level of the group is `read_committed`; with a retry topic, a `config` must have it.
    """
    migrate_from: Literal["parallel-consumer"] | None = field(default=None, kw_only=True)
    """With `"parallel-consumer"`, the completed offsets that Confluent's parallel-consumer committed are not delivered again."""
    max_waiting: int = field(default=10_000, kw_only=True)
    """Records of a partition that wait for the end of a delay; at this limit it gets no more until some are acknowledged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bootstrap_servers", _check_servers(self.bootstrap_servers))
        check_group_id(self.group_id)
        object.__setattr__(self, "hooks", check_hooks(self.hooks))
        if not FLAG[0](self.transactional_copies):
            raise ConfigError("transactional_copies", self.transactional_copies, FLAG[1])
        if self.migrate_from not in (None, "parallel-consumer"):
            raise ConfigError("migrate_from", self.migrate_from, "None or 'parallel-consumer'")
        if not COUNT[0](self.max_waiting) or not self.max_waiting:
            raise ConfigError("max_waiting", self.max_waiting, "a whole number, 1 or more")

    @property
    def features(self) -> EngineFeatures:
        """Everything."""
        return FEATURES

    @property
    def subscription(self) -> str:
        """The group."""
        return self.group_id

    def plan(self, settings: QueueSettings) -> GroupPlan:
        """Check the group for a queue with these settings. Raises ConfigError."""
        if self.transactional_copies and settings.dead_letter_policy is None:
            raise ConfigError(
                "transactional_copies", True, "False without retry and dead_letter: there are no copies"
            )
        config = consumer_config(self, settings)
        topics = check_topics(self.topics, config.group_protocol)
        names = _copy_topics(settings, topics, self.group_id)
        return GroupPlan(self, config, _producer_config(self), topics, names)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group that was checked for a queue."""

    source: GroupSource
    config: ConsumerConfig
    """That of the group, with the assignor of the mode."""
    producer_config: ProducerConfig
    topics: list[str] | Pattern
    copy_topics: CopyTopics

    @property
    def retry_topic(self) -> str | None:
        """The topic of `Delivery.reconsume_later`; None without one."""
        return self.copy_topics.retry

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters; None without one."""
        return self.copy_topics.dead_letter

    async def load_engine(self) -> type[Engine]:
        """Import the engine on a thread, and return its class."""
        await load_module(_ENGINE)
        engine: type[Engine] = import_module(_ENGINE).ConsumerGroupEngine
        return engine


# --- what follows for the group ---------------------------------------------------------------------------------------------

_NEEDS_CLASSIC: Final[Mapping[Mode, str]] = {
    Mode.EXCLUSIVE: "its assignor, which gives all partitions to one member, runs in a member",
    Mode.FAILOVER: "its assignor, which knows priorities and names, runs in a member",
}
"""Why a mode needs the classic protocol; the others have any."""


def consumer_config(source: GroupSource, settings: QueueSettings) -> ConsumerConfig:
    """Return the configuration of the queue's group.

    Without one of the user, values in chunks are put together, and with `transactional_copies` aborted copies are not read.
    Without a setting for it, rebalances are cooperative (KIP-429), and an offset outside the log is reset to the earliest
    record. Raises ConfigError for what does not go together.
    """
    config: Any = source.config
    if config is None:
        config = ConsumerConfig(
            chunks="assemble",
            isolation_level="read_committed" if source.transactional_copies else "read_uncommitted",
        )
    elif not isinstance(config, ConsumerConfig):
        raise ConfigError("config", config, "None or ConsumerConfig(…)")
    if (
        source.transactional_copies
        and settings.retry is not None
        and config.isolation_level != "read_committed"
    ):
        allowed = "'read_committed' with transactional_copies and a retry topic, else aborted copies are also delivered"
        raise ConfigError("isolation_level", config.isolation_level, allowed)
    if not config.auto_commit:
        allowed = "True: a work queue commits acknowledgements by itself; see ack_group_time"
        raise ConfigError("auto_commit", config.auto_commit, allowed)
    # a group with commits begins at those
    if settings.initial_position is not None:
        config = replace(config, auto_offset_reset=settings.initial_position)
    if config.out_of_range_reset is None:
        # an unacknowledged record can hold back the commit until retention deletes what follows: what is left is delivered
        config = replace(config, out_of_range_reset="earliest")
    return _with_assignor(config, settings)


def _with_assignor(config: ConsumerConfig, settings: QueueSettings) -> ConsumerConfig:
    mode = settings.mode
    reason = _NEEDS_CLASSIC.get(mode)
    if reason is None:
        # the consumer protocol is cooperative by itself
        if config.assignors is None and config.group_protocol != "consumer":
            return replace(config, assignors=("cooperative-sticky",))
        return config
    if config.group_protocol == "consumer":
        raise ConfigError("group_protocol", config.group_protocol, f"'classic' in {mode}: {reason}")
    if config.assignors is not None and config.assignors != ("cooperative-sticky",):
        raise ConfigError("assignors", config.assignors, f"None in {mode}: {reason}")
    assignor: ExclusiveAssignor | FailoverAssignor
    if mode is Mode.EXCLUSIVE:
        assignor = ExclusiveAssignor(settings.clock())  # when this consumer began to wait
    else:
        assignor = FailoverAssignor(settings.priority, settings.name)
    return replace(config, group_protocol="classic", assignors=(assignor,))


def _producer_config(source: GroupSource) -> ProducerConfig:
    """Return that of the producer of copies: idempotent, and transactional only with `transactional_copies`."""
    if source.producer_config is None:
        return ProducerConfig(chunking=True, transaction_timeout=TRANSACTION_TIMEOUT)
    config = ProducerConfig.of(source.producer_config)
    if config.transactional_id is not None and not source.transactional_copies:
        allowed = "None for the copies of a work queue without transactional_copies"
        raise ConfigError("transactional_id", config.transactional_id, allowed)
    if not config.effective_enable_idempotence:
        key = "acks" if config.acks != "all" else "enable_idempotence"
        raise ConfigError(
            key, getattr(config, key), "acks='all' and an idempotent producer for a queue's copies"
        )
    return config


def _copy_topics(settings: QueueSettings, topics: list[str] | Pattern, group_id: str) -> CopyTopics:
    retry, policy = settings.retry, settings.dead_letter_policy
    retry_topic = dead_letter_topic = None
    if retry is not None:
        retry_topic = retry.topic or retry_topic_name(retry.names, topics, group_id)
    if policy is not None:
        dead_letter_topic = policy.topic or dead_letter_topic_name(policy.names, topics, group_id)
    return copy_topics(topics, retry_topic, dead_letter_topic)


def _check_servers(servers: Any) -> Any:
    if isinstance(servers, Iterable):
        if not isinstance(servers, str | Mapping):
            # an iterator could be read only once
            servers = tuple(servers)
        parse_servers(servers)
    return servers

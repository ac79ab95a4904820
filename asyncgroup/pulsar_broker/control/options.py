"""The options of an embedded Pulsar, as one value, and the topics that it has from the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict

from asyncgroup.broker.arguments import SeedRecord, check_kind, check_names, key_and_value
from asyncgroup.broker.traffic.recorder import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_LIMIT
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.credentials import CREDENTIAL_INTERVAL
from asyncgroup.pulsar_broker.foreign_names import FOREIGN_OPTIONS
from asyncgroup.pulsar_broker.topics.policies import RetentionPolicies
from asyncgroup.secret import HIDDEN

__all__ = ["PulsarKeywords", "PulsarOptions", "PulsarTopicSeed", "pulsar_options_of", "pulsar_topic_seeds"]

FAILOVER_DELAY: Final = 1.0
"""Seconds until the next consumer of a Failover subscription gets messages (`activeConsumerFailoverDelayTimeMillis`)."""

MAX_MESSAGE_SIZE: Final = 5 << 20
"""Bytes of metadata and payload of a message (`maxMessageSize`)."""

POLICY_INTERVAL: Final = 60.0
"""Seconds between two looks at message TTL and backlog quotas (`backlogQuotaCheckIntervalInSeconds`)."""

_TOPIC_OPTIONS: Final = ("messages", "partitions", "subscriptions")
_NOT_AN_ADDRESS: Final = ("0.0.0.0", "::")


class PulsarKeywords(TypedDict, total=False):
    """The options of `PulsarOptions` except `brokers`, as keyword arguments."""

    host: str
    hosts: Sequence[str] | None
    port: int
    advertised_host: str | None
    admin: bool
    admin_port: int
    namespaces: Sequence[str]
    topics: object
    auto_create_topics: bool
    default_partitions: int
    deduplication: bool
    failover_delay: float
    max_message_size: int
    policy_interval: float
    retention_time: float | None
    retention_size: int | None
    tokens: Mapping[str, str] | None
    users: Mapping[str, str] | None
    credential_interval: float
    transaction_coordinators: int
    history_limit: int
    history_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarOptions:
    """The options of `EmbeddedPulsar`, which describes them. Raise ConfigError for wrong ones."""

    brokers: int = 1
    host: str = "127.0.0.1"
    hosts: Sequence[str] | None = None
    port: int = 0
    advertised_host: str | None = None
    admin: bool = False
    admin_port: int = 0
    namespaces: Sequence[str] = ()
    topics: object = None
    auto_create_topics: bool = True
    default_partitions: int = 0
    deduplication: bool = False
    failover_delay: float = FAILOVER_DELAY
    max_message_size: int = MAX_MESSAGE_SIZE
    policy_interval: float = POLICY_INTERVAL
    retention_time: float | None = None
    retention_size: int | None = None
    tokens: Mapping[str, str] | None = field(default=None, repr=False)
    users: Mapping[str, str] | None = field(default=None, repr=False)
    credential_interval: float = CREDENTIAL_INTERVAL
    transaction_coordinators: int = 1
    history_limit: int = DEFAULT_HISTORY_LIMIT
    history_bytes: int = DEFAULT_HISTORY_BYTES

    def __post_init__(self) -> None:
        for each in fields(self):
            check_kind(each.name, getattr(self, each.name), each.default)
        if self.brokers < 1:
            raise ConfigError("brokers", self.brokers, "1 or more")
        if self.default_partitions < 0:
            raise ConfigError("default_partitions", self.default_partitions, "0 (no partitions) or more")
        if self.transaction_coordinators < 0:
            allowed = "0 (no transactions) or more"
            raise ConfigError("transaction_coordinators", self.transaction_coordinators, allowed)
        if not 0 <= self.failover_delay < math.inf:
            raise ConfigError("failover_delay", self.failover_delay, "seconds, 0 or more")
        if self.max_message_size < 1:
            raise ConfigError("max_message_size", self.max_message_size, "1 byte or more")
        for key in ("policy_interval", "credential_interval"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(key, getattr(self, key), "seconds, more than 0")
        self._check_retention()
        _check_secrets("tokens", self.tokens, "roles by token, such as {'secret': 'ann'}")
        _check_secrets("users", self.users, "passwords by user, such as {'ann': 'secret'}")
        self._check_addresses()
        if isinstance(self.namespaces, str) or not all(
            isinstance(name, str) and name.count("/") == 1 for name in self.namespaces
        ):
            raise ConfigError("namespaces", self.namespaces, 'a list of names, such as ["public/orders"]')
        pulsar_topic_seeds(self.topics)

    def _check_retention(self) -> None:
        for key, value in (("retention_time", self.retention_time), ("retention_size", self.retention_size)):
            if value is not None:
                check_kind(key, value, 0.0 if key == "retention_time" else 0)
                if not 0 <= value < math.inf:
                    raise ConfigError(key, value, "0 (nothing is kept) or more, or None (no limit)")

    def _check_addresses(self) -> None:
        hosts = self.hosts
        if hosts is not None and (isinstance(hosts, str) or not hosts):
            raise ConfigError("hosts", hosts, "a list of one address for each broker")
        if hosts is not None and self.brokers not in (1, len(hosts)):
            raise ConfigError("hosts", list(hosts), f"one for each of {self.brokers} brokers")
        for key, port in (("port", self.port), ("admin_port", self.admin_port)):
            if not 0 <= port <= 65535:
                raise ConfigError(key, port, "a port, 0 to 65535; 0 is any free one")
        if self.port and self.port + len(self.addresses) - 1 > 65535:
            raise ConfigError("port", self.port, f"at most {65536 - len(self.addresses)} for these brokers")
        if self.advertised_host is None and self.host in _NOT_AN_ADDRESS:
            raise ConfigError("host", self.host, "only with an advertised_host that clients can connect to")

    @property
    def retention(self) -> RetentionPolicies | None:
        """What topics keep after its acknowledgement; None is everything."""
        limits = RetentionPolicies(self.retention_time, self.retention_size)
        return None if limits == (None, None) else limits

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The host and port of each broker; brokers of one host have consecutive ports, from `port` on."""
        hosts = list(self.hosts) if self.hosts is not None else [self.host] * self.brokers
        return [
            (host, self.port + hosts[:number].count(host) if self.port else 0)
            for number, host in enumerate(hosts)
        ]


def _check_secrets(name: str, given: object, allowed: str) -> None:
    """Raise ConfigError for anything but text by text; the error does not show it."""
    if given is not None and not (
        isinstance(given, Mapping)
        and all(isinstance(each, str) and each for pair in given.items() for each in pair)
    ):
        raise ConfigError(name, HIDDEN, allowed)


def pulsar_options_of(brokers: int, options: Mapping[str, Any]) -> PulsarOptions:
    """Return the options for the arguments of `EmbeddedPulsar`. Raises ConfigError for unknown or wrong ones."""
    check_names(options, [each.name for each in fields(PulsarOptions)], "an EmbeddedPulsar", FOREIGN_OPTIONS)
    return PulsarOptions(brokers=brokers, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarTopicSeed:
    """A topic to create: 0 partitions is one without any; its subscriptions begin before its messages."""

    partitions: int = 0
    messages: Sequence[SeedRecord] = ()
    subscriptions: Sequence[str] = ()


def pulsar_topic_seeds(given: object) -> dict[str, PulsarTopicSeed]:
    """Parse the argument `topics` of `EmbeddedPulsar`.

    `"orders"`, `["orders", "bills"]`, `{"orders": 6}` or `{"orders": {"partitions": 6, "messages": […]}}`. Raise ConfigError
    for anything else.
    """
    if given is None:
        return {}
    if isinstance(given, str):
        return {given: PulsarTopicSeed()}
    if isinstance(given, Mapping):
        return {name: _topic_seed(given, name, what) for name, what in given.items()}
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ConfigError("topics", given, "a name, a list of names, or partitions by name")
    return {name: PulsarTopicSeed() for name in given}


def _topic_seed(given: object, topic: object, what: object) -> PulsarTopicSeed:
    if not isinstance(topic, str):
        raise ConfigError("topics", given, "partitions by name, which is a text")
    TopicName.parse(topic)
    options = dict(what) if isinstance(what, Mapping) else {"partitions": what}
    if unknown := options.keys() - set(_TOPIC_OPTIONS):
        raise ConfigError("topics", given, f"a topic has {', '.join(_TOPIC_OPTIONS)}, not {unknown}")
    partitions = options.get("partitions", 0)
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 0:
        allowed = f"a whole number, 0 (a topic without partitions) or more (topic {topic!r})"
        raise ConfigError("partitions", partitions, allowed)
    messages = options.get("messages", ())
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise ConfigError(
            "messages", messages, 'a list of values, or of (key, value), such as [b"a", ("k", "v")]'
        )
    for message in messages:
        key_and_value(message)
    names = options.get("subscriptions", ())
    subscriptions = [names] if isinstance(names, str) else names
    if not isinstance(subscriptions, Sequence) or not all(isinstance(name, str) for name in subscriptions):
        raise ConfigError("subscriptions", names, 'a list of names, such as ["billing"]')
    return PulsarTopicSeed(partitions=partitions, messages=messages, subscriptions=subscriptions)

"""The broker configs of Kafka 4.3: types, defaults, and how each can be altered (`DynamicBrokerConfig`)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from asyncgroup.broker.log.topic_config_keys import (
    TOPIC_CONFIG_KEYS,
    TOPIC_DOCUMENTATION,
    ConfigKey,
    ConfigType,
)
from asyncgroup.broker.metadata import broker_config_table

__all__ = [
    "BROKER_CONFIG_KEYS",
    "BROKER_TO_TOPIC",
    "FIXED_CONFIGS",
    "LISTENER_PREFIXED",
    "PER_BROKER_CONFIGS",
    "READ_ONLY_CONFIGS",
    "REPLICATION_QUOTAS",
    "TOPIC_TO_BROKER",
    "BrokerConfigKey",
    "base_name",
    "config_number",
    "is_cluster_wide",
    "synonym_names",
]

_LARGEST: Final = {ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}


class BrokerConfigKey(NamedTuple):
    """A broker config: the rule for its values, its default (None: unset), its documentation."""

    rule: ConfigKey
    default: str | None
    documentation: str


_UNSET: Final = {
    "log.flush.interval.ms": "flush.ms",
    "log.retention.ms": "retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
}
"""Broker configs without a default: a config in another unit applies if they are unset. By name, the topic config."""

BROKER_TO_TOPIC: Final[dict[str, str]] = {
    **{key.synonym: name for name, key in TOPIC_CONFIG_KEYS.items() if key.synonym is not None},
    **_UNSET,
}
"""The topic config that each broker config is the default of (`ServerTopicConfigSynonyms`)."""

TOPIC_TO_BROKER: Final[dict[str, str]] = {topic: broker for broker, topic in BROKER_TO_TOPIC.items()}
"""The broker config that is the default of each topic config: the inverse of BROKER_TO_TOPIC."""

REPLICATION_QUOTAS: Final = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Configs that are described only if they are set (`QuotaConfig`)."""

_WORDS: Final = {"ssl.client.auth": ("required", "requested", "none")}
"""The values allowed, as in `ConfigKey`."""

_IN_EFFECT: Final = {
    "group.consumer.assignment.interval.ms": "Shortest time (ms) between two assignments of a consumer group.",
    "log.cleaner.backoff.ms": "Time (ms) that the log cleaner waits when no log is dirty enough.",
}


def _table(text: str, documentation: str) -> dict[str, BrokerConfigKey]:
    """Return the configs of a text of `broker_config_table`."""
    found = {}
    for line in text.strip().splitlines():
        name, kind, *rest = line.split(" ")
        default = rest[0].replace('""', "") if rest else None
        lowest = int(rest[1]) if len(rest) > 1 else None
        rule = ConfigKey(default or "", ConfigType[kind], lowest, _WORDS.get(name))
        found[name] = BrokerConfigKey(rule, default, _IN_EFFECT.get(name, documentation))
    return found


def _topic_defaults() -> dict[str, BrokerConfigKey]:
    found = {}
    for name, topic_name in BROKER_TO_TOPIC.items():
        rule, documentation = TOPIC_CONFIG_KEYS[topic_name], TOPIC_DOCUMENTATION[topic_name]
        if name in _UNSET:
            documentation += " If unset, the config in another unit applies."
        found[name] = BrokerConfigKey(rule, None if name in _UNSET else rule.default, documentation)
    return found


def _quotas() -> dict[str, BrokerConfigKey]:
    text = "Bytes per second for moving replicas; stored, but without effect in this broker."
    return {
        name: BrokerConfigKey(ConfigKey("", ConfigType.LONG, 0), None, text) for name in REPLICATION_QUOTAS
    }


_STORED: Final = "Stored, but without effect in this broker."
_PER_BROKER: Final = _table(broker_config_table.PER_BROKER, _STORED)
_READ_ONLY: Final = _table(broker_config_table.READ_ONLY, "Without effect in this broker.")

PER_BROKER_CONFIGS: Final[frozenset[str]] = frozenset(_PER_BROKER)
"""Configs that can be altered only for a broker."""

READ_ONLY_CONFIGS: Final[frozenset[str]] = frozenset({*_READ_ONLY, *broker_config_table.INTERNAL})
"""Configs that cannot be altered while a broker runs."""

BROKER_CONFIG_KEYS: Final[dict[str, BrokerConfigKey]] = dict(
    sorted(
        {
            **_topic_defaults(),
            **_quotas(),
            **_table(broker_config_table.CLUSTER_WIDE, _STORED),
            **_PER_BROKER,
            **_READ_ONLY,
        }.items()
    )
)
"""All broker configs that DescribeConfigs returns, by name."""

LISTENER_PREFIXED: Final[frozenset[str]] = frozenset(
    name
    for name in PER_BROKER_CONFIGS
    if name.startswith(("ssl.keystore.", "ssl.truststore.")) or name == "ssl.key.password"
)
"""Configs that can be altered only for a listener, as `listener.name.<listener>.<config>` (`SslConfigs`)."""

FIXED_CONFIGS: Final[frozenset[str]] = frozenset(
    {
        "cordoned.log.dirs",
        "listener.security.protocol.map",
        "listeners",
        "principal.builder.class",
        "ssl.engine.factory.class",
    }
)
"""Configs that Kafka validates against its listeners, directories and classes; here they cannot be altered."""

_OF_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)

_OF_MECHANISM: Final = (
    "connections.max.reauth.ms",
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
)
"""Configs that a listener has for each SASL mechanism: `listener.name.<listener>.<mechanism>.<config>`."""

_CLUSTER_WIDE_OF_LISTENERS: Final = frozenset(
    {"max.connection.creation.rate", "max.connections", "num.network.threads"}
)

_SAME_SETTING: Final = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
"""Configs of one setting in different units, the most precise first, which applies if several are set."""


def base_name(name: str) -> str:
    """Return the config that a listener's config `listener.name.<listener>.…` overrides; other names unchanged."""
    found = _OF_LISTENER.fullmatch(name)
    if found is None:
        return name
    rest = found[1]
    return next((config for config in _OF_MECHANISM if rest.endswith(config)), rest)


def config_number(name: str, value: float) -> str:
    """Return the value of a broker config of type INT or LONG, a whole number.

    Numbers beyond the type, such as infinity, become its largest.
    """
    return str(round(min(value, _LARGEST[BROKER_CONFIG_KEYS[name].rule.type])))


def is_cluster_wide(name: str) -> bool:
    """Return whether a config may be altered for all brokers."""
    if _OF_LISTENER.fullmatch(name):
        return base_name(name) in _CLUSTER_WIDE_OF_LISTENERS
    return name not in PER_BROKER_CONFIGS


def synonym_names(name: str) -> tuple[str, ...]:
    """Return the configs whose values apply where this one is not set (`DynamicBrokerConfig.brokerConfigSynonyms`)."""
    base = base_name(name)
    if base != name:
        return name, base
    for names in _SAME_SETTING:
        # the interval of the flush scheduler is a separate setting
        if name in names and name != "log.flush.scheduler.interval.ms":
            return names
    return (name,)

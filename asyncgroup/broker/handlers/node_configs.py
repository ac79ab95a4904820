"""The configs of nodes and groups as DescribeConfigs returns them.

These are the dynamic configs, and those read-only ones that have a meaning in this broker. The arguments of
`EmbeddedCluster` appear as static configs, all others as Kafka's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.broker.log.config_values import normal_value
from asyncgroup.broker.log.topic_config_keys import ConfigSource, ConfigType
from asyncgroup.broker.log.topic_configs import ConfigEntry, ConfigSynonym
from asyncgroup.broker.metadata.broker_config_keys import (
    BROKER_CONFIG_KEYS,
    GROUP_CONFIG_KEYS,
    READ_ONLY_CONFIGS,
    REPLICATION_QUOTAS,
)
from asyncgroup.broker.metadata.coordinator_election import TRANSACTION_PARTITIONS
from asyncgroup.broker.metadata.topics import OFFSETS_PARTITIONS
from asyncgroup.broker.node import Node
from asyncgroup.broker.transactions.coordinator import MAX_TIMEOUT

__all__ = ["cluster_configs", "group_configs", "node_configs"]

_UNKNOWN: Final = 0
"""The type of a config that Kafka does not know."""

_DOCUMENTATION: Final = {
    "advertised.listeners": "Addresses that clients connect to, as Metadata returns them.",
    "auto.create.topics.enable": "Whether a topic is created when a client asks for it.",
    "broker.id": "The broker's id.",
    "broker.rack": "The broker's rack.",
    "connections.max.idle.ms": "Time (ms) without requests after which a connection is closed; -1: never.",
    "default.replication.factor": "Replication factor of topics created without one.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "group.consumer.heartbeat.interval.ms": "Time (ms) between two heartbeats of a member of a consumer group.",
    "group.consumer.max.size": "Maximum number of members of a consumer group.",
    "group.consumer.migration.policy": "Which live groups may change their protocol.",
    "group.consumer.session.timeout.ms": "Time (ms) without a heartbeat after which a member is removed.",
    "group.initial.rebalance.delay.ms": "Time (ms) that a new group waits for more members.",
    "group.max.session.timeout.ms": "Largest session timeout (ms) that a member may request.",
    "group.max.size": "Maximum number of members of a group.",
    "group.min.session.timeout.ms": "Smallest session timeout (ms) that a member may request.",
    "listeners": "Addresses that the broker listens on.",
    "node.id": "The node's id.",
    "num.partitions": "Partitions of topics created without a number of partitions.",
    "offsets.retention.minutes": "Time (minutes) that offsets of a group without members are kept.",
    "offsets.topic.num.partitions": "Partitions of __consumer_offsets.",
    "queued.max.request.bytes": "Memory (bytes) for requests that are incomplete or queued.",
    "socket.request.max.bytes": "Largest request (bytes).",
    "transaction.max.timeout.ms": "Largest transaction timeout (ms) that a producer may request.",
    "transaction.state.log.num.partitions": "Partitions of __transaction_state.",
}


def node_configs(node: Node) -> list[ConfigEntry]:
    """Return all configs of a node, ordered by name."""
    group = node.coordinator.config
    static = {
        "advertised.listeners": (
            f"{node.listener.protocol}://{node.advertised_host}:{node.port}",
            ConfigType.LIST,
        ),
        "auto.create.topics.enable": (str(node.auto_create_topics).lower(), ConfigType.BOOLEAN),
        "broker.id": (str(node.id), ConfigType.INT),
        "broker.rack": (node.rack or "", ConfigType.STRING),
        "connections.max.idle.ms": (_idle(node), ConfigType.LONG),
        "default.replication.factor": (str(node.controller.default_replication_factor), ConfigType.INT),
        "group.consumer.heartbeat.interval.ms": (
            _ms(group.group_consumer_heartbeat_interval),
            ConfigType.INT,
        ),
        "group.consumer.max.size": (str(group.group_consumer_max_size), ConfigType.INT),
        "group.consumer.migration.policy": (group.group_consumer_migration_policy, ConfigType.STRING),
        "group.consumer.session.timeout.ms": (_ms(group.group_consumer_session_timeout), ConfigType.INT),
        "group.initial.rebalance.delay.ms": (_ms(group.initial_rebalance_delay), ConfigType.INT),
        "group.max.session.timeout.ms": (_ms(group.group_max_session_timeout), ConfigType.INT),
        "group.max.size": (str(group.group_max_size), ConfigType.INT),
        "group.min.session.timeout.ms": (_ms(group.group_min_session_timeout), ConfigType.INT),
        "listeners": (f"{node.listener.protocol}://{node.host}:{node.port}", ConfigType.LIST),
        "node.id": (str(node.id), ConfigType.INT),
        "num.partitions": (str(node.controller.default_partitions), ConfigType.INT),
        "offsets.retention.minutes": (str(int(group.offsets_retention / 60)), ConfigType.INT),
        "queued.max.request.bytes": (str(node.listener.request_memory.limit), ConfigType.LONG),
    }
    default = {
        "delete.topic.enable": ("true", ConfigType.BOOLEAN),
        "offsets.topic.num.partitions": (str(OFFSETS_PARTITIONS), ConfigType.INT),
        "socket.request.max.bytes": (str(node.listener.max_request_bytes), ConfigType.INT),
        "transaction.max.timeout.ms": (_ms(MAX_TIMEOUT), ConfigType.INT),
        "transaction.state.log.num.partitions": (str(TRANSACTION_PARTITIONS), ConfigType.INT),
    }
    shown = [_fixed(name, *value, ConfigSource.STATIC_BROKER_CONFIG) for name, value in static.items()]
    shown += [_fixed(name, *value, ConfigSource.DEFAULT_CONFIG) for name, value in default.items()]
    settings = node.controller.configs
    own = settings.nodes.get(node.id, {})
    others = {*own, *settings.cluster}
    names = {*BROKER_CONFIG_KEYS, *others}.difference(static, default, set(REPLICATION_QUOTAS) - others)
    shown += [_dynamic(name, settings.synonyms(name, node.id)) for name in names]
    return sorted(shown, key=lambda value: value.name)


def cluster_configs(node: Node) -> list[ConfigEntry]:
    """Return the dynamic configs that apply to all nodes."""
    return [
        _dynamic(name, [ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)])
        for name, value in sorted(node.controller.configs.cluster.items())
    ]


def group_configs(node: Node, own: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a group with the dynamic configs `own`, ordered by name."""
    found = []
    group = node.coordinator.config
    options = {
        "consumer.assignment.interval.ms": _ms(group.group_consumer_assignment_interval),
        "consumer.heartbeat.interval.ms": _ms(group.group_consumer_heartbeat_interval),
        "consumer.session.timeout.ms": _ms(group.group_consumer_session_timeout),
    }
    for name, key in GROUP_CONFIG_KEYS.items():
        default = options.get(name, key.rule.default)
        synonyms = [ConfigSynonym(_of_all_groups(name), default, ConfigSource.DEFAULT_CONFIG)]
        if name in own:
            synonyms.insert(0, ConfigSynonym(name, own[name], ConfigSource.GROUP_CONFIG))
        found.append(
            ConfigEntry(
                name,
                normal_value(key.rule, synonyms[0].value or ""),
                synonyms[0].source,
                key.rule.type,
                synonyms,
                key.documentation,
            )
        )
    return found


def _of_all_groups(name: str) -> str:
    """Return the name of the broker config that is the default of a group config."""
    only_for_groups = ("share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable")
    return name if name in only_for_groups else f"group.{name}"


def _dynamic(name: str, synonyms: list[ConfigSynonym]) -> ConfigEntry:
    key = BROKER_CONFIG_KEYS.get(name)
    value, source = (
        (synonyms[0].value, synonyms[0].source) if synonyms else (None, ConfigSource.DEFAULT_CONFIG)
    )
    if key is not None:
        shown = None if value is None else normal_value(key.rule, value)
        return ConfigEntry(name, shown, source, key.rule.type, synonyms, key.documentation)
    # a config that Kafka does not know may be a password, so its value is hidden (`ConfigHelper`)
    hidden = [synonym._replace(value=None) for synonym in synonyms]
    known = name in READ_ONLY_CONFIGS
    return ConfigEntry(name, None, source, ConfigType.STRING if known else _UNKNOWN, hidden, "", True, True)


def _fixed(name: str, value: str, kind: int, source: int) -> ConfigEntry:
    # read-only, though Kafka could change its listeners dynamically
    synonyms = [ConfigSynonym(name, value, source)]
    return ConfigEntry(name, value, source, kind, synonyms, _DOCUMENTATION[name], read_only=True)


def _idle(node: Node) -> str:
    return "-1" if node.listener.connections_max_idle is None else _ms(node.listener.connections_max_idle)


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

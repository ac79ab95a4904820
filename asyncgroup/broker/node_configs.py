"""The settings of nodes and groups as DescribeConfigs shows them: the dynamic ones, and those of the others that mean
something here. What `EmbeddedCluster` was given shows as static, the rest as Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.broker.broker_keys import BROKER_KEYS, GROUP_KEYS, RATES, READ_ONLY
from asyncgroup.broker.coordination import TRANSACTION_PARTITIONS
from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS
from asyncgroup.broker.node import Node
from asyncgroup.broker.topic_configs import ConfigValue, Synonym, normal_value
from asyncgroup.broker.topic_keys import (
    BOOLEAN,
    DEFAULT_CONFIG,
    DYNAMIC_DEFAULT_BROKER_CONFIG,
    GROUP_CONFIG,
    INT,
    LIST,
    LONG,
    STATIC_BROKER_CONFIG,
    STRING,
)
from asyncgroup.broker.transactions.coordinator import MAX_TIMEOUT

__all__ = ["cluster_configs", "group_configs", "node_configs"]

_UNKNOWN: Final = 0
"""The type of a setting that Kafka does not know."""

_DOCUMENTATION: Final = {
    "advertised.listeners": "Addresses that clients connect to, as Metadata returns them.",
    "auto.create.topics.enable": "Whether a topic is created when a client asks for it.",
    "broker.id": "The broker's id.",
    "broker.rack": "Where the broker stands.",
    "connections.max.idle.ms": "Time (ms) without requests after which a connection is closed; -1: never.",
    "default.replication.factor": "Replicas of a topic that does not say.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "group.initial.rebalance.delay.ms": "How long (ms) a new group waits for more members.",
    "group.max.session.timeout.ms": "Longest session timeout (ms) that a member may ask for.",
    "group.max.size": "Members that a group may have.",
    "group.min.session.timeout.ms": "Shortest session timeout (ms) that a member may ask for.",
    "listeners": "Where the broker listens.",
    "node.id": "The node's id.",
    "num.partitions": "Partitions of a topic that does not say.",
    "offsets.retention.minutes": "How long (minutes) offsets of a group without members are kept.",
    "offsets.topic.num.partitions": "Partitions of __consumer_offsets.",
    "queued.max.request.bytes": "Memory (bytes) that requests may take that are incomplete or wait for their turn.",
    "socket.request.max.bytes": "Largest request (bytes).",
    "transaction.max.timeout.ms": "Longest transaction timeout (ms) that a producer may ask for.",
    "transaction.state.log.num.partitions": "Partitions of __transaction_state.",
}


def node_configs(node: Node) -> list[ConfigValue]:
    """All settings of a node, by name."""
    group = node.coordinator.config
    static = {
        "advertised.listeners": (f"{node.protocol}://{node.advertised_host}:{node.port}", LIST),
        "auto.create.topics.enable": (str(node.auto_create_topics).lower(), BOOLEAN),
        "broker.id": (str(node.id), INT),
        "broker.rack": (node.rack or "", STRING),
        "connections.max.idle.ms": (_idle(node), LONG),
        "default.replication.factor": (str(node.controller.default_replication_factor), INT),
        "group.initial.rebalance.delay.ms": (_ms(group.initial_rebalance_delay), INT),
        "group.max.session.timeout.ms": (_ms(group.max_session_timeout), INT),
        "group.max.size": (str(group.max_size), INT),
        "group.min.session.timeout.ms": (_ms(group.min_session_timeout), INT),
        "listeners": (f"{node.protocol}://{node.host}:{node.port}", LIST),
        "node.id": (str(node.id), INT),
        "num.partitions": (str(node.controller.default_partitions), INT),
        "offsets.retention.minutes": (str(int(group.offsets_retention / 60)), INT),
        "queued.max.request.bytes": (str(node.request_memory.limit), LONG),
    }
    default = {
        "delete.topic.enable": ("true", BOOLEAN),
        "offsets.topic.num.partitions": (str(OFFSETS_PARTITIONS), INT),
        "socket.request.max.bytes": (str(node.max_request_bytes), INT),
        "transaction.max.timeout.ms": (_ms(MAX_TIMEOUT), INT),
        "transaction.state.log.num.partitions": (str(TRANSACTION_PARTITIONS), INT),
    }
    shown = [_fixed(name, *value, STATIC_BROKER_CONFIG) for name, value in static.items()]
    shown += [_fixed(name, *value, DEFAULT_CONFIG) for name, value in default.items()]
    settings = node.controller.settings
    own = settings.nodes.get(node.id, {})
    others = {*own, *settings.cluster}
    names = {*BROKER_KEYS, *others}.difference(static, default, set(RATES) - others)
    shown += [_dynamic(name, settings.synonyms(name, node.id)) for name in names]
    return sorted(shown, key=lambda value: value.name)


def cluster_configs(node: Node) -> list[ConfigValue]:
    """The settings that hold for all nodes and were given explicitly."""
    return [
        _dynamic(name, [Synonym(name, value, DYNAMIC_DEFAULT_BROKER_CONFIG)])
        for name, value in sorted(node.controller.settings.cluster.items())
    ]


def group_configs(own: Mapping[str, str]) -> list[ConfigValue]:
    """All settings of a group that was given `own`, by name."""
    found = []
    for name, key in GROUP_KEYS.items():
        synonyms = [Synonym(_of_all_groups(name), key.rule.default, DEFAULT_CONFIG)]
        if name in own:
            synonyms.insert(0, Synonym(name, own[name], GROUP_CONFIG))
        found.append(
            ConfigValue(
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
    """What the brokers' setting is called that holds for groups that do not say."""
    only_for_groups = ("share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable")
    return name if name in only_for_groups else f"group.{name}"


def _dynamic(name: str, synonyms: list[Synonym]) -> ConfigValue:
    key = BROKER_KEYS.get(name)
    value, source = (synonyms[0].value, synonyms[0].source) if synonyms else (None, DEFAULT_CONFIG)
    if key is not None:
        shown = None if value is None else normal_value(key.rule, value)
        return ConfigValue(name, shown, source, key.rule.type, synonyms, key.documentation)
    # it may be a password, for all that is known (`ConfigHelper`)
    hidden = [synonym._replace(value=None) for synonym in synonyms]
    known = name in READ_ONLY
    return ConfigValue(name, None, source, STRING if known else _UNKNOWN, hidden, "", True, True)


def _fixed(name: str, value: str, kind: int, source: int) -> ConfigValue:
    # Kafka can change its listeners; these stay as they are
    synonyms = [Synonym(name, value, source)]
    return ConfigValue(name, value, source, kind, synonyms, _DOCUMENTATION[name], read_only=True)


def _idle(node: Node) -> str:
    return "-1" if node.connections_max_idle is None else _ms(node.connections_max_idle)


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

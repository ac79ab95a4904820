"""The settings of a node as DescribeConfigs shows them: those of Kafka's that mean something here.

None can be changed by clients; what `EmbeddedCluster` was given shows as static, the rest as Kafka's default.
"""

from __future__ import annotations

from asyncgroup.broker.coordination import TRANSACTION_PARTITIONS
from asyncgroup.broker.frames import MAX_REQUEST_BYTES
from asyncgroup.broker.internal_topics import OFFSETS_PARTITIONS
from asyncgroup.broker.node import Node
from asyncgroup.broker.topic_configs import ConfigValue, Synonym, topic_configs
from asyncgroup.broker.topic_keys import (
    BOOLEAN,
    DEFAULT_CONFIG,
    DYNAMIC_DEFAULT_BROKER_CONFIG,
    INT,
    STATIC_BROKER_CONFIG,
    STRING,
)
from asyncgroup.broker.transactions.coordinator import MAX_TIMEOUT

__all__ = ["cluster_configs", "node_configs"]


def node_configs(node: Node) -> list[ConfigValue]:
    """All settings of a node, by name."""
    group = node.coordinator.config
    listener = f"{node.protocol}://{node.host}:{node.port}"
    static = {
        "advertised.listeners": (f"{node.protocol}://{node.advertised_host}:{node.port}", STRING),
        "auto.create.topics.enable": (str(node.auto_create_topics).lower(), BOOLEAN),
        "broker.id": (str(node.id), INT),
        "broker.rack": (node.rack or "", STRING),
        "default.replication.factor": (str(node.controller.default_replication_factor), INT),
        "group.initial.rebalance.delay.ms": (_ms(group.initial_rebalance_delay), INT),
        "group.max.session.timeout.ms": (_ms(group.max_session_timeout), INT),
        "group.max.size": (str(group.max_size), INT),
        "group.min.session.timeout.ms": (_ms(group.min_session_timeout), INT),
        "listeners": (listener, STRING),
        "node.id": (str(node.id), INT),
        "num.partitions": (str(node.controller.default_partitions), INT),
    }
    default = {
        "delete.topic.enable": ("true", BOOLEAN),
        "offsets.topic.num.partitions": (str(OFFSETS_PARTITIONS), INT),
        "socket.request.max.bytes": (str(MAX_REQUEST_BYTES), INT),
        "transaction.max.timeout.ms": (_ms(MAX_TIMEOUT), INT),
        "transaction.state.log.num.partitions": (str(TRANSACTION_PARTITIONS), INT),
    }
    shown = [_shown(name, *value, STATIC_BROKER_CONFIG) for name, value in static.items()]
    shown += [_shown(name, *value, DEFAULT_CONFIG) for name, value in default.items()]
    return sorted([*shown, *_of_topics()])


def cluster_configs() -> list[ConfigValue]:
    """The settings that hold for all nodes and were given explicitly."""
    return [
        value._replace(synonyms=value.synonyms[:1])
        for value in _of_topics()
        if value.source == DYNAMIC_DEFAULT_BROKER_CONFIG
    ]


def _of_topics() -> list[ConfigValue]:
    """Nodes' settings that are the defaults of topics, under the names that they have there."""
    found = []
    for value in topic_configs({}):
        synonyms = [synonym for synonym in value.synonyms if synonym.name == value.synonyms[-1].name]
        if synonyms:
            found.append(
                ConfigValue(synonyms[-1].name, synonyms[-1].value, synonyms[0].source, value.type, synonyms)
            )
    return found


def _shown(name: str, value: str, kind: int, source: int) -> ConfigValue:
    return ConfigValue(name, value, source, kind, [Synonym(name, value, source)])


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

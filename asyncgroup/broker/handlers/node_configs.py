"""The configs of nodes, topics and groups as DescribeConfigs returns them.

A node has all configs of Kafka 4.3. The arguments of `EmbeddedCluster` that differ from Kafka's defaults appear as static
configs, all others that were not altered as Kafka's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.broker.log.config_values import normal_value
from asyncgroup.broker.log.topic_config_keys import ConfigSource, ConfigType
from asyncgroup.broker.log.topic_configs import ConfigEntry, ConfigSynonym, topic_configs
from asyncgroup.broker.metadata.broker_config_keys import (
    BROKER_CONFIG_KEYS,
    READ_ONLY_CONFIGS,
    REPLICATION_QUOTAS,
    base_name,
    config_number,
)
from asyncgroup.broker.metadata.group_config_keys import GROUP_CONFIG_KEYS
from asyncgroup.broker.metadata.topics import Topic
from asyncgroup.broker.node import Node

__all__ = ["cluster_configs", "described_topic", "group_configs", "logger_configs", "node_configs"]

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
    configs = node.controller.configs
    altered = {*configs.nodes.get(node.id, {}), *configs.cluster}
    static = {**configs.static, **node.static_configs, **_own_configs(node)}
    names = {*BROKER_CONFIG_KEYS, *altered} - (set(REPLICATION_QUOTAS) - altered)
    return [_entry(name, configs.synonyms(name, node.id, static)) for name in sorted(names)]


def _own_configs(node: Node) -> dict[str, str]:
    """Return the configs that each node is started with for itself."""
    protocol = node.listener.protocol
    voters = [f"{peer.id}@{peer.advertised_host}:{peer.port}" for peer in node.peers.values()]
    return {
        "advertised.listeners": f"{protocol}://{node.advertised_host}:{node.port}",
        "broker.id": str(node.id),
        **({} if node.rack is None else {"broker.rack": node.rack}),
        "controller.quorum.voters": ",".join(voters),
        "inter.broker.listener.name": protocol,
        "listeners": f"{protocol}://{node.host}:{node.port}",
        "node.id": str(node.id),
    }


def cluster_configs(node: Node) -> list[ConfigEntry]:
    """Return the dynamic configs that apply to all nodes."""
    configs, source = node.controller.configs, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return [
        _entry(name, [each for each in configs.synonyms(name, node.id) if each.source == source])
        for name in sorted(configs.cluster)
    ]


def described_topic(node: Node, topic: Topic) -> list[ConfigEntry]:
    """Return all configs of a topic, as they are for a partition that this node leads."""
    configs = node.controller.configs
    return topic_configs(
        topic.configs, lambda name: configs.topic_synonyms(name, node.id), configs.topic_defaults(node.id)
    )


def logger_configs(node: Node) -> list[ConfigEntry]:
    """Return the levels of the loggers."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [ConfigEntry(name, level, source, _UNKNOWN) for name, level in node.loggers.levels().items()]


def group_configs(node: Node, own: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a group with the dynamic configs `own`, ordered by name."""
    found = []
    group = node.coordinator.config
    durations = {
        "consumer.assignment.interval.ms": group.group_consumer_assignment_interval,
        "consumer.heartbeat.interval.ms": group.group_consumer_heartbeat_interval,
        "consumer.session.timeout.ms": group.group_consumer_session_timeout,
    }
    options = {
        name: config_number(_of_all_groups(name), seconds * 1000) for name, seconds in durations.items()
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


def _entry(name: str, synonyms: list[ConfigSynonym]) -> ConfigEntry:
    """Return a config with these values, the effective one first (`ConfigHelper.createBrokerConfigEntry`)."""
    base = base_name(name)
    key = BROKER_CONFIG_KEYS.get(base)
    # a config that Kafka does not know may be a password, so its value is hidden
    secret = key is None or key.rule.type is ConfigType.PASSWORD
    shown = [synonym._replace(value=None) for synonym in synonyms] if secret else synonyms
    source = shown[0].source if shown else ConfigSource.DEFAULT_CONFIG
    value = shown[0].value if shown else None
    if key is None:
        return ConfigEntry(name, None, source, _UNKNOWN, shown, "", read_only=True, sensitive=True)
    return ConfigEntry(
        name,
        None if value is None else normal_value(key.rule, value),
        source,
        key.rule.type,
        shown,
        _DOCUMENTATION.get(name, key.documentation) if base == name else "",
        # as in Kafka, those of listeners are shown as read-only although they can be altered
        read_only=base != name or name in READ_ONLY_CONFIGS,
        sensitive=secret,
    )

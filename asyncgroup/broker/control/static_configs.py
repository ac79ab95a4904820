"""The options of a cluster as Kafka's `server.properties` would set them, for DescribeConfigs."""

from __future__ import annotations

import math
from pathlib import Path

from asyncgroup.broker.control.options import ClusterOptions
from asyncgroup.broker.metadata.broker_config_keys import BROKER_CONFIG_KEYS, config_number

__all__ = ["static_configs"]


def static_configs(options: ClusterOptions) -> dict[str, str]:
    """Return the configs of all nodes that differ from Kafka's defaults, by Kafka's names."""
    factor, group, idle = options.default_replication_factor, "group.consumer.", options.connections_max_idle
    values = {
        "auto.create.topics.enable": str(options.auto_create_topics).lower(),
        "auto.leader.rebalance.enable": "false",  # leaders stay where they are
        "controller.listener.names": "CONTROLLER",
        "default.replication.factor": str(min(3, options.nodes) if factor is None else factor),
        f"{group}max.size": str(options.group_consumer_max_size),
        f"{group}migration.policy": options.group_consumer_migration_policy,
        "group.max.size": str(options.group_max_size),
        "log.dirs": "memory" if options.data_dir is None else str(Path(options.data_dir).absolute()),
        "num.partitions": str(options.default_partitions),
        "offsets.retention.minutes": config_number(
            "offsets.retention.minutes", options.offsets_retention / 60
        ),
        "offsets.topic.replication.factor": str(options.nodes),
        "process.roles": "broker,controller",
        "queued.max.request.bytes": str(options.queued_max_request_bytes),
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        **{name: config_number(name, seconds * 1000) for name, seconds in _durations(options).items()},
        **({"connections.max.idle.ms": "-1"} if idle in (None, math.inf) else {}),
        **_security(options),
    }
    return {name: value for name, value in values.items() if value != BROKER_CONFIG_KEYS[name].default}


def _durations(options: ClusterOptions) -> dict[str, float]:
    """Return the values, in seconds, of the configs in milliseconds."""
    idle = options.connections_max_idle
    return {
        "connections.max.idle.ms": math.inf if idle is None else idle,
        "group.consumer.assignment.interval.ms": options.group_consumer_assignment_interval,
        "group.consumer.heartbeat.interval.ms": options.group_consumer_heartbeat_interval,
        "group.consumer.session.timeout.ms": options.group_consumer_session_timeout,
        "group.initial.rebalance.delay.ms": options.initial_rebalance_delay,
        "group.max.session.timeout.ms": options.group_max_session_timeout,
        "group.min.session.timeout.ms": options.group_min_session_timeout,
        "log.retention.check.interval.ms": options.retention_check_interval,
        "offsets.retention.check.interval.ms": options.offsets_retention_check_interval,
    }


def _security(options: ClusterOptions) -> dict[str, str]:
    security = options.security
    if security is None:
        return {}
    values = {"security.inter.broker.protocol": security.protocol}
    if security.sasl:
        values["sasl.enabled.mechanisms"] = ",".join(security.mechanisms)
        values["connections.max.reauth.ms"] = config_number(
            "connections.max.reauth.ms", security.max_reauth * 1000
        )
    if security.cert_file is not None:
        values |= {"ssl.keystore.location": str(security.cert_file), "ssl.keystore.type": "PEM"}
    if security.client_ca_file is not None:
        values |= {"ssl.truststore.location": str(security.client_ca_file), "ssl.truststore.type": "PEM"}
        values["ssl.client.auth"] = "required"
    return values

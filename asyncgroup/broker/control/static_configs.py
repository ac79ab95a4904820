"""The options of a cluster as Kafka's `server.properties` would set them, for DescribeConfigs."""

from __future__ import annotations

from pathlib import Path

from asyncgroup.broker.control.options import ClusterOptions
from asyncgroup.broker.metadata.broker_config_keys import BROKER_CONFIG_KEYS

__all__ = ["static_configs"]


def static_configs(options: ClusterOptions) -> dict[str, str]:
    """Return the configs of all nodes that differ from Kafka's defaults, by Kafka's names."""
    factor, group = options.default_replication_factor, "group.consumer."
    values = {
        "auto.create.topics.enable": str(options.auto_create_topics).lower(),
        "auto.leader.rebalance.enable": "false",  # leaders stay where they are
        "connections.max.idle.ms": "-1" if (idle := options.connections_max_idle) is None else _ms(idle),
        "controller.listener.names": "CONTROLLER",
        "default.replication.factor": str(min(3, options.nodes) if factor is None else factor),
        f"{group}assignment.interval.ms": _ms(options.group_consumer_assignment_interval),
        f"{group}heartbeat.interval.ms": _ms(options.group_consumer_heartbeat_interval),
        f"{group}max.size": str(options.group_consumer_max_size),
        f"{group}migration.policy": options.group_consumer_migration_policy,
        f"{group}session.timeout.ms": _ms(options.group_consumer_session_timeout),
        "group.initial.rebalance.delay.ms": _ms(options.initial_rebalance_delay),
        "group.max.session.timeout.ms": _ms(options.group_max_session_timeout),
        "group.max.size": str(options.group_max_size),
        "group.min.session.timeout.ms": _ms(options.group_min_session_timeout),
        "log.dirs": "memory" if options.data_dir is None else str(Path(options.data_dir).absolute()),
        "log.retention.check.interval.ms": _ms(options.retention_check_interval),
        "num.partitions": str(options.default_partitions),
        "offsets.retention.check.interval.ms": _ms(options.offsets_retention_check_interval),
        "offsets.retention.minutes": str(int(options.offsets_retention / 60)),
        "offsets.topic.replication.factor": str(options.nodes),
        "process.roles": "broker,controller",
        "queued.max.request.bytes": str(options.queued_max_request_bytes),
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        **_security(options),
    }
    return {name: value for name, value in values.items() if value != BROKER_CONFIG_KEYS[name].default}


def _security(options: ClusterOptions) -> dict[str, str]:
    security = options.security
    if security is None:
        return {}
    values = {"security.inter.broker.protocol": security.protocol}
    if security.sasl:
        values["sasl.enabled.mechanisms"] = ",".join(security.mechanisms)
        values["connections.max.reauth.ms"] = _ms(security.max_reauth)
    if security.cert_file is not None:
        values |= {"ssl.keystore.location": str(security.cert_file), "ssl.keystore.type": "PEM"}
    if security.client_ca_file is not None:
        values |= {"ssl.truststore.location": str(security.client_ca_file), "ssl.truststore.type": "PEM"}
        values["ssl.client.auth"] = "required"
    return values


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))

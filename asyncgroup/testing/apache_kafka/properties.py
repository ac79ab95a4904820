"""The `server.properties` of a node for tests: KRaft mode, broker and controller in one process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.testing.java_server.ports import HOST
from asyncgroup.testing.java_server.properties_file import Value

__all__ = [
    "check_listeners",
    "check_overrides",
    "consumer_heartbeats",
    "server_properties",
]

# Short delays and few partitions, for tests whose groups rebalance many times a minute. All of it can be overridden.
_QUICK: Final[Mapping[str, Value]] = {
    "auto.create.topics.enable": False,
    "num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.min.session.timeout.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.share.min.session.timeout.ms": 100,
    "group.share.min.heartbeat.interval.ms": 50,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    # The leaders of a killed broker move after this time, and it can register again only then; 9 s by default.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    # A follower whose leader has moved waits for a second by default.
    "replica.fetch.backoff.ms": 50,
    # The default, 128 MB, is allocated at the start and is more than half of an idle broker's memory.
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    # Some file systems fill the whole file of an index, 10 MiB by default, when a partition's first 4 KiB are written: with
    # 1,000 partitions the broker then writes nothing else for 20 s. 256 KiB are enough for segments of 85 MB.
    "log.index.size.max.bytes": 1 << 18,
}


# Properties that ApacheKafka sets for each node, and that cannot be overridden.
_RESERVED: Final = frozenset(
    {
        "process.roles",
        "node.id",
        "controller.quorum.voters",
        "listeners",
        "advertised.listeners",
        "controller.listener.names",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "log.dirs",
    }
)


def consumer_heartbeats(interval: float) -> dict[str, Value]:
    """Return the properties of brokers whose members of the consumer protocol send a heartbeat every `interval` seconds."""
    names = ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms")
    return dict.fromkeys(names, round(interval * 1000))


def check_overrides(overrides: Mapping[str, Value]) -> None:
    """Raise ConfigError if `overrides` contains a property that ApacheKafka sets for each node."""
    for key in sorted(_RESERVED & overrides.keys()):
        raise ConfigError(key, overrides[key], "ApacheKafka sets this property itself")


_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def check_listeners(listeners: Mapping[str, str]) -> None:
    """Raise ConfigError for wrong additional listeners: keys are names in capitals, values security protocols."""
    for name, protocol in listeners.items():
        if not re.fullmatch("[A-Z][A-Z0-9_]*", name) or name in ("PLAINTEXT", "CONTROLLER"):
            raise ConfigError("listeners", name, "names of A-Z 0-9 _, except PLAINTEXT and CONTROLLER")
        if protocol not in _PROTOCOLS:
            raise ConfigError("listeners", protocol, "a security protocol, one of " + ", ".join(_PROTOCOLS))


def server_properties(
    node_id: int,
    ports: Mapping[int, tuple[int, int]],
    data: Sequence[Path],
    overrides: Mapping[str, Value],
    listeners: Mapping[str, tuple[str, int]] | None = None,
) -> dict[str, Value]:
    """Return the properties of one node.

    `ports` are (broker port, controller port) of every node of the cluster, by node id; `data` are the directories of
    the logs; `listeners` are (security protocol, port) of the node's additional listeners, by name.
    """
    further = listeners or {}
    served = "".join(f",{name}://{HOST}:{port}" for name, (_, port) in further.items())
    protocols = "".join(f",{name}:{protocol}" for name, (protocol, _) in further.items())
    replicas = min(3, len(ports))
    broker_port, controller_port = ports[node_id]
    voters = ",".join(f"{node}@{HOST}:{port}" for node, (_, port) in sorted(ports.items()))
    return {
        **_QUICK,
        # Every node has its own rack, so that consumers can read from the replica in theirs (KIP-392).
        "broker.rack": f"rack-{node_id}",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": max(1, replicas - 1),
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": max(1, replicas - 1),
        **overrides,
        "process.roles": "broker,controller",
        "node.id": node_id,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{broker_port},CONTROLLER://{HOST}:{controller_port}{served}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker_port}{served}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT{protocols}",
        "log.dirs": ",".join(map(str, data)),
    }

"""The options of an embedded cluster, as one value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from asyncgroup.broker.arguments import check_kind, check_names
from asyncgroup.broker.control.seeding import topic_seeds
from asyncgroup.broker.groups.shared.interfaces import MIGRATION_POLICIES, GroupOptions
from asyncgroup.broker.metadata.features import ClusterFeatures
from asyncgroup.broker.net.listener import DEFAULT_CONNECTIONS_MAX_IDLE
from asyncgroup.broker.net.request_memory import DEFAULT_QUEUED_MAX_REQUEST_BYTES
from asyncgroup.broker.net.security import ListenerSecurity
from asyncgroup.broker.storage.retention import CHECK_INTERVAL
from asyncgroup.broker.traffic.recorder import DEFAULT_HISTORY_BYTES, DEFAULT_HISTORY_LIMIT
from asyncgroup.errors import ConfigError

__all__ = ["ClusterKeywords", "ClusterOptions", "features_of", "options_of"]


class ClusterKeywords(TypedDict, total=False):
    """The options of `ClusterOptions` except `nodes`, as keyword arguments."""

    host: str
    advertised_host: str | None
    ports: Sequence[int] | None
    topics: object
    auto_create_topics: bool
    default_partitions: int
    default_replication_factor: int | None
    initial_rebalance_delay: float
    group_min_session_timeout: float
    group_max_session_timeout: float
    group_max_size: int
    group_consumer_assignment_interval: float
    group_consumer_heartbeat_interval: float
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_session_timeout: float
    group_version: int | None
    offsets_retention: float
    offsets_retention_check_interval: float
    offsets_append_delay: float
    offsets_load_delay: float
    queued_max_request_bytes: int
    connections_max_idle: float | None
    history_limit: int
    history_bytes: int
    history_payloads: bool
    racks: Sequence[str | None] | None
    seed: int | None
    start_time: int | None
    data_dir: str | Path | None
    fsync: bool
    retention_check_interval: float
    security: ListenerSecurity | None
    settings: Mapping[str, str] | None
    transaction_markers_delay: float
    transaction_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(GroupOptions):
    """The options of `EmbeddedCluster`, which describes them. Raise ConfigError for wrong ones."""

    nodes: int = 1
    host: str = "127.0.0.1"
    advertised_host: str | None = None
    ports: Sequence[int] | None = None
    topics: object = None
    auto_create_topics: bool = False
    default_partitions: int = 1
    default_replication_factor: int | None = None
    queued_max_request_bytes: int = DEFAULT_QUEUED_MAX_REQUEST_BYTES
    connections_max_idle: float | None = DEFAULT_CONNECTIONS_MAX_IDLE
    history_limit: int = DEFAULT_HISTORY_LIMIT
    history_bytes: int = DEFAULT_HISTORY_BYTES
    history_payloads: bool = False
    racks: Sequence[str | None] | None = None
    seed: int | None = None
    start_time: int | None = None
    data_dir: str | Path | None = None
    fsync: bool = False
    retention_check_interval: float = CHECK_INTERVAL
    security: ListenerSecurity | None = None
    settings: Mapping[str, str] | None = None
    group_version: int | None = None
    transaction_markers_delay: float = 0.0
    transaction_version: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.name != "connections_max_idle":
                check_kind(field.name, value, field.default)
        if self.nodes < 1:
            raise ConfigError("nodes", self.nodes, "1 or more")
        for name, values in (("ports", self.ports), ("racks", self.racks)):
            if values is not None and len(values) != self.nodes:
                raise ConfigError(name, list(values), f"one for each of {self.nodes} nodes")
        if self.queued_max_request_bytes <= 0:
            raise ConfigError("queued_max_request_bytes", self.queued_max_request_bytes, "bytes, more than 0")
        if self.connections_max_idle is not None and not self.connections_max_idle > 0:
            raise ConfigError(
                "connections_max_idle",
                self.connections_max_idle,
                "seconds, more than 0, or None for never",
            )
        # an interval of 0 or less would keep the loop busy; `not >` also refuses NaN
        for name in ("retention_check_interval", "offsets_retention_check_interval"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, getattr(self, name), "seconds, more than 0")
        if not 0 <= self.transaction_markers_delay < math.inf:
            raise ConfigError(
                "transaction_markers_delay", self.transaction_markers_delay, "seconds, 0 or more"
            )
        if self.group_consumer_migration_policy not in MIGRATION_POLICIES:
            name = "group_consumer_migration_policy"
            raise ConfigError(name, self.group_consumer_migration_policy, ", ".join(MIGRATION_POLICIES))
        if self.advertised_host is None and self.host in {"0.0.0.0", "::"}:  # as Kafka
            raise ConfigError("host", self.host, "only with an advertised_host that clients can connect to")
        topic_seeds(self.topics)
        features_of(self)


def features_of(options: ClusterOptions) -> ClusterFeatures:
    """Return the features of a new cluster. Raise ConfigError for a level that is not supported."""
    given = {"group.version": options.group_version, "transaction.version": options.transaction_version}
    return ClusterFeatures({name: level for name, level in given.items() if level is not None})


def options_of(nodes: int, options: Mapping[str, Any]) -> ClusterOptions:
    """Return the options for the arguments of `EmbeddedCluster`. Raises ConfigError for unknown or wrong ones."""
    check_names(options, [field.name for field in fields(ClusterOptions)], "an EmbeddedCluster")
    return ClusterOptions(nodes=nodes, **options)

"""Brokers, their log directories, the metadata quorum and features, as an administrator sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from asyncgroup.errors import AsyncGroupError
from asyncgroup.topic_partition import TopicPartition

__all__ = [
    "BrokerDescription",
    "ClusterDescription",
    "FeatureUpdate",
    "FeaturesDescription",
    "LogDirDescription",
    "LogDirReplica",
    "QuorumDescription",
    "QuorumEndpoint",
    "QuorumReplica",
]


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker of the cluster."""

    node_id: int
    """Its node id."""
    host: str
    """The host that it advertises for this listener."""
    port: int
    """The port that it advertises."""
    rack: str | None
    """Its rack (`broker.rack`)."""
    is_fenced: bool = False
    """Whether the controller fences it: it is registered, but not active (KIP-1073)."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as one of its brokers describes it."""

    cluster_id: str | None
    """Its id."""
    controller: int | None
    """The node id of the controller; with KRaft of a broker that forwards requests to it (see `quorum`)."""
    brokers: tuple[BrokerDescription, ...]
    """The brokers, sorted by node id."""


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A replica of a partition in a log directory."""

    partition: TopicPartition
    """The partition."""
    size: int
    """The bytes of its log."""
    offset_lag: int
    """How many offsets its log ends below the high watermark; that of a future replica, below the end of the current one."""
    is_future: bool
    """Whether it is a future replica, which replaces the current one of another directory when it has caught up (KIP-113)."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker."""

    path: str
    """Its path on the broker."""
    replicas: tuple[LogDirReplica, ...]
    """Its replicas, sorted by partition."""
    total_bytes: int | None = None
    """The bytes of its volume; None before Kafka 3.3 (KIP-827)."""
    usable_bytes: int | None = None
    """The usable bytes of its volume; None before Kafka 3.3."""
    is_cordoned: bool = False
    """Whether it gets no new replicas (KIP-1066, Kafka 4.3)."""
    error: AsyncGroupError | None = None
    """Why it cannot be described: KAFKA_STORAGE_ERROR if it is offline."""


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or observer of the metadata quorum."""

    node_id: int
    """Its node id."""
    log_end_offset: int | None
    """The end of its metadata log; None if the leader does not know it."""
    last_fetch_timestamp: int | None = None
    """When it last fetched from the leader, in ms since 1970; None if unknown."""
    last_caught_up_timestamp: int | None = None
    """When it last had all that the leader had, in ms since 1970; None if unknown."""
    directory_id: UUID | None = None
    """The id of its metadata directory; None if the broker does not say it (KIP-853, Kafka 3.9)."""


@dataclass(frozen=True, slots=True)
class QuorumEndpoint:
    """A listener of a controller."""

    listener: str
    """The name of the listener."""
    host: str
    """Its host."""
    port: int
    """Its port."""


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The metadata quorum of KRaft controllers."""

    leader: int | None
    """The node id of the active controller; None while there is none."""
    leader_epoch: int
    """Its epoch."""
    high_watermark: int | None
    """The high watermark of the metadata log; None if unknown."""
    voters: tuple[QuorumReplica, ...]
    """The controllers that vote, sorted by node id."""
    observers: tuple[QuorumReplica, ...]
    """Brokers and controllers that only read the metadata log, sorted by node id."""
    endpoints: Mapping[int, tuple[QuorumEndpoint, ...]]
    """The listeners of the controllers by node id; empty before Kafka 3.9."""


@dataclass(frozen=True, slots=True)
class FeaturesDescription:
    """The features of a broker and of the cluster (KIP-584)."""

    supported: Mapping[str, tuple[int, int]]
    """The lowest and highest level that the broker supports, by feature."""
    finalized: Mapping[str, int]
    """The level that the cluster uses, by feature; a feature that is not in use is missing."""
    epoch: int | None
    """The epoch of the finalized levels, which grows with each change; None if the broker knows none."""


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """A new level of a feature."""

    level: int
    """The level; 0 stops the use of the feature, which is a downgrade."""
    upgrade_type: str = "UPGRADE"
    """`UPGRADE`, `SAFE_DOWNGRADE` (without loss of metadata) or `UNSAFE_DOWNGRADE`, as `FeatureUpdate.UpgradeType` in Kafka."""

"""The configuration of the group coordinator, and what it needs from the broker. Tests pass fakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from asyncgroup.broker.groups.shared.requests import GroupSnapshot
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "MIGRATION_POLICIES",
    "CoordinatorConfig",
    "ExpiredOffsets",
    "FindExpired",
    "GroupOptions",
    "OffsetsLog",
    "WriteCallback",
    "WriteGroup",
]

WriteCallback = Callable[[ErrorCode], None]
"""Called with NONE when a write is replicated, or with the error if it failed."""


WriteGroup: TypeAlias = Callable[[GroupSnapshot, WriteCallback], None]
"""Writes the metadata record of a classic group; the callback is called when it is replicated or has failed."""


class ExpiredOffsets(NamedTuple):
    """What has expired of a group."""

    partitions: Collection[TopicPartition] = ()
    """Partitions whose offsets have expired."""
    group: bool = False
    """Whether the group itself is removed too."""


FindExpired: TypeAlias = Callable[[Collection[TopicPartition]], ExpiredOffsets]
"""Takes the partitions with commits that are in the log, but not replicated; returns what has expired."""


MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
"""Kafka's `ConsumerGroupMigrationPolicy`: a live group may become a consumer group with the first two, and a classic group
again with the first and the third.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Kafka's `group.*` and `offsets.*` broker settings, and two delays for tests. Durations are in seconds."""

    initial_rebalance_delay: float = 0.0
    """`group.initial.rebalance.delay.ms`"""
    group_min_session_timeout: float = 0.0
    """`group.min.session.timeout.ms`"""
    group_max_session_timeout: float = 1800.0
    """`group.max.session.timeout.ms`"""
    group_max_size: int = 2**31 - 1
    """`group.max.size`"""
    group_consumer_heartbeat_interval: float = 5.0
    """`group.consumer.heartbeat.interval.ms`: time between two heartbeats of a member (KIP-848)."""
    group_consumer_session_timeout: float = 45.0
    """`group.consumer.session.timeout.ms`: time without a heartbeat after which a member is removed."""
    group_consumer_assignment_interval: float = 1.0
    """`group.consumer.assignment.interval.ms`: shortest time between two assignments of a group (KIP-1263)."""
    group_consumer_max_size: int = 2**31 - 1
    """`group.consumer.max.size`"""
    group_consumer_migration_policy: str = "bidirectional"
    """`group.consumer.migration.policy`: which live groups may change their protocol, one of `MIGRATION_POLICIES`."""
    offsets_retention: float = 7 * 24 * 3600.0
    """`offsets.retention.minutes` (KIP-211)"""
    offsets_retention_check_interval: float = 600.0
    """`offsets.retention.check.interval.ms`"""
    offsets_append_delay: float = 0.0
    """Delay before each append to `__consumer_offsets`. Writes that wait for it are lost if the node stops."""
    offsets_load_delay: float = 0.0
    """Delay before a partition of `__consumer_offsets` is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(GroupOptions):
    """The options, and two settings that stay as in Kafka."""

    new_member_join_timeout: float = 300.0
    """How long a JoinGroup of a new member may be parked before the member is removed, as its client may be gone
    (`classicGroupNewMemberJoinTimeoutMs`, five minutes in Kafka).
    """
    offset_metadata_max_size: int = 4096
    """`offset.metadata.max.bytes`"""


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets` on one node."""

    def exists(self) -> bool:
        """Whether the topic exists."""

    def read(self, partition: int) -> Iterator[Buffer]:
        """Yield all complete record batches of a partition, in chunks."""

    def append(self, partition: int, batch: bytes) -> int:
        """Append a record batch and return its base offset.

        Raise `Refused`, for example if this node is no longer leader.
        """

    def end_offset(self, partition: int) -> int:
        """Return the offset of the next batch."""

    def high_watermark(self, partition: int) -> int:
        """Return the offset up to which all replicas have the log."""

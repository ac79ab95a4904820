"""The configuration of the group coordinator, and what it needs from the broker. Tests pass fakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "CoordinatorConfig",
    "ExpiredOffsets",
    "FindExpired",
    "OffsetsLog",
    "WriteCallback",
]

WriteCallback = Callable[[ErrorCode], None]
"""Called with NONE when a write is replicated, or with the error if it failed."""


class ExpiredOffsets(NamedTuple):
    """What has expired of a group."""

    partitions: Collection[TopicPartition] = ()
    """Those whose offsets have expired."""
    group: bool = False
    """Whether the group itself is removed too."""


FindExpired: TypeAlias = Callable[[Collection[TopicPartition]], ExpiredOffsets]
"""Takes the partitions with commits that are in the log, but not replicated; returns what has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Kafka's `group.*` and `offset.*` broker settings, and two delays for tests. Durations are in seconds."""

    initial_rebalance_delay: float = 0.0
    """`group.initial.rebalance.delay.ms`"""
    min_session_timeout: float = 0.0
    """`group.min.session.timeout.ms`"""
    max_session_timeout: float = 1800.0
    """`group.max.session.timeout.ms`"""
    max_size: int = 2**31 - 1
    """`group.max.size`"""
    new_member_join_timeout: float = 300.0
    """How long a JoinGroup of a new member may be parked before the member is removed, as its client may be gone
    (`classicGroupNewMemberJoinTimeoutMs`, five minutes in Kafka).
    """
    offset_metadata_max_size: int = 4096
    """`offset.metadata.max.bytes`"""
    offsets_retention: float = 7 * 24 * 3600.0
    """`offsets.retention.minutes` (KIP-211)"""
    offsets_retention_check_interval: float = 600.0
    """`offsets.retention.check.interval.ms`"""
    offsets_append_delay: float = 0.0
    """Delay before each append to `__consumer_offsets`. Writes that wait for it are lost if the node stops."""
    offsets_load_delay: float = 0.0
    """Delay before a partition of `__consumer_offsets` is loaded."""


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

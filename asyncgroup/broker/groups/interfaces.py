"""What the group coordinator needs from the broker: configuration, clock, timers, log and store. Tests pass fakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from asyncgroup.broker.groups.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "CoordinatorConfig",
    "ExpiredOffsets",
    "FindExpired",
    "OffsetStore",
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


class OffsetStore(Protocol):
    """Durable storage for groups and offsets: `__consumer_offsets`, with its content in memory.

    It serves the groups of loaded partitions only. A write is acknowledged through its `WriteCallback`, at once
    or later; reads see acknowledged writes. `partition` is the number of a partition of `__consumer_offsets`.
    """

    def exists(self) -> bool:
        """Whether `__consumer_offsets` exists."""

    def load(self, partition: int) -> Iterable[GroupSnapshot]:
        """Read the partition into memory. Return its groups, including those with offsets only."""

    def unload(self, partition: int) -> None:
        """Drop the partition from memory; pending writes to it fail with NOT_COORDINATOR."""

    def after_writes(self, group_id: str, done: WriteCallback) -> None:
        """Call `done` after all earlier writes to the group's partition are answered, at once if there are none."""

    def is_idle(self, group_id: str) -> bool:
        """Whether no write to the group's partition is pending."""

    def on_high_watermark_updated(self, partition: int) -> None:
        """Answer the writes below the partition's high watermark, which may have moved."""

    def write_group(self, snapshot: GroupSnapshot, done: WriteCallback) -> None:
        """Append a group metadata record."""

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: WriteCallback
    ) -> None:
        """Append offset commit records."""

    def write_pending_offsets(
        self,
        group_id: str,
        producer: tuple[int, int],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        done: WriteCallback,
    ) -> None:
        """Append offset commit records in a transaction of `producer` (id, epoch).

        They take effect with its commit marker.
        """

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """Commit or drop the producer's pending offsets in `partition`, where its marker was just appended."""

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which a group has offsets in an open transaction."""

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of the group is open, even if tombstones removed those offsets."""

    def remove_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], done: WriteCallback
    ) -> None:
        """Append tombstones for those of the group's offsets that exist at the time of the append.

        Pending and unreplicated offsets are included.
        """

    def remove_expired(self, group_id: str, find: FindExpired, done: WriteCallback) -> None:
        """Append tombstones for the offsets that `find` returns; it is called at the time of the append."""

    def remove_topic(self, topic: str) -> None:
        """Append tombstones for all offsets of a topic."""

    def remove_group(self, group_id: str, done: WriteCallback) -> None:
        """Append tombstones for the group and all its offsets."""

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""

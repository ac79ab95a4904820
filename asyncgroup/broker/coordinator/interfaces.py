"""What the coordinator needs from outside: its settings, timers and a store. Tests give it fakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from asyncgroup.broker.coordinator.requests import GroupSnapshot, OffsetAndMetadata
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire.primitives import Buffer

__all__ = [
    "Clock",
    "CoordinatorConfig",
    "ExpiredOffsets",
    "FindExpired",
    "OffsetStore",
    "OffsetsLog",
    "TimerKey",
    "Timers",
    "WriteCallback",
]

Clock = Callable[[], int]
"""Gives the time of day in ms since 1970."""

WriteCallback = Callable[[ErrorCode], None]
"""Told when a write is durable (NONE) or failed."""


class ExpiredOffsets(NamedTuple):
    """The offsets of a group that expired, and whether the group goes with them."""

    partitions: Collection[TopicPartition] = ()
    group: bool = False


FindExpired: TypeAlias = Callable[[Collection[TopicPartition]], ExpiredOffsets]
"""Given the partitions with commits under way (in the log, not replicated), return what expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Kafka's `group.*` and `offset.*` broker settings; durations in seconds.

    `max_size`: `group.max.size`. `new_member_join_timeout`: how long a JoinGroup of a new member may be
    parked before the member is dropped, as its client may be gone (`classicGroupNewMemberJoinTimeoutMs`, five
    minutes in Kafka). `offsets_retention`: `offsets.retention.minutes`, looked at every `offsets_retention_check_interval`
    (KIP-211).

    Two things that no setting of Kafka's says, as they take there what they take: `offsets_append_delay`, from an append
    to `__consumer_offsets` until it is replicated and answered (what has not arrived by then is lost with its node), and
    `offsets_load_delay`, for reading a partition of it into memory.
    """

    initial_rebalance_delay: float = 0.0
    min_session_timeout: float = 0.0
    max_session_timeout: float = 1800.0
    max_size: int = 2**31 - 1
    new_member_join_timeout: float = 300.0
    offset_metadata_max_size: int = 4096
    offsets_retention: float = 7 * 24 * 3600.0
    offsets_retention_check_interval: float = 600.0
    offsets_append_delay: float = 0.0
    offsets_load_delay: float = 0.0


TimerKey: TypeAlias = tuple[str, *tuple[Hashable, ...]]
"""The kind of a timer, then what it is for. Names that clients choose (groups, transactional ids, topics) never stand
alone: each kind is a namespace of its own.
"""


class Timers(Protocol):
    """Timers by key: scheduling a key again replaces what it was set to."""

    def schedule(self, key: TimerKey, delay: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay` seconds."""

    def cancel(self, key: TimerKey) -> None:
        """Forget the timer; no error if there is none."""


class OffsetsLog(Protocol):
    """The partitions of `__consumer_offsets` as one node has them."""

    def exists(self) -> bool:
        """Whether there is such a topic by now."""

    def read(self, partition: int) -> Iterator[Buffer]:
        """All whole record batches of a partition, in pieces."""

    def append(self, partition: int, batch: bytes) -> int:
        """Append a record batch and give its base offset; raises `Refused`, as when this node does not lead any more."""

    def end_offset(self, partition: int) -> int:
        """Where the next batch will be."""

    def high_watermark(self, partition: int) -> int:
        """The offset up to which all replicas have the log."""


class OffsetStore(Protocol):
    """Where groups and offsets outlive a coordinator: `__consumer_offsets`, and what it says read into memory.

    Reads and writes are for groups of the partitions that were loaded. A write is acknowledged through its `WriteCallback`
    callback, which may come at once or later; reads see what was acknowledged. `partition` is the number of a partition
    of `__consumer_offsets`.
    """

    def exists(self) -> bool:
        """Whether there is anything to load."""

    def load(self, partition: int) -> Iterable[GroupSnapshot]:
        """Read the partition into memory; its groups, those with offsets only included."""

    def unload(self, partition: int) -> None:
        """Forget the partition; what is being written to it fails with NOT_COORDINATOR."""

    def after_writes(self, group_id: str, done: WriteCallback) -> None:
        """Answer when all that was written before to the group's partition is answered, at once if nothing is under way."""

    def is_idle(self, group_id: str) -> bool:
        """Whether nothing is being written to the group's partition."""

    def on_high_watermark_updated(self, partition: int) -> None:
        """The partition's high watermark may have moved: what is below it is answered."""

    def write_group(self, snapshot: GroupSnapshot, done: WriteCallback) -> None:
        """Append a group-metadata record."""

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], done: WriteCallback
    ) -> None:
        """Append offset-commit records."""

    def write_pending_offsets(
        self,
        group_id: str,
        producer: tuple[int, int],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        done: WriteCallback,
    ) -> None:
        """Append offset-commit records of a transaction of `producer` (id, epoch); they count from its commit marker on."""

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """The marker of a producer's transaction was appended to `partition`: its offsets count now, or never."""

    def unstable_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions for which a group has offsets in an open transaction."""

    def has_open_transactions(self, group_id: str) -> bool:
        """Whether a transaction with offsets of a group is open, even if tombstones took the offsets back."""

    def remove_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], done: WriteCallback
    ) -> None:
        """Append tombstones for those of a group's offsets that are there by then, pending and unreplicated ones included."""

    def remove_expired(self, group_id: str, find: FindExpired, done: WriteCallback) -> None:
        """Append tombstones for what `find` returns when their turn to be appended comes."""

    def remove_topic(self, topic: str) -> None:
        """Append tombstones for all offsets of a topic."""

    def remove_group(self, group_id: str, done: WriteCallback) -> None:
        """Append tombstones for the group and all its offsets."""

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group."""

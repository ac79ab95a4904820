"""What the coordinator needs from outside: its settings, timers and a store. Tests give it fakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from asyncgroup.broker.coordinator.calls import CommittedOffset, GroupSnapshot
from asyncgroup.error_codes import ErrorCode
from asyncgroup.model import TopicPartition

__all__ = ["CoordinatorConfig", "OffsetStore", "Timers", "Written"]

Written = Callable[[ErrorCode], None]
"""Told when a write is durable (NONE) or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Kafka's `group.*` and `offset.*` broker settings; durations in seconds.

    `max_size`: `group.max.size`. `new_member_join_timeout`: how long a JoinGroup of a new member may be
    parked before the member is dropped, as its client may be gone (`classicGroupNewMemberJoinTimeoutMs`, five
    minutes in Kafka).
    """

    initial_rebalance_delay: float = 0.0
    min_session_timeout: float = 0.0
    max_session_timeout: float = 1800.0
    max_size: int = 2**31 - 1
    new_member_join_timeout: float = 300.0
    offset_metadata_max_size: int = 4096


class Timers(Protocol):
    """Timers by key: scheduling a key again replaces what it was set to."""

    def schedule(self, key: Hashable, delay: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay` seconds."""

    def cancel(self, key: Hashable) -> None:
        """Forget the timer; no error if there is none."""


class OffsetStore(Protocol):
    """Where groups and offsets outlive a coordinator, as `__consumer_offsets` does in Kafka.

    A write is acknowledged through its `Written` callback, which may come at once or later. Reads see what
    was acknowledged. `partition` is the number of a partition of `__consumer_offsets`.
    """

    def write_group(self, snapshot: GroupSnapshot, done: Written) -> None:
        """Append a group-metadata record."""

    def write_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], done: Written
    ) -> None:
        """Append offset-commit records."""

    def write_pending_offsets(
        self,
        group_id: str,
        producer_id: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        done: Written,
    ) -> None:
        """Append offset-commit records of a transaction; they count from its commit marker on."""

    def end_transaction(self, producer_id: int, partition: int, *, commit: bool) -> None:
        """The marker of a producer's transaction in `partition`: its offsets count now, or never."""

    def pending(self, group_id: str) -> Collection[TopicPartition]:
        """The partitions for which a group has offsets in an open transaction."""

    def remove_group(self, group_id: str) -> None:
        """Append tombstones for the group and all its offsets."""

    def groups(self, partition: int) -> Iterable[GroupSnapshot]:
        """The groups whose records live in `partition`."""

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """The committed offsets of a group."""

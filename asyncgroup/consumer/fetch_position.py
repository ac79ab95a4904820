"""The fetcher's part of a partition's position: topic id, validated leader epoch, preferred read replica.

Pure state; the offset itself is the `RecordBuffer`'s. Java keeps the same in `SubscriptionState.TopicPartitionState`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from asyncgroup.cluster.metadata import PartitionInfo
from asyncgroup.wire.messages import NO_UUID

__all__ = ["EpochEndOffset", "FetchPosition"]


class EpochEndOffset(NamedTuple):
    """The end offset of an epoch in the leader's log; -1 for both if the leader does not know."""

    epoch: int
    end_offset: int

    @property
    def is_known(self) -> bool:
        """Whether the leader knows the epoch's end."""
        return self.epoch >= 0 and self.end_offset >= 0


class FetchPosition:
    """Where and under which conditions a partition is fetched."""

    __slots__ = (
        "avoided_replica",
        "avoided_until",
        "lease_end",
        "on_topic_id",
        "preferred_replica",
        "topic_id",
        "validated_epoch",
    )

    def __init__(self) -> None:
        self.preferred_replica = -1
        """The follower to read from (KIP-392); -1 for the leader."""
        self.lease_end = float("-inf")
        """Loop time until which `preferred_replica` holds; infinity before the first fetch from that follower."""
        self.avoided_replica = -1
        """The follower that failed last; it is not read from before `avoided_until`, even if the leader advises it."""
        self.avoided_until = float("-inf")
        """Loop time."""
        self.on_topic_id: Callable[[UUID], None] = lambda _topic_id: None
        """Called with the topic id when it becomes known."""
        self.seek()

    def __repr__(self) -> str:
        return f"<FetchPosition: replica {self.preferred_replica}, validated in epoch {self.validated_epoch}>"

    def seek(self) -> None:
        """Forget what was known about the former position: topic id and validated epoch."""
        self.topic_id = NO_UUID
        """The topic that the position belongs to (KIP-516); nil until it is known, and where brokers have no topic ids."""
        self.validated_epoch = -1
        """The newest leader epoch in which the position was validated (KIP-320); -1 for none."""

    # --- topic ids ----------------------------------------------------------------------------------------------

    def update_topic_id(self, topic_id: UUID) -> bool:
        """Adopt the topic id if none is known yet; return True if it differs from the known one (a recreated topic)."""
        if topic_id in (self.topic_id, NO_UUID):
            return False
        if self.topic_id == NO_UUID:
            self.topic_id = topic_id
            self.on_topic_id(topic_id)
            return False
        return True

    # --- leader epochs ------------------------------------------------------------------------------------------

    def must_validate(self, fetched_epoch: int, info: PartitionInfo | None) -> bool:
        """Return whether the leader has to validate a position whose previous record has `fetched_epoch` (-1: unknown).

        A leader never truncates what was written in its own epoch, so only a leader of a later epoch is asked
        (`SubscriptionState.maybeValidatePosition` in Java).
        """
        if fetched_epoch < 0 or info is None:
            return False
        return max(fetched_epoch, self.validated_epoch) < info.leader_epoch

    # --- preferred read replica ---------------------------------------------------------------------------------

    def update_preferred_replica(self, replica: int, lease_end: float) -> None:
        """Read from a follower until the loop time `lease_end`, as the leader advises."""
        self.preferred_replica = replica
        self.lease_end = lease_end

    def begin_lease(self, now: float, seconds: float) -> None:
        """Start the lease at the first fetch from the preferred replica; later calls change nothing."""
        if self.lease_end == float("inf"):
            self.lease_end = now + seconds

    def avoid_replica(self, now: float, seconds: float) -> None:
        """Go back to the leader, and ignore advice to read from this replica for `seconds`."""
        self.avoided_replica = self.preferred_replica
        self.avoided_until = now + seconds
        self.preferred_replica = -1

    def is_avoiding_replica(self, now: float) -> bool:
        """Return whether a replica is avoided at the moment."""
        return now < self.avoided_until

    def clear_preferred_replica(self) -> bool:
        """Go back to the leader; return False if the position was at the leader already."""
        replica, self.preferred_replica = self.preferred_replica, -1
        return replica >= 0

    def select_read_replica(self, leader: int, now: float, info: PartitionInfo | None) -> int:
        """Return the node to read from: the preferred replica while its lease lasts and it is a replica, else the leader.

        A preferred replica that no longer qualifies is cleared.
        """
        if self.preferred_replica >= 0 and (
            now >= self.lease_end or info is None or self.preferred_replica not in info.replicas
        ):
            self.preferred_replica = -1
        return self.preferred_replica if self.preferred_replica >= 0 else leader

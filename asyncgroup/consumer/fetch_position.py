"""Where a partition is read, and for which log its position holds. Pure state of the fetcher's side."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from asyncgroup.cluster.metadata import PartitionInfo
from asyncgroup.wire.messages import NO_UUID

__all__ = ["FetchPosition"]


class FetchPosition:
    """What the fetchers remember of a partition.

    - `topic_id`: the topic that the position belongs to; one of another id with the same name is another topic, made
      after ours was deleted (KIP-516). Nil while nobody has looked, and where brokers know no ids.
    - `on_topic_id` hears which topic that is, when it is found out.
    - `validated_epoch`: the leader epoch whose leader has confirmed the position, or needs not (KIP-320).
    - `preferred_replica`: the follower to read from, -1 for the leader; the leader's advice holds until `lease_end`, the loop's
      time in seconds (KIP-392), infinity before the first fetch from the follower.
    - `avoided_replica`: a follower that was no help, not to be read from before `avoided_until`, whatever the leader advises.
    """

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
        self.preferred_replica = self.avoided_replica = -1
        self.lease_end = self.avoided_until = float("-inf")
        self.on_topic_id: Callable[[UUID], None] = lambda _topic_id: None
        self.seek()

    def __repr__(self) -> str:
        return f"<FetchPosition: replica {self.preferred_replica}, validated in epoch {self.validated_epoch}>"

    def seek(self) -> None:
        """The position is a new one: it belongs to whatever topic there is, and nothing was fetched before it."""
        self.topic_id = NO_UUID
        self.validated_epoch = -1

    # --- topic ids ----------------------------------------------------------------------------------------------

    def update_topic_id(self, topic_id: UUID) -> bool:
        """Whether the topic has another id than the one that the position belongs to; takes over the first id."""
        if topic_id in (self.topic_id, NO_UUID):
            return False
        if self.topic_id == NO_UUID:
            self.topic_id = topic_id
            self.on_topic_id(topic_id)
            return False
        return True

    # --- leader epochs ------------------------------------------------------------------------------------------

    def must_validate(self, fetched_epoch: int, info: PartitionInfo | None) -> bool:
        """Whether the leader has to confirm a position behind a record of `fetched_epoch` (-1: unknown).

        A leader never truncates what was written in its own epoch, so only one of a later epoch is asked
        (`SubscriptionState.maybeValidatePosition` in Java).
        """
        if fetched_epoch < 0 or info is None:
            return False
        return max(fetched_epoch, self.validated_epoch) < info.leader_epoch

    # --- the closest replica ------------------------------------------------------------------------------------

    def update_preferred_replica(self, replica: int, lease_end: float) -> None:
        """The leader advises to read from a follower."""
        self.preferred_replica, self.lease_end = replica, lease_end

    def begin_lease(self, now: float, seconds: float) -> None:
        """The preferred replica is asked: the lease begins, unless it has begun before."""
        if self.lease_end == float("inf"):
            self.lease_end = now + seconds

    def avoid_replica(self, now: float, seconds: float) -> None:
        """The preferred replica is no help: back to the leader, and no other advice to read from it for a while."""
        self.avoided_replica, self.avoided_until = self.preferred_replica, now + seconds
        self.preferred_replica = -1

    def is_avoiding_replica(self, now: float) -> bool:
        """Whether there is a follower that must not be advised now."""
        return now < self.avoided_until

    def clear_preferred_replica(self) -> bool:
        """Back to the leader; False if it was the leader already."""
        known, self.preferred_replica = self.preferred_replica, -1
        return known >= 0

    def select_read_replica(self, leader: int, now: float, info: PartitionInfo | None) -> int:
        """The node to read from: the preferred replica while its lease lasts and it is one, else the leader."""
        if self.preferred_replica >= 0 and (
            now >= self.lease_end or info is None or self.preferred_replica not in info.replicas
        ):
            self.preferred_replica = -1
        return self.preferred_replica if self.preferred_replica >= 0 else leader

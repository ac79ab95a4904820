"""What decides whether, where and how a partition is fetched: its state, source, failures, and share of the memory.

Pure state that knows nothing of the partition itself. The `Budget` is shared by the partitions of a client.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from asyncgroup.cluster.metadata import PartitionInfo
from asyncgroup.wire.messages import NO_UUID

__all__ = [
    "NO_NODE",
    "Budget",
    "FetchFailures",
    "FetchSource",
    "FetchState",
    "PartitionBudget",
    "ReadRange",
]

NO_NODE: Final = -1
"""`TopicPartitionState.node_id` while the partition is fetched from no broker."""


class FetchState(Enum):
    """What a partition waits for (`SubscriptionState.FetchState` in Java). Pauses and stalls are flags beside it.

    FAILED and ENDED are never a partition's `fetch_state`: only `TopicPartitionState.state`, for its repr and for tests,
    returns them.
    """

    INITIALIZING = "not given to a scheduler yet"
    AWAIT_RESET = "its offset is looked up: out of range, or a seek by name or time"
    AWAIT_VALIDATION = "its leader has to validate the position before more is fetched (KIP-320)"
    FETCHING = "fetched from `node_id`"
    LEADERLESS = "waits until `retry_at` for its next try, or for a new leader"
    FAILED = "its reader has to take an error first"
    ENDED = "closed"


class FetchSource:
    """What a partition is fetched from: topic id, validated leader epoch, preferred read replica.

    The position itself is the `RecordBuffer`'s. Java keeps the same in `SubscriptionState.TopicPartitionState`.
    """

    __slots__ = (
        "avoided_replica",
        "avoided_until",
        "lease_end",
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
        self.forget()

    def __repr__(self) -> str:
        return f"<FetchSource: replica {self.preferred_replica}, validated in epoch {self.validated_epoch}>"

    def forget(self) -> None:
        """Forget what was known about the former position: topic id and validated epoch."""
        self.topic_id = NO_UUID
        """The topic that the position belongs to (KIP-516); nil until it is known, and where brokers have no topic ids."""
        self.validated_epoch = -1
        """The newest leader epoch in which the position was validated (KIP-320); -1 for none."""

    # --- leader epochs ------------------------------------------------------------------------------------------

    def must_validate(self, fetched_epoch: int, info: PartitionInfo | None) -> bool:
        """Return whether the leader has to validate a position whose previous record has `fetched_epoch` (-1: unknown).

        A leader never truncates what was written in its own epoch, so only a leader of a later epoch is asked
        (`SubscriptionState.maybeValidatePosition` in Java).
        """
        if fetched_epoch < 0 or info is None:
            return False
        # a position is validated once in an epoch: its leader does not truncate what it has confirmed
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
        """Go back to the leader; return False if it was read from already."""
        replica, self.preferred_replica = self.preferred_replica, -1
        return replica >= 0

    def may_read_replica(self, now: float, info: PartitionInfo | None) -> bool:
        """Return whether the preferred replica may be read from: while its lease lasts and it is a replica."""
        return now < self.lease_end and info is not None and self.preferred_replica in info.replicas


class ReadRange:
    """The offsets that a reader may have seen: from the lowest one at which it began to the highest position."""

    __slots__ = ("furthest", "lowest")

    def __init__(self, offset: int) -> None:
        self.lowest = offset
        """The lowest offset at which reading ever began."""
        self.furthest = offset
        """The highest position before a jump; the position now may be higher."""

    def __repr__(self) -> str:
        return f"<ReadRange from {self.lowest}, up to {self.furthest} before the last jump>"

    def jump(self, position: int, offset: int) -> None:
        """Reading moves from a position to an offset."""
        self.lowest = min(self.lowest, offset)
        self.furthest = max(self.furthest, position)


class FetchFailures:
    """Consecutive failures of a partition since its last successful fetch."""

    __slots__ = (
        "before_new_leader",
        "began_at",
        "count",
        "error",
        "is_ahead",
        "is_clear",
        "leader",
        "leader_in_doubt",
        "metadata_outdated_since",
        "redirected",
        "reported",
        "since",
    )

    def __init__(self) -> None:
        self.is_clear = True
        """Whether there was none since `clear`, so that this would change nothing; most fetches ask no more."""
        self.count = 0
        self.error: Exception | None = None
        """The last failure's error."""
        self.began_at = float("-inf")
        """Loop time of the first failure."""
        self.before_new_leader = 0
        """Failures that a former leader caused; its pauses do not count against the new leader."""
        self.reported = 0
        """The count when an error was last raised to the reader."""
        self.redirected = False
        """Whether the partition was sent to another node without a pause since its last successful fetch."""
        self.since = float("-inf")
        """Loop time of the first failure at the current leader."""
        self.metadata_outdated_since = float("inf")
        """Loop time at which the metadata became older than the position; infinity if it is not older."""
        self.leader = (-1, -1)
        """Node and leader epoch that the metadata named at the last failure."""
        self.is_ahead = False
        """Whether the metadata is newer than what the leader knows: it needs no refresh before the next try."""
        self.leader_in_doubt = False
        """Whether it had no leader, or its leader did not answer, since it was fetched or its leader changed."""

    def __repr__(self) -> str:
        return f"<FetchFailures: {self.count}, {self.reported} of them reported>"

    def add(self, error: Exception, now: float) -> None:
        """Count a failure."""
        # `began_at` stays until a fetch succeeds, and `since` begins again with another leader
        if not self.count:
            self.began_at = self.since = now
        self.count += 1
        self.error = error
        self.is_clear = False

    def redirect(self) -> None:
        """The partition is sent to another node without a pause."""
        self.redirected = True
        self.is_clear = False

    def doubt_leader(self) -> None:
        """The partition has no leader, or the leader did not answer."""
        self.leader_in_doubt = True
        self.is_clear = False

    def metadata_outdated(self, now: float) -> None:
        """The metadata is older than the position."""
        # the first time counts: newer metadata has had that long to come
        self.metadata_outdated_since = min(self.metadata_outdated_since, now)
        self.is_clear = False

    def clear(self) -> None:
        """The partition was fetched."""
        self.is_clear = True
        self.count = 0
        self.error = None
        self.before_new_leader = 0
        self.reported = 0
        self.metadata_outdated_since = float("inf")
        self.redirected = False
        self.leader_in_doubt = False


class PartitionBudget(Protocol):
    """How much of a partition may be held and fetched."""

    @property
    def fetch_size(self) -> int:
        """Bytes to fetch at once, for record batches of any size."""

    def size_for(self, batch: int, /) -> int:
        """Return the bytes to fetch at once if record batches may have `batch` bytes, 0 if unknown."""

    def allows(self, held: int, size: int, /) -> bool:
        """Return whether a partition that holds `held` bytes (in-flight ones included) may be fetched, `size` at once."""

    def may_resume(self, held: int, /) -> bool:
        """Return whether a stalled partition may be fetched again."""


class Budget:
    """`total` bytes for all partitions of a client; each of the `partition_count` partitions may hold an even share.

    A fetch asks for at most half a share of a partition, and only while its buffered plus in-flight bytes leave room for
    that in its share. Where record batches are larger, it asks for a whole one: of what does not fit in the requested
    bytes, brokers return the first partition's only (KIP-74), and a thousand partitions would be read one after another.
    A partition that holds nothing may always be fetched, so that each gets at least one batch. A response may have what is
    left of the total, so that many such batches do not exceed it.
    """

    __slots__ = ("_max_fetch_size", "_partition_count", "fetch_size", "share", "total", "used", "version")

    def __init__(self, total: int, max_fetch_size: int) -> None:
        self.total = total
        self._max_fetch_size = max_fetch_size
        self.used = 0
        """Bytes in the buffers of the partitions."""
        self.version = 0
        """Changes with the shares."""
        self.partition_count = 0

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return self._partition_count

    @partition_count.setter
    def partition_count(self, number: int) -> None:
        self._partition_count = number
        # fetches that were planned with the former size are planned again
        self.version += 1
        self.share = self.total // max(1, number)
        """Bytes that each partition may hold."""
        self.fetch_size = max(1, min(self._max_fetch_size, self.share // 2))
        """Bytes to fetch at once: at most half a share, so that one batch can be handled while the next is fetched."""

    def size_for(self, batch: int, /) -> int:
        """Return the bytes to fetch at once: `fetch_size`, or a whole record batch of `batch` bytes."""
        return self.fetch_size if batch <= self.fetch_size else min(self._max_fetch_size, batch)

    def allows(self, held: int, size: int = 0, /) -> bool:
        """Return whether a partition that holds `held` bytes (in-flight ones included) may be fetched.

        `size` are the bytes to fetch at once, if more than `fetch_size`.
        """
        return held == 0 or held + max(size, self.fetch_size) <= self.share

    def may_resume(self, held: int) -> bool:
        """Return whether a stalled partition may be fetched again: at least half of its share is free."""
        return held <= self.share // 2

    def response_limit(self, most: int, brokers: int) -> int:
        """Return the bytes, at most `most`, that a response of one of the brokers may have with several batches.

        With less than a batch left a response has one batch: no partition has to wait for what others hold.
        """
        # `used` may exceed the total, as an empty partition may always be fetched
        return max(1, min(most, (self.total - self.used) // max(1, brokers)))

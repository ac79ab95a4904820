"""Decide when to refresh metadata because leaders of partitions failed or are unknown. Pure state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster.backoff import JITTER, Backoff
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ClientConfig
from asyncgroup.consumer.fetch_state import FetchState
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition

__all__ = ["EAGER_SECONDS", "FOLLOWER_SECONDS", "OUTDATED_SECONDS", "SILENT_SECONDS", "LeaderWatch"]

EAGER_SECONDS: Final = 20.0
"""Seconds after a partition's first failure during which metadata is refreshed every `retry_backoff`.

A controller needs `broker.session.timeout.ms` (9 s) to detect a dead broker and elect new leaders; with ZooKeeper it was
`zookeeper.session.timeout.ms` (18 s). Until then metadata names the old leader. Later the pauses double.
"""

SILENT_SECONDS: Final = 1.0
"""Seconds after `max_wait` without a response before metadata is refreshed, and the interval of refreshes after that."""

FOLLOWER_SECONDS: Final = 5.0
"""Seconds after `max_wait` without a response of a follower before the leader is asked instead (KIP-392)."""

OUTDATED_SECONDS: Final = 10.0
"""Seconds during which metadata with an older leader epoch than the position's is considered outdated.

A broker that was stopped believes to be the leader until it has caught up with the metadata log. But the epoch of a
committed offset may also come from a deleted topic of the same name, where brokers have no topic ids; hence the limit.
"""

_SHORTEST: Final = 0.02
"""Minimum seconds between two metadata requests, however short `retry_backoff` is."""

_STALE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Error codes of a broker that no longer leads a partition: the metadata is outdated."""


class LeaderWatch:
    """Schedules metadata refreshes while partitions have no leader that can be fetched from.

    A partition is in doubt while it has no leader, and after its leader did not answer, until it is fetched or its leader
    changes. Metadata is not refreshed for a partition that is not to be fetched. After the first error code of a partition
    metadata is refreshed at once, after further ones only when the partition is tried again.
    """

    def __init__(
        self,
        view: Callable[[], ClusterView],
        config: ClientConfig,
        rng: random.Random,
    ) -> None:
        self._view = view
        self._random = rng
        self._interval = max(_SHORTEST, config.retry_backoff)  # seconds, during EAGER_SECONDS
        self._backoff = Backoff(self._interval, max(self._interval, config.retry_backoff_max), rng)
        """Of refreshes after EAGER_SECONDS."""
        self._in_doubt: dict[TopicPartition, TopicPartitionState] = {}
        self._is_stale = False  # an error code has shown that the metadata is outdated
        self._next = float("-inf")  # earliest loop time of the next refresh

    def __repr__(self) -> str:
        return f"<LeaderWatch: {', '.join(map(str, self._in_doubt)) or 'none in doubt'}>"

    def leader_seen(self, partition: TopicPartitionState) -> None:
        """Remember the current leader while the partition waits: a change of leader ends the wait."""
        partition.fetch_failures.leader = self._leader(partition.tp)

    def failed(self, partition: TopicPartitionState, error: Exception, now: float) -> None:
        """Record that a fetch has failed, or that the partition has no usable leader."""
        failures = partition.fetch_failures
        self.leader_seen(partition)
        if failures.count - failures.before_new_leader <= 1:
            failures.since = now
        is_known = self._view().partition(*partition.tp) is not None
        is_leaderless = is_known and (failures.leader[0] < 0 or self.is_outdated(partition, now))
        if is_leaderless or isinstance(error, TransportError):
            self._in_doubt[partition.tp] = partition
        elif isinstance(error, BrokerError) and error.code in _STALE and failures.count == 1:
            self._is_stale = True

    def discard(self, partition: TopicPartitionState) -> None:
        """Forget a partition that is no longer fetched, or is fetched from another leader."""
        self._in_doubt.pop(partition.tp, None)

    def has_new_leader(self, partition: TopicPartitionState) -> bool:
        """Return whether the metadata names another leader or epoch than at the partition's last failure."""
        leader = self._leader(partition.tp)
        return leader[0] >= 0 and leader != partition.fetch_failures.leader

    def is_outdated(self, partition: TopicPartitionState, now: float) -> bool:
        """Return whether the metadata's leader epoch is older than the epoch of the last record before the position.

        Such a leader may lack the position and answer OFFSET_OUT_OF_RANGE. Java does not fetch from it either
        (`Metadata.updateLastSeenEpochIfNewer`, called for committed offsets in `ConsumerCoordinator`).
        """
        info, failures = self._view().partition(*partition.tp), partition.fetch_failures
        if info is None:
            return False
        if not 0 <= info.leader_epoch < partition.fetched_epoch:
            failures.metadata_outdated_since = float("inf")
            return False
        # not `failures.since`: the first failure may have had another reason, long ago
        failures.metadata_outdated_since = min(failures.metadata_outdated_since, now)
        return now < failures.metadata_outdated_since + OUTDATED_SECONDS

    def leader_assigned(self, partition: TopicPartitionState) -> None:
        """Clear the doubt when a new leader is fetched from next: only the former one did not answer."""
        if partition.tp in self._in_doubt and self.has_new_leader(partition):
            partition.fetch_failures.leader_changed(self._leader(partition.tp)[1])
            self.discard(partition)

    def _leader(self, tp: TopicPartition) -> tuple[int, int]:
        view = self._view()
        info = view.partition(*tp)
        return view.leader(tp), -1 if info is None else info.leader_epoch

    def next_refresh_at(self) -> float:
        """Return the loop time at which metadata should be refreshed; infinity without a reason to refresh."""
        for partition in list(self._in_doubt.values()):
            if not partition.fetch_failures.count or not _is_waiting(partition):
                del self._in_doubt[partition.tp]
        return self._next if self._in_doubt or self._is_stale else float("inf")

    def refresh_started(self, now: float) -> None:
        """Record that a refresh starts now, and schedule the next one."""
        self._is_stale = False
        if any(
            now - partition.fetch_failures.since <= EAGER_SECONDS for partition in self._in_doubt.values()
        ):
            self._backoff.reset()
            pause = self._interval * self._random.uniform(1 - JITTER, 1 + JITTER)
        else:
            pause = self._backoff.next()
        self._next = now + pause


def _is_waiting(partition: TopicPartitionState) -> bool:
    """Return whether a partition is leaderless, in flight or fetchable, so that its leader matters."""
    is_leaderless = partition.fetch_state is FetchState.LEADERLESS and partition.retry_at < float("inf")
    return is_leaderless or partition.reserved > 0 or partition.is_fetchable

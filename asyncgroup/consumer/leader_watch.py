"""When to ask for metadata because partitions' leaders failed or are unknown."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.backoff import JITTER, Backoff
from asyncgroup.config import ClientConfig
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import BrokerError, ErrorCode, TransportError
from asyncgroup.model import TopicPartition

__all__ = ["EAGER_SECONDS", "FOLLOWER_SECONDS", "OUTDATED_SECONDS", "SILENT_SECONDS", "LeaderWatch"]

EAGER_SECONDS: Final = 20.0
"""How long after a partition's first failure metadata is asked for at every `retry_backoff`.

A controller needs `broker.session.timeout.ms` (9 s) to find a dead broker and elect new leaders; with ZooKeeper it was
`zookeeper.session.timeout.ms` (18 s). Until then every answer names the old leader. Later the pauses double.
"""

SILENT_SECONDS: Final = 1.0
"""How long after `max_wait` a broker may owe an answer before metadata is asked for, and how often then."""

FOLLOWER_SECONDS: Final = 5.0
"""How long after `max_wait` a follower may owe an answer before the leader is asked instead (KIP-392)."""

OUTDATED_SECONDS: Final = 10.0
"""How long metadata with an older leader epoch than a position's is not believed.

A broker that was stopped takes itself for the leader until it has read what happened meanwhile. But the epoch of a
committed offset may also be that of a deleted topic with the same name, where brokers know no topic ids.
"""

_SHORTEST: Final = 0.02
"""Seconds between two requests for metadata at the least, whatever `retry_backoff` is."""

_STALE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Answers of a broker that lost a partition: the metadata is out of date."""


class LeaderWatch:
    """Says when metadata should be asked for next, while partitions wait for a leader that can be fetched from.

    A partition is in doubt while it has no leader, and from the moment on that its leader did not answer, until it is
    fetched or its leader changes. `is_waiting` says whether a partition waits for its next try: one that is neither
    asked for nor wants to be is not worth a request. An error code is an answer: for its first one metadata is asked for
    at once, for the next ones when the partition is tried again.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ClientConfig,
        rng: random.Random,
        is_waiting: Callable[[PartitionConsumer], bool],
    ) -> None:
        self._cluster, self._random, self._is_waiting = cluster, rng, is_waiting
        self._pace = max(_SHORTEST, config.retry_backoff)
        self._later = Backoff(self._pace, max(self._pace, config.retry_backoff_max), rng)
        self._in_doubt: dict[TopicPartition, PartitionConsumer] = {}
        self._is_stale = False
        self._next = float("-inf")

    def __repr__(self) -> str:
        return f"<LeaderWatch: {', '.join(map(str, self._in_doubt)) or 'no doubts'}>"

    def leader_seen(self, consumer: PartitionConsumer) -> None:
        """It waits for its next try: only a leader that differs from the present one shortens the wait."""
        consumer.fetch_failures.leader = self._leader(consumer.tp)

    def failed(self, consumer: PartitionConsumer, error: Exception) -> None:
        """Its fetch has failed, or it has no leader to be fetched from."""
        failures = consumer.fetch_failures
        self.leader_seen(consumer)
        if failures.count - failures.before_new_leader <= 1:
            failures.since = asyncio.get_running_loop().time()
        is_known = self._cluster.view.partition(*consumer.tp) is not None
        is_leaderless = is_known and (failures.leader[0] < 0 or self.is_outdated(consumer))
        if is_leaderless or isinstance(error, TransportError):
            self._in_doubt[consumer.tp] = consumer
        elif isinstance(error, BrokerError) and error.code in _STALE and failures.count == 1:
            self._is_stale = True

    def discard(self, consumer: PartitionConsumer) -> None:
        """It is fetched no longer, or from another leader."""
        self._in_doubt.pop(consumer.tp, None)

    def has_new_leader(self, consumer: PartitionConsumer) -> bool:
        """Whether the metadata names another leader, or a newer epoch, than when the partition failed last."""
        leader = self._leader(consumer.tp)
        return leader[0] >= 0 and leader != consumer.fetch_failures.leader

    def is_outdated(self, consumer: PartitionConsumer) -> bool:
        """Whether the metadata names the leader of an older epoch than that of the last record before the position.

        Such a leader may lack the position and answer OFFSET_OUT_OF_RANGE. Java does not ask it either
        (`Metadata.updateLastSeenEpochIfNewer`, of committed offsets in `ConsumerCoordinator`).
        """
        info, failures = self._cluster.view.partition(*consumer.tp), consumer.fetch_failures
        if info is None:
            return False
        if not 0 <= info.leader_epoch < consumer.fetched_epoch:
            failures.metadata_outdated_since = float("inf")
            return False
        now = asyncio.get_running_loop().time()
        # not since the first failure: that may have been another trouble, long ago
        failures.metadata_outdated_since = min(failures.metadata_outdated_since, now)
        return now < failures.metadata_outdated_since + OUTDATED_SECONDS

    def leader_assigned(self, consumer: PartitionConsumer) -> None:
        """Another leader is asked next: that the former one did not answer says nothing about it."""
        if consumer.tp in self._in_doubt and self.has_new_leader(consumer):
            consumer.fetch_failures.leader_changed(self._leader(consumer.tp)[1])
            self.discard(consumer)

    def _leader(self, tp: TopicPartition) -> tuple[int, int]:
        view = self._cluster.view
        info = view.partition(*tp)
        return view.leader(tp), -1 if info is None else info.leader_epoch

    def next_refresh_at(self) -> float:
        """The loop's time at which metadata should be asked for; infinity while there is no reason to."""
        for consumer in list(self._in_doubt.values()):
            if not consumer.fetch_failures.count or not self._is_waiting(consumer):
                del self._in_doubt[consumer.tp]
        return self._next if self._in_doubt or self._is_stale else float("inf")

    def refresh_started(self) -> None:
        """Metadata is asked for now."""
        self._is_stale = False
        now = asyncio.get_running_loop().time()
        if any(now - consumer.fetch_failures.since <= EAGER_SECONDS for consumer in self._in_doubt.values()):
            self._later.reset()
            pause = self._pace * self._random.uniform(1 - JITTER, 1 + JITTER)
        else:
            pause = self._later.next()
        self._next = now + pause

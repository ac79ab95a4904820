"""When a partition that could not be fetched is tried again: pauses between its tries, and refreshes of the metadata.

Pure state; `PartitionStates` applies it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from asyncgroup.checks import DURATION_OR_ZERO
from asyncgroup.cluster.metadata import ClusterView, leader_and_epoch
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_state import FetchFailures, FetchState
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_warnings import PartitionWarnings
from asyncgroup.errors import BrokerError, ErrorCode, RetriesExhausted, TransportError
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff, pause_function

__all__ = [
    "FOLLOWER_SECONDS",
    "OUTDATED_SECONDS",
    "SILENT_SECONDS",
    "LeaderWatch",
    "Retries",
]

_log = logging.getLogger("asyncgroup.consumer")

EAGER_SECONDS: Final = 20.0
"""Seconds after a partition's first failure during which metadata is refreshed every `retry_backoff`.

A controller needs `broker.session.timeout.ms` (9 s) to detect a dead broker and elect new leaders; with ZooKeeper it was
`zookeeper.session.timeout.ms` (18 s). Until then metadata names the old leader. Later the pauses double.
"""

SILENT_SECONDS: Final = 1.0
"""Seconds without a response of a leader, which may wait for `max_wait`, before metadata is refreshed, and the interval of
refreshes after that."""

FOLLOWER_SECONDS: Final = 5.0
"""Seconds after `max_wait` without a response of a follower before the leader is asked instead (KIP-392)."""

OUTDATED_SECONDS: Final = 10.0
"""Seconds during which metadata with an older leader epoch than the position's is considered outdated.

A broker that was stopped believes to be the leader until it has caught up with the metadata log. But the epoch of a
committed offset may also come from a deleted topic of the same name, where brokers have no topic ids; hence the limit.
"""

ELECTION_SECONDS: Final = 0.02
"""The first pause in seconds during an election; the next ones double up to `retry_backoff`.

One broker names the new leader some milliseconds before that one knows it. The answer does not cost much: the leader has
nothing to read for it.
"""

AHEAD_TRIES: Final = 2
"""How often a leader that does not know its epoch is asked again before metadata is refreshed: it may also be that of a topic
which was deleted and created again."""

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


_ELECTION: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Error codes during an election: the metadata of one broker may name a leader some time before that one leads."""


class Retries:
    """Applies `fetch_retry_max` and `fetch_retry_backoff`; `backoff` creates the default backoff."""

    def __init__(self, config: ConsumerConfig, backoff: Callable[[], RetryBackoff]) -> None:
        self._retry_max = config.fetch_retry_max
        pauses = config.fetch_retry_backoff
        self._custom_backoff = None if pauses is None else pause_function(pauses)
        self._backoff = backoff
        self._has_logged_bad_backoff = False
        self._warnings = PartitionWarnings()

    def record_failure(
        self, tp: TopicPartition, failures: FetchFailures, error: Exception, now: float
    ) -> RetriesExhausted | None:
        """Count a failure; return the error to raise to the reader once `fetch_retry_max` is exceeded, else None."""
        failures.add(error, now)
        if (others := self._warnings.others(tp, failures.count, error, now)) is not None:
            _log.warning("%s: %d failures in a row, the last one: %s%s", tp, failures.count, error, others)
        tries = failures.count - failures.reported
        if self._retry_max is None or tries <= self._retry_max:
            return None
        failures.reported = failures.count
        return RetriesExhausted(tp, tries, error)

    def record_raised(self, failures: FetchFailures, error: Exception, now: float) -> None:
        """Count a failure whose error is raised to the reader unchanged."""
        failures.add(error, now)
        failures.reported = failures.count

    def pause(self, failures: FetchFailures, *, in_election: bool = False) -> float:
        """Return the seconds to wait after the last failure.

        During an election (`LeaderWatch.in_election`) they begin with `ELECTION_SECONDS` and grow up to `retry_backoff`, unless
        they have to last for `fetch_retry_max`. Java's consumer does not let them grow beyond it either
        (`FetchCollector.handleInitializeErrors`).
        """
        earlier = max(0, failures.count - 1)
        if self._custom_backoff is not None:
            try:
                pause = self._custom_backoff(earlier)
                if DURATION_OR_ZERO[0](pause) and math.isfinite(pause):
                    return float(pause)
                problem: object = f"it returned {pause!r}"
            except Exception as error:  # noqa: BLE001  a user's function must not stop the fetching
                problem = error
            self._log_bad_backoff(problem)
        tries = max(0, earlier - failures.before_new_leader)
        if in_election and self._retry_max is None:
            return self._backoff().after_first(ELECTION_SECONDS, tries)
        return self._backoff().after(tries)

    def _log_bad_backoff(self, problem: object) -> None:
        """Log once per client: the function may be wrong at every failure of every partition."""
        if not self._has_logged_bad_backoff:
            self._has_logged_bad_backoff = True
            _log.error(
                "fetch_retry_backoff %r did not return a pause in seconds; using retry_backoff instead: %r",
                self._custom_backoff,
                problem,
            )


class LeaderWatch:
    """Schedules metadata refreshes while partitions have no leader that can be fetched from.

    A partition is in doubt while it has no leader, and after its leader did not answer, until it is fetched or its leader
    changes. Metadata is not refreshed for a partition that is not to be fetched. After the first error code of a partition
    metadata is refreshed at once, after further ones only when the partition is tried again.
    """

    def __init__(
        self,
        view: Callable[[], ClusterView],
        partitions: Mapping[TopicPartition, TopicPartitionState],
        config: ConsumerConfig,
        rng: random.Random,
    ) -> None:
        self._view = view
        self._partitions = partitions
        self._interval = max(_SHORTEST, config.retry_backoff)  # seconds, during EAGER_SECONDS
        self._backoff = RetryBackoff(self._interval, max(self._interval, config.retry_backoff_max), rng)
        """Of refreshes after EAGER_SECONDS."""
        self._is_stale = False  # an error code has shown that the metadata is outdated
        self._next = float("-inf")  # earliest loop time of the next refresh

    def __repr__(self) -> str:
        return f"<LeaderWatch: {', '.join(str(p.tp) for p in self._in_doubt()) or 'none in doubt'}>"

    def _in_doubt(self) -> Iterator[TopicPartitionState]:
        partitions = self._partitions.values()
        return (p for p in partitions if p.fetch_failures.leader_in_doubt and _needs_leader(p))

    def leader_seen(self, partition: TopicPartitionState) -> None:
        """Remember the current leader while the partition waits: a change of leader ends the wait."""
        partition.fetch_failures.leader = leader_and_epoch(self._view(), partition.tp)

    def failed(self, partition: TopicPartitionState, error: Exception, now: float) -> None:
        """Record that a fetch has failed, or that the partition has no usable leader."""
        failures = partition.fetch_failures
        self.leader_seen(partition)
        if failures.count - failures.before_new_leader <= 1:
            failures.since = now
        is_known = self._view().partition(*partition.tp) is not None
        is_leaderless = is_known and failures.leader[0] < 0
        if not is_leaderless:
            self.note_metadata_age(partition, now)
        if is_leaderless or self.is_outdated(partition, now) or isinstance(error, TransportError):
            failures.doubt_leader()
        elif isinstance(error, BrokerError) and error.code in _STALE and failures.count == 1:
            self._is_stale = True

    def in_election(self, partition: TopicPartitionState, error: Exception, now: float) -> bool:
        """Return whether an error belongs to a leader election that has lasted for at most `EAGER_SECONDS`.

        Call it before the failure is counted.
        """
        failures = partition.fetch_failures
        # the first one at a new leader: `since` is still that of the former one
        is_first = 0 < failures.count == failures.before_new_leader
        is_code = isinstance(error, BrokerError) and error.code in _ELECTION
        return is_code and (is_first or now - failures.since <= EAGER_SECONDS)

    def is_ahead(self, partition: TopicPartitionState, error: Exception) -> bool:
        """Return whether the leader does not know its election yet; asked after the failure was counted."""
        failures = partition.fetch_failures
        is_unknown = isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_LEADER_EPOCH
        return is_unknown and failures.count - failures.before_new_leader <= AHEAD_TRIES

    def lookup_failed(self, partition: TopicPartitionState, error: Exception, now: float) -> bool:
        """Record that an offset lookup has failed, before it is counted; return whether a new leader is being elected."""
        failures = partition.fetch_failures
        if not failures.count:
            failures.since = now
        if isinstance(error, TransportError):
            failures.doubt_leader()
            return now - failures.since <= EAGER_SECONDS
        return self.in_election(partition, error, now)

    def clear_doubt(self, partition: TopicPartitionState) -> None:
        """Forget a partition that is no longer fetched, or is fetched from another leader."""
        partition.fetch_failures.leader_in_doubt = False

    def has_new_leader(self, partition: TopicPartitionState) -> bool:
        """Return whether the metadata names another leader or epoch than at the partition's last failure."""
        leader = leader_and_epoch(self._view(), partition.tp)
        return leader[0] >= 0 and leader != partition.fetch_failures.leader

    def note_metadata_age(self, partition: TopicPartitionState, now: float) -> None:
        """Note since when the metadata is older than the position, for `is_outdated`."""
        failures = partition.fetch_failures
        if self._is_older(partition):
            # not `failures.since`: the first failure may have had another reason, long ago
            failures.metadata_outdated(now)
        elif self._view().partition(*partition.tp) is not None:
            failures.metadata_outdated_since = float("inf")

    def is_outdated(self, partition: TopicPartitionState, now: float) -> bool:
        """Return whether the metadata's leader epoch is older than the epoch of the last record before the position.

        Such a leader may lack the position and answer OFFSET_OUT_OF_RANGE. Java does not fetch from it either
        (`Metadata.updateLastSeenEpochIfNewer`, called for committed offsets in `ConsumerCoordinator`).
        """
        since = partition.fetch_failures.metadata_outdated_since
        return self._is_older(partition) and now < since + OUTDATED_SECONDS

    def _is_older(self, partition: TopicPartitionState) -> bool:
        info = self._view().partition(*partition.tp)
        return info is not None and 0 <= info.leader_epoch < partition.fetched_epoch

    def leader_assigned(self, partition: TopicPartitionState) -> None:
        """Clear the doubt when a new leader is fetched from next: only the former one did not answer."""
        failures = partition.fetch_failures
        if failures.leader_in_doubt and self.has_new_leader(partition):
            _node_id, epoch = leader_and_epoch(self._view(), partition.tp)
            if epoch > failures.leader[1]:  # this proves that the leader is newer: restart the pauses
                failures.before_new_leader = failures.count
            self.clear_doubt(partition)

    def next_refresh_at(self) -> float:
        """Return the loop time at which metadata should be refreshed; infinity without a reason to refresh."""
        return self._next if self._is_stale or any(self._in_doubt()) else float("inf")

    def begin_refresh(self, now: float) -> None:
        """Record that a refresh starts now, and schedule the next one."""
        self._is_stale = False
        if any(now - partition.fetch_failures.since <= EAGER_SECONDS for partition in self._in_doubt()):
            self._backoff.reset()
            pause = self._backoff.after(0)
        else:
            pause = self._backoff.next()
        self._next = now + pause


def _needs_leader(partition: TopicPartitionState) -> bool:
    """Return whether a partition is leaderless, looked up, in flight or fetchable, so that its leader matters."""
    if partition.fetch_state is FetchState.AWAIT_RESET:
        return True
    is_leaderless = partition.fetch_state is FetchState.LEADERLESS and partition.retry_at < float("inf")
    return is_leaderless or partition.reserved > 0 or partition.is_fetchable

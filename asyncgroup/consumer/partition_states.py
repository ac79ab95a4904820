"""PartitionStates: transitions of partitions between fetch states, except those at a fetch (fetch_scheduler), and when each is due. Pure state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from asyncgroup.cluster.metadata import BrokerInfo, ClusterView
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import BrokerPartitions
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.fetch_state import Budget, FetchState
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_fetcher import NOT_FETCHED
from asyncgroup.consumer.retries import LeaderWatch, Retries
from asyncgroup.errors import BrokerError, ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff

__all__ = ["NEVER", "ClusterMetadata", "PartitionStates"]

NEVER: Final = float("inf")
"""A loop time that does not come."""

REFRESH_WINDOW: Final = 0.05
"""Leaderless partitions that are due within this time, in seconds, share one metadata refresh."""


class ClusterMetadata(Protocol):
    """What the scheduler needs of a Cluster: its metadata."""

    @property
    def view(self) -> ClusterView:
        """The newest metadata."""

    def update_leader(
        self, tp: TopicPartition, leader: int, epoch: int, brokers: Iterable[BrokerInfo] = ()
    ) -> None:
        """Apply a newer leader that a response named (KIP-951)."""

    def doubt_leader(self, tp: TopicPartition, node_id: int) -> None:
        """If a response named this leader, let the next refresh decide again."""


class PartitionStates:
    """Owns the fetched partitions, each in one `FetchState`, and the brokers that they are fetched from.

    While FETCHING or in AWAIT_VALIDATION a partition belongs to one broker (`node_id`); while LEADERLESS or in AWAIT_RESET
    it waits until `retry_at`. Nothing here waits; `now` is the loop's time.

    - `wake(node_id)` is called when a broker may have something to fetch that nothing fetches from yet (`BrokerPartitions.wake`).
    - `wake_timer(state)` is called when a partition begins to wait in LEADERLESS or AWAIT_RESET (`next`).
    - `on_records` is called when a partition got records, or one is added that may have some.
    - `report(partitions, error)` is called with errors that the client recovers from by itself.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        config: ConsumerConfig,
        backoff: Callable[[], RetryBackoff],
        rng: random.Random,
        *,
        wake: Callable[[int], None],
        wake_timer: Callable[[FetchState], None],
        report: Callable[[Iterable[TopicPartitionState], Exception], None],
        sessions: dict[int, FetchSession] | None,
        on_records: Callable[[], object] = lambda: None,
    ) -> None:
        self.metadata = metadata
        self.report = report
        self.on_records = on_records
        self.budget = Budget(config.buffer_bytes, config.max_partition_fetch_bytes)
        self.partitions: dict[TopicPartition, TopicPartitionState] = {}
        self.brokers: dict[int, BrokerPartitions] = {}
        self._held: dict[TopicPartition, int] = {}  # bytes of each that the budget counts as used
        self._wake = wake
        self._wake_timer = wake_timer
        self._sessions = sessions  # by node id; None for fetches without sessions
        self._retries = Retries(config, backoff)
        self._watch = LeaderWatch(lambda: metadata.view, self.partitions, config, rng)

    def __repr__(self) -> str:
        return f"<PartitionStates: {len(self.partitions)} partitions at {len(self.brokers)} brokers>"

    # --- partitions ---------------------------------------------------------------------------------------------

    def add(self, partition: TopicPartitionState, now: float) -> None:
        """Start fetching a partition."""
        former = self.partitions.get(partition.tp)
        if former is not None:
            self.remove(former)
        self.partitions[partition.tp] = partition
        self._held[partition.tp] = 0
        self.budget.partition_count = len(self.partitions)
        partition.fetcher = self
        self.assign(partition, now)
        self.on_records()

    def remove(self, partition: TopicPartitionState) -> None:
        """Stop fetching a partition; data in flight for it is dropped."""
        if not self.is_ours(partition):
            return
        del self.partitions[partition.tp]
        self.budget.partition_count = len(self.partitions)
        self._watch.clear_doubt(partition)
        self._leave_broker(partition)
        self.budget.used -= self._held.pop(partition.tp)
        partition.fetch_state = FetchState.INITIALIZING
        partition.fetcher = NOT_FETCHED

    def is_ours(self, partition: TopicPartitionState) -> bool:
        """Return whether a partition is fetched, and not another one of the same name."""
        return self.partitions.get(partition.tp) is partition

    # --- states -------------------------------------------------------------------------------------------------

    def on_change(self, partition: TopicPartitionState, /) -> None:
        """Count what the partition holds, and have the next plan look at it."""
        held = partition.buffer.bytes
        self.budget.used += held - self._held[partition.tp]
        self._held[partition.tp] = held
        broker = self.brokers.get(partition.node_id)
        if broker is not None:
            broker.candidates.note_changed(partition)

    def wake(self, partition: TopicPartitionState, /) -> None:
        """As `on_change`, and have the partition's broker make a plan."""
        self.on_change(partition)
        broker = self.brokers.get(partition.node_id)
        if broker is not None:
            broker.wake()

    def _leave_broker(self, partition: TopicPartitionState) -> None:
        """End FETCHING or AWAIT_VALIDATION; data in flight is dropped."""
        broker = self.brokers.get(partition.node_id)
        if broker is not None:
            broker.remove(partition)

    def _fetch_from(self, partition: TopicPartitionState, node_id: int) -> None:
        """Enter FETCHING, at a broker that may be new."""
        broker = self.brokers.get(node_id)
        if broker is None:
            session, wake = self._new_session(node_id), partial(self._wake, node_id)
            broker = self.brokers[node_id] = BrokerPartitions(node_id, session, wake)
        partition.fetch_state = FetchState.FETCHING
        partition.retry_at = NEVER
        broker.add(partition)
        broker.wake()

    def _new_session(self, node_id: int) -> FetchSession | None:
        """Return the node's fetch session, whose next request is a full one that starts it again; None without sessions."""
        if self._sessions is None:
            return None
        session = self._sessions.setdefault(node_id, FetchSession(node_id))
        session.invalidate()
        return session

    def enter(self, partition: TopicPartitionState, state: FetchState, retry_at: float) -> None:
        """Leave the broker, and enter LEADERLESS or AWAIT_RESET until `retry_at`."""
        self._leave_broker(partition)
        partition.fetch_state = state
        partition.retry_at = retry_at
        partition.reset_version = partition.version
        self._wake_timer(state)

    def assign(self, partition: TopicPartitionState, now: float) -> None:
        """Fetch a partition from its leader or preferred read replica (KIP-392); data in flight is dropped.

        Without a known leader it becomes leaderless. With a seek target the offset is looked up first.
        """
        self._leave_broker(partition)
        if partition.seek_target is not None:
            self._watch.clear_doubt(partition)
            self.enter(partition, FetchState.AWAIT_RESET, now)
            return
        view = self.metadata.view
        leader = view.leader(partition.tp)
        if leader < 0:
            error = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition.tp}")
            self.retry_later(partition, error, now)
            return
        self._watch.note_metadata_age(partition, now)
        if self._watch.is_outdated(partition, now):
            what = f"metadata of partition {partition.tp} is older than its position"
            self.retry_later(partition, BrokerError(ErrorCode.FENCED_LEADER_EPOCH, what), now)
        else:
            self._watch.leader_assigned(partition)
            source = partition.fetch_source
            may_read = source.may_read_replica(now, view.partition(*partition.tp))
            # the leader's advice may be older than the end of that follower
            if not may_read or source.preferred_replica not in view.brokers:
                source.clear_preferred_replica()
            follower = source.preferred_replica
            self._fetch_from(partition, follower if follower >= 0 else leader)

    def retry_later(
        self,
        partition: TopicPartitionState,
        error: Exception,
        now: float,
        pauses: dict[int, float] | None = None,
    ) -> None:
        """Count a failure and enter LEADERLESS: metadata is refreshed before the next try.

        `pauses`, by count of failures, are those of partitions that failed together, so that they share a refresh.
        """
        # asked before the failure is counted, and `is_ahead` after that: both look at the count
        in_election = self._watch.in_election(partition, error, now)
        pause = self.record_failure(partition, error, now, in_election=in_election)
        if pauses is not None:
            pause = pauses.setdefault(partition.fetch_failures.count, pause)
        self.enter(partition, FetchState.LEADERLESS, now + pause)
        self._watch.failed(partition, error, now)
        partition.fetch_failures.is_ahead = in_election and self._watch.is_ahead(partition, error)

    def assign_later(self, partition: TopicPartitionState, now: float) -> None:
        """Assign a partition again after a pause, or earlier if its leader changes."""
        pause = self._retries.pause(partition.fetch_failures)
        partition.fetch_failures.is_ahead = False
        self.enter(partition, FetchState.LEADERLESS, now + pause)
        self._watch.leader_seen(partition)

    def redirect(self, partition: TopicPartitionState, now: float) -> bool:
        """Assign at once, but only once without a fetch in between: replicas that name each other would cause a busy loop."""
        if partition.fetch_failures.redirected:
            return False
        partition.fetch_failures.redirect()
        self.assign(partition, now)
        return True

    def record_failure(
        self, partition: TopicPartitionState, error: Exception, now: float, *, in_election: bool = False
    ) -> float:
        """Count a failure and return the pause before the next try; raise to the reader beyond `fetch_retry_max`."""
        # a reader that has not taken an error yet gets no second one
        if partition.error is None:
            exhausted = self._retries.record_failure(partition.tp, partition.fetch_failures, error, now)
            if exhausted is not None:
                partition.fail(exhausted)
        return self._retries.pause(partition.fetch_failures, in_election=in_election)

    def record_lookup_failure(self, partition: TopicPartitionState, error: Exception, now: float) -> float:
        """As `record_failure`, for an offset that has to be looked up: the pause is short while a new leader is being elected.

        Metadata is refreshed as for a fetch that failed: the next lookup may wait for a connection to the former leader.
        """
        in_election = self._watch.lookup_failed(partition, error, now)
        self._wake_timer(FetchState.LEADERLESS)
        return self.record_failure(partition, error, now, in_election=in_election)

    def retry_now(self, partition: TopicPartitionState, now: float) -> None:
        """End the wait of a partition in LEADERLESS or AWAIT_RESET."""
        partition.retry_at = now
        self._wake_timer(partition.fetch_state)

    def on_handled_error(self, partition: TopicPartitionState, error: Exception, /) -> None:
        """Report an error that the client recovers from by itself."""
        self.report([partition], error)

    def raise_to_reader(self, partition: TopicPartitionState, error: Exception, now: float) -> None:
        """Raise an error to the reader; the partition is fetched again once the reader seeks or continues.

        From the second consecutive error on there is a pause, for readers that ignore the same error again and again.
        """
        is_first = partition.fetch_failures.count == 0
        self._retries.record_raised(partition.fetch_failures, error, now)
        partition.fail(error)
        if is_first:
            self.assign(partition, now)
        else:
            self.assign_later(partition, now)

    def look_up_seek(self, partition: TopicPartitionState, /) -> None:
        """Look up the target of a seek at once; the partition is not fetched until its offset is known."""
        self._watch.clear_doubt(partition)
        self.enter(partition, FetchState.AWAIT_RESET, float("-inf"))

    # --- times and metadata -------------------------------------------------------------------------------------

    def next_refresh(self) -> float:
        """Return the loop time of the next metadata refresh: for leaderless partitions, or as leaders are in doubt."""
        return min(self.next(FetchState.LEADERLESS), self._watch.next_refresh_at())

    def next(self, state: FetchState) -> float:
        """Return the loop time at which the first of the partitions in LEADERLESS or AWAIT_RESET is due."""
        times = (p.retry_at for p in self.partitions.values() if p.fetch_state is state)
        return min(times, default=NEVER)

    def due(self, state: FetchState, limit: float) -> list[TopicPartitionState]:
        """Return the partitions in LEADERLESS or AWAIT_RESET that are due until `limit`."""
        return [p for p in self.partitions.values() if p.fetch_state is state and p.retry_at <= limit]

    def assign_known(self, now: float) -> bool:
        """Assign the partitions that are due and need no refresh; return whether there are any."""
        known = [p for p in self.due(FetchState.LEADERLESS, now) if p.fetch_failures.is_ahead]
        for partition in known:
            self.assign(partition, now)
        return bool(known)

    def begin_refresh(self, now: float) -> list[TopicPartitionState]:
        """Begin a metadata refresh; return the partitions to assign after it, for `end_refresh`.

        A partition that becomes leaderless during the refresh needs another one: this one may be older than its failure.
        """
        self._watch.begin_refresh(now)
        due = self.due(FetchState.LEADERLESS, now + REFRESH_WINDOW)
        for partition in due:
            partition.retry_at = NEVER  # marks it for `end_refresh`
        return due

    def end_refresh(self, waiting: Iterable[TopicPartitionState], now: float) -> None:
        """Assign the partitions that waited for a refresh."""
        for partition in waiting:
            is_waiting = partition.fetch_state is FetchState.LEADERLESS and partition.retry_at == NEVER
            if is_waiting and self.is_ours(partition):
                self.assign(partition, now)

    def metadata_changed(self, now: float) -> set[int]:
        """Assign partitions to their new leaders; return the nodes that they were fetched from."""
        view = self.metadata.view
        moved = [partition for broker in self.brokers.values() for partition in broker.moved(view)]
        nodes = {partition.node_id for partition in moved}
        waiting = self.due(FetchState.LEADERLESS, limit=NEVER)  # also those marked for a refresh under way
        moved += [partition for partition in waiting if self._watch.has_new_leader(partition)]
        for partition in moved:
            self.assign(partition, now)
        return nodes

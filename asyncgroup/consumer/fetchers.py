"""All fetching of a client: assign each partition to the broker fetcher of its leader, and again when the leader moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.answers import FetchCallbacks
from asyncgroup.consumer.broker_fetcher import BrokerFetcher, lanes_of
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.delay_queue import DelayQueue
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.leader_watch import FOLLOWER_SECONDS, SILENT_SECONDS, LeaderWatch
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.resets import MillisClock, out_of_range_policy, wall_clock
from asyncgroup.consumer.resetter import OffsetResetter
from asyncgroup.consumer.retries import Retries
from asyncgroup.errors import AsyncGroupError, AuthenticationError, BrokerError, ErrorCode
from asyncgroup.lifecycle import copy_error
from asyncgroup.model import TopicPartition

__all__ = ["Fetchers"]

_log = logging.getLogger("asyncgroup.consumer")

REFRESH_WINDOW = 0.05
"""Leaderless partitions that are due within this time, in seconds, share one metadata refresh."""

MAX_IDLE_CHECKS = 10
"""A broker fetcher ends after more than this number of checks, one a second, without partitions: some return after a pause."""

Spawn = Callable[..., None]


class Fetchers:
    """The broker fetchers of a client, and the partitions that are leaderless or await an offset reset.

    - `spawn(function, *args)` runs a coroutine function in the owner's task group.
    - `on_error` is called with errors that the client recovers from by itself; it returns whether there are listeners.
    - `lane_suffix` names the client's own connections.
    - `clock` is the time of day, for resets by duration.
    - `sessions` may be passed on to a later object: its first request to a node then ends the old fetch session there, of
      which a node keeps a limited number.

    A partition that cannot be fetched is retried without end, with pauses by `retry_backoff` or `fetch_retry_backoff`;
    after `fetch_retry_max` consecutive failures RetriesExhausted is raised to its reader. Pauses and counts are kept per
    partition, so a failing one does not delay others.

    Every metadata refresh counts, of any cause: once it names another leader, a partition is fetched from there,
    even if it waits for its next try, or for a response of its former leader, which is then given up. While partitions are
    leaderless or a broker is unresponsive, metadata is refreshed at short intervals (`LeaderWatch`).
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        spawn: Spawn,
        on_error: Callable[[Exception], object] | None = None,
        *,
        lane_suffix: str = "",
        clock: MillisClock = wall_clock,
        sessions: dict[int, FetchSession] | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._spawn = spawn
        self._sessions = {} if sessions is None else sessions  # by node id
        self._on_error = on_error
        self._lane_suffix = lane_suffix
        self.budget = Budget(config.buffer_bytes, config.max_partition_fetch_bytes)
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._fetchers: dict[int, BrokerFetcher] = {}
        self._last_fetch = float("-inf")  # of fetchers that have ended
        self._retries = Retries(config, cluster.backoff)
        self._leaderless = DelayQueue(REFRESH_WINDOW)
        self._leaders = LeaderWatch(cluster, config, cluster.random, self._is_waiting)
        self._resetter = OffsetResetter(cluster, config, self, spawn, clock)
        self._callbacks = FetchCallbacks(
            self._redispatch, self._reset, self.raise_to_reader, self._move, self._assign, self.report
        )

    def __repr__(self) -> str:
        return f"<Fetchers: {len(self._consumers)} partitions at {len(self._fetchers)} brokers>"

    @property
    def last_fetch(self) -> float:
        """Loop time of the last response of any broker."""
        return max([self._last_fetch, *(fetcher.last_fetch for fetcher in self._fetchers.values())])

    @property
    def pending_since(self) -> dict[int, float]:
        """The nodes with a fetch in flight, each with the loop time at which the oldest one was sent."""
        return {
            node_id: fetcher.pending_since
            for node_id, fetcher in sorted(self._fetchers.items())
            if fetcher.pending_since < float("inf")
        }

    def start(self) -> None:
        """Start the background tasks."""
        self._spawn(self._dispatch_loop)
        self._spawn(self._follow_metadata)
        self._spawn(self._watch_unresponsive)
        self._spawn(self._resetter.run)
        self._spawn(self._watch_progress)

    def add(self, consumer: PartitionConsumer) -> None:
        """Start fetching a partition."""
        self._consumers[consumer.tp] = consumer
        self.budget.partition_count = len(self._consumers)
        consumer.on_handled_error = partial(self.report, [consumer])
        consumer.look_up_seek = partial(self._look_up_seek, consumer)
        self._assign(consumer)

    def remove(self, consumer: PartitionConsumer) -> None:
        """Stop fetching a partition; data in flight for it is dropped."""
        if not self._is_ours(consumer):
            return
        del self._consumers[consumer.tp]
        self._leaderless.discard(consumer)
        self._leaders.discard(consumer)
        self._resetter.discard(consumer)
        self.budget.partition_count = len(self._consumers)
        for fetcher in self._fetchers.values():
            fetcher.remove(consumer)
        consumer.detach()

    def _look_up_seek(self, consumer: PartitionConsumer) -> None:
        """Look up the target of a seek by name or time; the partition is not fetched until its offset is known."""
        for fetcher in self._fetchers.values():
            fetcher.remove(consumer)
        self._assign(consumer)

    def _is_ours(self, consumer: PartitionConsumer) -> bool:
        return self._consumers.get(consumer.tp) is consumer

    # --- assignment to brokers ----------------------------------------------------------------------------------

    def _assign(self, consumer: PartitionConsumer) -> None:
        """Assign a partition to the fetcher of its leader or preferred read replica (KIP-392).

        Without a known leader it becomes leaderless, and the dispatch loop refreshes the metadata. A partition with a seek
        target goes to the resetter first.
        """
        if consumer.seek_target is not None:
            self._leaderless.discard(consumer)
            self._leaders.discard(consumer)
            self._resetter.put(consumer, 0.0)
            return
        view = self._cluster.view
        leader = view.leader(consumer.tp)
        if leader < 0:
            self._wait_for_leader(
                consumer, BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {consumer.tp}")
            )
        elif self._leaders.is_outdated(consumer):
            what = f"metadata of partition {consumer.tp} is older than its position"
            self._wait_for_leader(consumer, BrokerError(ErrorCode.FENCED_LEADER_EPOCH, what))
        else:
            self._leaders.leader_assigned(consumer)
            now = asyncio.get_running_loop().time()
            node_id = consumer.fetch_position.select_read_replica(leader, now, view.partition(*consumer.tp))
            if node_id not in view.brokers:
                consumer.fetch_position.clear_preferred_replica()
                node_id = leader
            self._leaderless.discard(consumer)
            self._fetcher(node_id).add(consumer)

    def _wait_for_leader(self, consumer: PartitionConsumer, error: BrokerError) -> None:
        """Make the partition leaderless; the dispatch loop will look up its leader."""
        self._leaderless.put(consumer, self._record_failure(consumer, error))
        self._leaders.failed(consumer, error)

    def _fetcher(self, node_id: int) -> BrokerFetcher:
        """Return a node's fetcher; start it if there is none, with the fetch session left from an earlier one."""
        fetcher = self._fetchers.get(node_id)
        if fetcher is None:
            session = self._sessions.setdefault(node_id, FetchSession(node_id))
            session.invalidate()
            fetcher = self._fetchers[node_id] = BrokerFetcher(
                session, self._cluster, self._config, self.budget, self._callbacks, self._lane_suffix
            )
            self._spawn(fetcher.run)
        return fetcher

    # --- metadata -----------------------------------------------------------------------------------------------

    async def _dispatch_loop(self) -> None:
        """Refresh metadata and assign leaderless partitions whose next try is due; refresh while leaders are in doubt."""
        while True:
            # a partition that becomes leaderless during the refresh needs another one: this one may be older than its failure
            waiting = await self._leaderless.wait_due(self._leaders.next_refresh_at)
            self._leaders.refresh_started()
            await self._refresh(waiting)
            for consumer in waiting:
                if self._is_ours(consumer):
                    self._assign(consumer)

    async def _refresh(self, waiting: list[PartitionConsumer]) -> None:
        try:
            await self._cluster.refresh()
        except AsyncGroupError as error:
            if waiting:
                self.report(waiting, error)
            else:
                _log.debug("metadata: %s", error)

    def _is_waiting(self, consumer: PartitionConsumer) -> bool:
        """Return whether a partition is leaderless, in flight or fetchable, so that its leader matters."""
        return consumer in self._leaderless or consumer.reserved > 0 or consumer.is_fetchable

    async def _follow_metadata(self) -> None:
        """Assign partitions to their new leaders as soon as a metadata refresh names them."""
        while True:
            await self._cluster.wait_updated()
            moved = [consumer for fetcher in self._fetchers.values() for consumer in fetcher.release_moved()]
            moved += [
                consumer for consumer in self._leaderless.consumers if self._leaders.has_new_leader(consumer)
            ]
            for consumer in moved:
                self._assign(consumer)

    async def _watch_unresponsive(self) -> None:
        """Refresh metadata while a broker is unresponsive: it may hang, and its partitions may have other leaders by now.

        Partitions fetched from an unresponsive follower return to their leaders.
        """
        time = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SILENT_SECONDS)
            self._end_idle()
            unresponsive = [
                fetcher for fetcher in self._fetchers.values() if fetcher.is_unresponsive(SILENT_SECONDS)
            ]
            for fetcher in unresponsive:
                self._cluster.mark_slow(fetcher.node_id)
                fetcher.release_from_follower(FOLLOWER_SECONDS)
            if unresponsive and self._cluster.view.updated_at <= time() - SILENT_SECONDS / 2:
                await self._refresh([])

    def _end_idle(self) -> None:
        """End the fetchers of nodes that have had no partition for a while."""
        for node_id, fetcher in list(self._fetchers.items()):
            fetcher.idle_checks = 0 if fetcher else fetcher.idle_checks + 1
            if fetcher.idle_checks > MAX_IDLE_CHECKS:
                del self._fetchers[node_id]
                self._last_fetch = max(self._last_fetch, fetcher.last_fetch)
                fetcher.end()

    def retire_lanes(self) -> None:
        """Close the connections of all fetchers, after these have ended."""
        self._cluster.retire_lanes(lanes_of(self._lane_suffix))

    # --- failures -----------------------------------------------------------------------------------------------

    def _redispatch(self, consumers: list[PartitionConsumer], error: Exception, *, hinted: bool) -> None:
        """Assign partitions that a fetcher has stopped fetching; with a hint at once to the new leader, else after a pause.

        A second hint without a successful fetch in between is treated as any other failure: brokers that name each other
        as the leader would cause a busy loop.
        """
        if isinstance(error, AuthenticationError):  # a retry does not help
            for consumer in consumers:
                self.raise_to_reader(consumer, copy_error(error))
            return
        self.report(consumers, error)
        pauses: dict[int, float] = {}
        for consumer in consumers:
            failures = consumer.fetch_failures
            if hinted and not failures.redirected:
                failures.redirected = True
                self._assign(consumer)
            else:
                # partitions that failed together get the same pause, so that they share a refresh
                pause = self._record_failure(consumer, error)
                self._leaderless.put(consumer, pauses.setdefault(failures.count, pause))
                self._leaders.failed(consumer, error)

    def _move(self, consumer: PartitionConsumer) -> None:
        """Fetch from another replica, which is no failure; a second move without a fetch in between waits."""
        failures = consumer.fetch_failures
        if not failures.redirected:
            failures.redirected = True
            self._assign(consumer)
        else:
            self._wait(consumer, self._retries.pause(failures))

    def _wait(self, consumer: PartitionConsumer, pause: float) -> None:
        """Assign a partition again after a pause, or earlier if its leader changes."""
        self._leaderless.put(consumer, pause)
        self._leaders.leader_seen(consumer)

    def _record_failure(self, consumer: PartitionConsumer, error: Exception) -> float:
        """Count a failure and return the pause before the next try; raise to the reader beyond `fetch_retry_max`."""
        if consumer.error is None:
            exhausted = self._retries.record_failure(consumer.tp, consumer.fetch_failures, error)
            if exhausted is not None:
                consumer.fail(exhausted)
        return self._retries.pause(consumer.fetch_failures)

    def _reset(self, consumer: PartitionConsumer) -> None:
        """Have the resetter find a position in the log: at once, but after a pause without a fetch since the last reset."""
        pause = 0.0
        if out_of_range_policy(self._config) != "error":
            is_first = consumer.fetch_failures.count == 0
            what = f"fetch of {consumer.tp} at offset {consumer.fetch_offset}"
            pause = self._record_failure(consumer, BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, what))
            pause = 0.0 if is_first else pause
        self._resetter.put(consumer, pause)

    def report(self, consumers: Iterable[PartitionConsumer], error: Exception) -> None:
        """Report an error that the client recovers from by itself to the readers of errors, or log it without any."""
        reported = [consumer.report(error) for consumer in consumers]
        has_listeners = self._on_error is not None and bool(self._on_error(error))
        if not has_listeners and not (reported and all(reported)):
            _log.info("recovering: %s", error)

    def position_found(self, consumer: PartitionConsumer) -> None:
        """Fetch from the position that the resetter has found."""
        self._assign(consumer)

    def lookup_failed(self, consumer: PartitionConsumer, error: AsyncGroupError) -> float:
        """Report a failed offset lookup; return the pause before the next try."""
        self.report([consumer], error)
        return self._record_failure(consumer, error)

    def raise_to_reader(self, consumer: PartitionConsumer, error: Exception) -> None:
        """Raise an error to the reader; the partition is fetched again once the reader seeks or continues.

        From the second consecutive error on there is a pause, for readers that ignore the same error again and again.
        """
        is_first = consumer.fetch_failures.count == 0
        self._retries.record_raised(consumer.fetch_failures)
        consumer.fail(error)
        if is_first:
            self._assign(consumer)
        else:
            self._wait(consumer, self._retries.pause(consumer.fetch_failures))

    # --- stalls -------------------------------------------------------------------------------------------------

    async def _watch_progress(self) -> None:
        """Check all partitions for stalls every `max_processing_time`; nothing is counted per record."""
        while True:
            await asyncio.sleep(self._config.max_processing_time)
            for consumer in self._consumers.values():
                consumer.check_progress()

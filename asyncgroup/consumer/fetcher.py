"""Fetcher: the tasks that fetch a client's partitions. They send and wait; `FetchScheduler` decides what is fetched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_task import BrokerTask
from asyncgroup.consumer.fetch_plan import lanes_of
from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.fetch_state import FetchState
from asyncgroup.consumer.list_offsets import list_offsets_once
from asyncgroup.consumer.offset_resets import OffsetLookup
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.partition_states import PartitionStates
from asyncgroup.consumer.retries import FOLLOWER_SECONDS, SILENT_SECONDS
from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import wait_within
from asyncgroup.model import MillisClock, wall_clock

__all__ = ["Fetcher"]

_log = logging.getLogger("asyncgroup.consumer")

MAX_IDLE_CHECKS: Final = 10
"""A broker's task ends after more than this number of checks without partitions: some return later. There is one check
every `SILENT_SECONDS`, which is one second."""

Spawn = Callable[..., None]


class Fetcher:
    """Fetches the partitions of a client.

    - `spawn(function, *args)` runs a coroutine function in a task that the owner ends (`BackgroundTasks.spawn`).
    - `on_error` is called with errors that the client recovers from by itself; it returns whether there are listeners.
    - `lane_suffix` names the client's own connections.
    - `clock` is the time of day, for resets and seeks by duration.
    - `sessions` may be passed on to a later object: its first request to a node then ends the old fetch session there, of
      which a node keeps a limited number.
    - `on_tick` is called once a second (`SILENT_SECONDS`), for work of the owner that then needs no separate timer.

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
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._spawn = spawn
        self._on_error = on_error
        self._lane_suffix = lane_suffix
        self._on_tick = on_tick
        self._time = asyncio.get_running_loop().time
        self._tasks: dict[int, BrokerTask] = {}  # by node id
        self._last_fetch = float("-inf")  # of tasks that have ended
        self._timers = {FetchState.LEADERLESS: asyncio.Event(), FetchState.AWAIT_RESET: asyncio.Event()}
        self._buffered = asyncio.Event()
        """Set when a partition got records, or one was added that may have some."""
        self._states = PartitionStates(
            cluster,
            config,
            cluster.backoff,
            cluster.random,
            wake=self._wake_broker,
            wake_timer=lambda state: self._timers[state].set(),
            report=self._report,
            sessions={} if sessions is None else sessions,
            on_records=self._buffered.set,
        )
        self._scheduler = FetchScheduler(self._states, config, clock)
        self.budget = self._states.budget
        """The budget of buffered bytes that the partitions share."""

    def __repr__(self) -> str:
        states = self._states
        return f"<Fetcher: {len(states.partitions)} partitions at {len(states.brokers)} brokers>"

    @property
    def last_fetch(self) -> float:
        """Loop time of the last response of any broker."""
        return max([self._last_fetch, *(task.last_fetch for task in self._tasks.values())])

    @property
    def pending_since(self) -> dict[int, float]:
        """The nodes with a fetch in flight, each with the loop time at which the oldest one was sent."""
        return {
            node_id: task.pending_since
            for node_id, task in sorted(self._tasks.items())
            if task.pending_since < float("inf")
        }

    def start(self) -> None:
        """Start the background tasks."""
        self._spawn(self._refresh_loop)
        self._spawn(self._follow_metadata)
        self._spawn(self._watch_unresponsive)
        self._spawn(self._lookup_loop)
        self._spawn(self._watch_progress)

    def add(self, consumer: PartitionConsumer) -> None:
        """Start fetching a partition."""
        self._states.add(consumer._inner, self._time())

    def remove(self, consumer: PartitionConsumer) -> None:
        """Stop fetching a partition; data in flight for it is dropped."""
        self._states.remove(consumer._inner)

    def retire_lanes(self) -> None:
        """Close the connections of all brokers, after their tasks have ended."""
        self._cluster.pool.retire_lanes(lanes_of(self._lane_suffix))

    def _report(self, partitions: Iterable[TopicPartitionState], error: Exception) -> None:
        """Report an error that the client recovers from by itself to the readers of errors, or log it without any."""
        reported = [partition.report(error) for partition in partitions]
        has_listeners = self._on_error is not None and bool(self._on_error(error))
        if not has_listeners and not (reported and all(reported)):
            _log.info("recovering: %s", error)

    # --- brokers ------------------------------------------------------------------------------------------------

    def _wake_broker(self, node_id: int) -> None:
        """Make a broker's task look for something to fetch; start one for a new broker."""
        task = self._tasks.get(node_id)
        if task is None:
            broker = self._states.brokers.get(node_id)
            if broker is None:
                return
            task = self._tasks[node_id] = BrokerTask(
                broker, self._scheduler, self._cluster, self._config, self._lane_suffix
            )
            self._spawn(task.run)
        task.wake()

    async def _watch_unresponsive(self) -> None:
        """Refresh metadata while a broker is unresponsive: it may hang, and its partitions may have other leaders by now.

        Partitions fetched from an unresponsive follower return to their leaders. The tasks of brokers without partitions
        end here as well (`MAX_IDLE_CHECKS`).
        """
        while True:
            await asyncio.sleep(SILENT_SECONDS)
            self._on_tick()
            self._end_idle()
            for task in self._tasks.values():
                task.note_received()
            unresponsive = [task for task in self._tasks.values() if task.is_unresponsive(SILENT_SECONDS)]
            for task in unresponsive:
                self._cluster.pool.mark_slow(task.node_id)
                is_silent = task.is_unresponsive(FOLLOWER_SECONDS)
                if is_silent and self._scheduler.leave_unresponsive_follower(task.broker, self._time()):
                    task.give_up_unwanted()
            # unless a refresh of another cause has looked just now
            if unresponsive and self._cluster.view.updated_at <= self._time() - SILENT_SECONDS / 2:
                await self._refresh([])

    def _end_idle(self) -> None:
        """End the tasks of brokers that have had no partition for a while."""
        for node_id, task in list(self._tasks.items()):
            task.idle_checks = 0 if task.broker else task.idle_checks + 1
            if task.idle_checks > MAX_IDLE_CHECKS:
                del self._tasks[node_id]
                del self._states.brokers[node_id]  # its fetch session is kept for a later one
                self._last_fetch = max(self._last_fetch, task.last_fetch)
                task.end()

    # --- metadata and offsets -----------------------------------------------------------------------------------

    async def _refresh_loop(self) -> None:
        """Refresh metadata for leaderless partitions whose next try is due, and while leaders are in doubt."""
        while True:
            await self._wait_until(FetchState.LEADERLESS, self._states.next_refresh)
            # their metadata is newer than what the leader knows: a refresh would change nothing
            if self._states.assign_known(self._time()):
                continue
            waiting = self._states.begin_refresh(self._time())
            await self._refresh(waiting)
            self._states.end_refresh(waiting, self._time())

    async def _refresh(self, waiting: list[TopicPartitionState]) -> None:
        try:
            await self._cluster.refresh()
        except AsyncGroupError as error:
            if waiting:
                self._report(waiting, error)
            else:
                _log.debug("metadata: %s", error)

    async def _follow_metadata(self) -> None:
        """Assign partitions to their new leaders as soon as a metadata refresh names them."""
        while True:
            await self._cluster.wait_updated()
            for node_id in self._states.metadata_changed(self._time()):
                self._tasks[node_id].give_up_unwanted()
            self._scheduler.resets.metadata_changed(self._time())

    async def _lookup_loop(self) -> None:
        """Look up offsets of partitions in AwaitReset."""
        while True:
            await self._wait_until(FetchState.AWAIT_RESET, self._scheduler.resets.next_lookup)
            if stale := self._scheduler.resets.take_stale(self._time()):
                await self._refresh(stale)
            for lookup in self._scheduler.resets.plan(self._time()):
                self._spawn(self._look_up, lookup)

    async def _look_up(self, lookup: OffsetLookup) -> None:
        isolation = self._config.isolation_level
        requests = (list_offsets_once(self._cluster, wanted, isolation) for wanted in lookup.requests)
        answers = await asyncio.gather(*requests)
        self._scheduler.resets.apply(lookup, answers, self._time())

    async def _wait_until(self, state: FetchState, due: Callable[[], float]) -> None:
        """Wait until the loop time `due()`, which is evaluated again when a partition begins to wait in `state`."""
        changed = self._timers[state]
        while True:
            # cleared first: a partition that begins to wait after `due()` sets it again
            changed.clear()
            pause = due() - self._time()
            if pause <= 0:
                return
            await wait_within(changed, pause if pause < float("inf") else None)

    # --- stalls -------------------------------------------------------------------------------------------------

    async def _watch_progress(self) -> None:
        """Check all partitions for stalls every `max_processing_time`; nothing is counted per record.

        Only while records are buffered: an idle client does not wake up.
        """
        while True:
            await self._buffered.wait()
            self._buffered.clear()
            is_needed = True
            while is_needed:
                await asyncio.sleep(self._config.max_processing_time)
                checks = [partition.check_progress() for partition in self._states.partitions.values()]
                is_needed = any(checks)

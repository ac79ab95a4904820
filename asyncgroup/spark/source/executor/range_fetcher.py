"""`RangeFetcher`: sends what the fetch scheduler plans for the ranges of a task, while the task waits.

The decisions are those of every consumer (`FetchScheduler`); only the tasks are others than `Fetcher`'s. There are no loops in
the background: `send` starts what is due, `wait` waits for its tasks, `take` applies the responses and returns what happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.cluster.requests.list_offsets import is_retriable_error
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import BrokerPartitions
from asyncgroup.consumer.broker_task import send_fetch, validate_positions
from asyncgroup.consumer.fetch_outcome import FetchAction, FetchOutcomes, fetch_action
from asyncgroup.consumer.fetch_plan import MAIN_LANE, FetchPlan
from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.list_offsets import list_offsets_once
from asyncgroup.consumer.offset_resets import LogRange, OffsetLookup
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_states import PartitionStates
from asyncgroup.consumer.validation import Validation
from asyncgroup.errors import AsyncGroupError, RequestTimedOut
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import TopicPartition, wall_clock
from asyncgroup.spark.source.executor.poll_timer import WaitingTime

__all__ = ["FetchEvent", "Fetched", "NoMetadata", "Problem", "RangeFetcher", "fetching_config"]

LANE: Final = "ranges"
"""The purpose of the connections for fetching ranges; a waiting Fetch must not delay lookups."""

NODES: Final = 4
"""Maximum number of brokers with a Fetch in flight: each response may have `fetch_bytes` bytes."""

LOST_AFTER: Final = 300.0
"""Timeout in seconds of the request itself, which includes the pauses between waits. The effective timeout is
`request_timeout` of actual waiting.
"""

SHARE: Final = 2
"""At most 1/SHARE of `max_response_size` is requested, as a response above that size closes the connection."""

BUFFER_SHARE: Final = 8
"""`build_fetch_request` allows a response of 1/BUFFER_SHARE of `buffer_bytes`."""

LEAST_WAIT: Final = 0.01
"""Minimum seconds of `fetch_max_wait`: the pause between requests of records that are late."""


def fetching_config(config: ConsumerConfig, fetch_bytes: int) -> ConsumerConfig:
    """Return the configuration for fetching ranges.

    The records of a range exist already, so brokers need not wait for more (`fetch.min.bytes`) before they respond.
    Metadata requests must not create deleted topics again. Failures are retried until the poll timeout, and offsets that are
    not in the log are reported as losses.
    """
    max_bytes = max(1, min(fetch_bytes, config.fetch_max_bytes, config.max_response_size // SHARE))
    return replace(
        config,
        fetch_min_bytes=1,
        fetch_max_wait=max(LEAST_WAIT, config.fetch_max_wait),
        fetch_max_bytes=max_bytes,
        buffer_bytes=max_bytes * BUFFER_SHARE,
        allow_auto_topic_creation=False,
        out_of_range_reset="error",
        fetch_retry_max=None,
        fetch_retry_backoff=None,
    )


class Fetched(NamedTuple):
    """The outcomes of a response, which were applied to the partitions."""

    outcomes: FetchOutcomes
    before: Mapping[TopicPartition, int]
    """The former fetch offsets of the partitions that the response still counted for."""


class Problem(NamedTuple):
    """An error that a retry may heal."""

    partitions: Iterable[TopicPartitionState]
    error: Exception


class NoMetadata(NamedTuple):
    """A metadata refresh has failed."""

    error: AsyncGroupError


FetchEvent: TypeAlias = Fetched | Problem | NoMetadata
"""What happened, for the ranges."""


class _Flight(NamedTuple):
    """A Fetch in flight. Its task only waits; `RangeFetcher.take` applies the result."""

    broker: BrokerPartitions
    plan: FetchPlan
    task: asyncio.Task[FetchOutcomes | AsyncGroupError]
    sent_at: float
    """By the `WaitingTime`."""


class RangeFetcher:
    """Fetches partitions up to their ends, one Fetch per broker at a time and without sessions."""

    def __init__(self, cluster: ClusterClient, config: ConsumerConfig, time: WaitingTime) -> None:
        self._cluster = cluster
        self._config = config
        self._time = time
        self._view: ClusterView | None = None  # the metadata that the partitions were assigned by
        self._flights: dict[int, _Flight] = {}  # by node id
        self._tasks: set[asyncio.Task[Any]] = set()  # other requests, and fetches that were given up
        self._validating: set[int] = set()  # nodes
        self._is_refreshing = False
        self._is_looking_up = False
        self._is_woken = False
        self._events: list[FetchEvent] = []  # for `take`, in their order
        self._failure: Exception | None = None  # the first error that fails the task
        self.log_ranges: dict[TopicPartition, LogRange] = {}
        """The logs of partitions whose offset was out of range, as of the lookup."""
        self._states = PartitionStates(
            cluster,
            config,
            cluster.backoff,
            cluster.random,
            wake=self._wake,
            wake_timer=lambda _state: None,  # `wait` asks for the times
            report=lambda partitions, error: self._events.append(Problem(partitions, error)),
            sessions=None,
        )
        self._scheduler = FetchScheduler(
            self._states, config, wall_clock, request_bytes=config.fetch_max_bytes
        )

    def __repr__(self) -> str:
        return f"<RangeFetcher: {len(self._states.partitions)} partitions, {len(self._flights)} fetches in flight>"

    def add(self, partition: TopicPartitionState) -> None:
        """Start fetching a partition."""
        self._states.add(partition, self._time())

    def remove(self, partition: TopicPartitionState) -> None:
        """Stop fetching a partition."""
        self._states.remove(partition)

    def ask_leader(self, partition: TopicPartitionState) -> None:
        """Fetch from the leader, also if a follower was preferred."""
        if partition.fetch_source.clear_preferred_replica():
            self._states.assign(partition, self._time())

    # --- sending ------------------------------------------------------------------------------------------------

    def _wake(self, _node_id: int) -> None:
        self._is_woken = True

    def send(self) -> None:
        """Start all requests that are due."""
        now = self._time()
        if self._view is not self._cluster.view:
            self._view = self._cluster.view
            for node_id in self._states.metadata_changed(now):
                flight = self._flights.get(node_id)
                if flight is not None and not flight.broker.is_wanted(flight.plan):
                    self._give_up(node_id)  # all of its partitions have other leaders by now
                    flight.broker.give_up(flight.plan)
        self._is_woken = True
        while self._is_woken:  # a plan may move partitions to brokers that were asked for their plan before
            self._is_woken = False
            for broker in list(self._states.brokers.values()):
                self._send_to(broker, now)
        if not self._is_refreshing and self._states.next_refresh() <= now:
            self.refresh()
        if not self._is_looking_up and self._scheduler.resets.next_lookup() <= now:
            self._is_looking_up = True
            self.spawn(self._look_up_offsets())

    def _send_to(self, broker: BrokerPartitions, now: float) -> None:
        node_id = broker.node_id
        if node_id not in self._flights and len(self._flights) < NODES:
            plan = self._scheduler.plan(broker, MAIN_LANE, now)
            if plan is not None:
                task = start_task(self._fetch(broker, plan), name=f"fetch ranges from node {node_id}")
                self._flights[node_id] = _Flight(broker, plan, task, now)
        must_validate = broker.awaits_validation and node_id not in self._validating
        if must_validate and (validation := self._scheduler.plan_validation(broker)):
            self._validating.add(node_id)
            self.spawn(self._validate(broker, validation))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that `wait` waits for; `take` raises its error."""
        self._wait_for(start_task(work, name="request for ranges"))

    def _wait_for(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failure = self._failure or error

    async def wait(self, due: float) -> None:
        """Wait until a task ends, or until the time `due` or that of the next request; then give up silent fetches."""
        now, limit = self._time(), self._config.request_timeout + self._config.fetch_max_wait
        times = [flight.sent_at + limit for flight in self._flights.values()]
        if not self._is_looking_up:
            times.append(self._scheduler.resets.next_lookup())
        if not self._is_refreshing:
            times.append(self._states.next_refresh())
        timeout = max(0.0, min([due, now + limit, *times]) - now)
        tasks: set[asyncio.Task[Any]] = {*self._tasks, *(flight.task for flight in self._flights.values())}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)
        now = self._time()
        for node_id, flight in list(self._flights.items()):
            if now >= flight.sent_at + limit and not flight.task.done():
                self._give_up(node_id)
                silent = f"node {node_id} has not answered a fetch for {self._config.request_timeout:g} s"
                self._fetch_failed(flight.broker, flight.plan, RequestTimedOut(silent))

    # --- fetches ------------------------------------------------------------------------------------------------

    async def _fetch(self, broker: BrokerPartitions, plan: FetchPlan) -> FetchOutcomes | AsyncGroupError:
        try:
            timeout = max(LOST_AFTER, self._config.request_timeout)
            return await send_fetch(self._cluster, broker, plan, self._config, lane=LANE, timeout=timeout)
        except AsyncGroupError as error:
            return error

    def take(self) -> list[FetchEvent]:
        """Apply the responses that have come, and return what happened since the last call.

        Raises errors that are not retriable: those of the fetches, and of coroutines given to `spawn`.
        """
        if self._failure is not None:
            raise self._failure
        for node_id, flight in list(self._flights.items()):
            if flight.task.done():
                del self._flights[node_id]
                self._apply(flight.broker, flight.plan, flight.task.result())
        events, self._events = self._events, []
        return events

    def _apply(
        self, broker: BrokerPartitions, plan: FetchPlan, outcomes: FetchOutcomes | AsyncGroupError
    ) -> None:
        if isinstance(outcomes, AsyncGroupError):
            self._fetch_failed(broker, plan, outcomes)
            return
        before = {
            tp: planned.partition.fetch_offset
            for tp, planned in plan.partitions.items()
            if broker.is_current(planned.partition, planned.version)
        }
        self._scheduler.apply(broker, plan, outcomes, self._time())
        self._events.append(Fetched(outcomes, before))

    def _fetch_failed(self, broker: BrokerPartitions, plan: FetchPlan, error: AsyncGroupError) -> None:
        if not is_retriable_error(error) and fetch_action(getattr(error, "code", 0)) is not (
            FetchAction.REDISPATCH
        ):
            raise error
        self._scheduler.fetch_failed(broker, plan, error, self._time())

    def _give_up(self, node_id: int) -> None:
        """Wait no longer for a Fetch; the next one uses a new connection, so that the late response does not delay it."""
        task = self._flights.pop(node_id).task
        self._cluster.pool.abandon_lane(node_id, LANE)
        task.cancel()
        self._wait_for(task)

    # --- other requests -----------------------------------------------------------------------------------------

    async def _validate(self, broker: BrokerPartitions, validation: Validation) -> None:
        try:
            await validate_positions(self._cluster, self._scheduler, broker, validation, self._time)
        finally:
            self._validating.discard(broker.node_id)

    async def _look_up_offsets(self) -> None:
        """Look up the log's start and end for partitions whose offset is out of range, as Spark does."""
        try:
            if self._scheduler.resets.take_stale(self._time()):
                await self._refresh_metadata()
            lookups = self._scheduler.resets.plan(self._time())
        finally:
            self._is_looking_up = False
        await asyncio.gather(*(self._look_up(lookup) for lookup in lookups))

    async def _look_up(self, lookup: OffsetLookup) -> None:
        requests = (list_offsets_once(self._cluster, wanted) for wanted in lookup.requests)
        answers = await asyncio.gather(*requests)
        self._scheduler.resets.apply(lookup, answers, self._time())
        _seeks, starts, ends = answers
        for tp in starts.listed.keys() & ends.listed.keys():
            self.log_ranges[tp] = LogRange(starts.listed[tp].offset, ends.listed[tp].offset)

    def refresh(self) -> None:
        """Start a metadata refresh."""
        self._is_refreshing = True
        self.spawn(self._refresh())

    @property
    def is_refreshing(self) -> bool:
        """Whether a metadata refresh is under way."""
        return self._is_refreshing

    async def _refresh(self) -> None:
        waiting = self._states.begin_refresh(self._time())
        try:
            await self._refresh_metadata()
        finally:
            self._is_refreshing = False
            self._states.end_refresh(waiting, self._time())

    async def _refresh_metadata(self) -> None:
        try:
            await self._cluster.refresh()
        except AsyncGroupError as error:
            if not is_retriable_error(error):
                raise
            self._events.append(NoMetadata(error))

    async def aclose(self) -> None:
        """Give up the requests in flight."""
        for node_id, flight in list(self._flights.items()):
            if not flight.task.done():
                self._give_up(node_id)
        await cancel_and_wait(*self._tasks)
        for partition in list(self._states.partitions.values()):
            self._states.remove(partition)

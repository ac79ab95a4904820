"""BrokerTask: sends what the scheduler plans for one broker and gives it the answers; it never waits for a slow reader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import (
    EXPRESS_LANE,
    MAIN_LANE,
    BrokerPartitions,
    FetchPlan,
    lanes_of,
)
from asyncgroup.consumer.fetch_outcome import FetchOutcomes
from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.validation import Validation, send_epoch_request
from asyncgroup.errors import AsyncGroupError, UnsupportedVersionError
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.wire import messages as m

__all__ = ["BrokerTask", "send_fetch", "validate_positions"]

_log = logging.getLogger("asyncgroup.consumer")


class _PendingFetch:
    """A fetch in flight."""

    __slots__ = ("last_received_at", "plan", "received", "scope", "sent_at")

    def __init__(self, plan: FetchPlan, scope: asyncio.Timeout, now: float, received: int) -> None:
        self.plan = plan
        self.scope = scope  # rescheduled to end the wait for the response
        self.sent_at = now  # loop time
        self.received = received  # the connection's received bytes at the last look
        self.last_received_at = now  # loop time at which `received` was seen to change


class BrokerTask:
    """Fetches on both lanes from one broker and has it validate positions, until `end`.

    A fetch on the main lane may wait at the broker for up to `fetch_max_wait`; a partition that becomes fetchable in the
    meantime is fetched at once on the express lane. `lane_suffix` separates the lanes of several clients on one ClusterClient,
    so that none waits for another's long poll.
    """

    def __init__(
        self,
        broker: BrokerPartitions,
        scheduler: FetchScheduler,
        cluster: ClusterClient,
        config: ConsumerConfig,
        lane_suffix: str,
    ) -> None:
        self.broker = broker
        self.node_id = broker.node_id
        self._scheduler = scheduler
        self._cluster = cluster
        self._config = config
        self._lane_suffix = lane_suffix
        self._time = asyncio.get_running_loop().time
        self._changed = {MAIN_LANE: asyncio.Event(), EXPRESS_LANE: asyncio.Event()}
        self._validate = asyncio.Event()
        self._ended = asyncio.Event()
        self._pending: dict[str, _PendingFetch] = {}  # by lane
        self.last_fetch = float("-inf")
        """Loop time of the last response."""
        self.idle_checks = 0
        """Consecutive checks that found the broker without partitions."""

    def __repr__(self) -> str:
        return (
            f"<BrokerTask node {self.node_id}: {len(self.broker)} partitions, {len(self._pending)} in flight>"
        )

    # --- watching -----------------------------------------------------------------------------------------------

    @property
    def pending_since(self) -> float:
        """Loop time at which the oldest fetch in flight was sent; infinity if there is none."""
        return min((fetch.sent_at for fetch in self._pending.values()), default=float("inf"))

    def note_received(self) -> None:
        """Note where bytes have arrived since the last call, for `is_unresponsive`."""
        now = self._time()
        for lane, fetch in self._pending.items():
            received = self._received_bytes(lane)
            if received != fetch.received:
                fetch.last_received_at, fetch.received = now, received

    def is_unresponsive(self, seconds: float) -> bool:
        """Return whether a response is overdue by `seconds` and no part of it was received for as long.

        A large response takes time: while bytes arrive, as noted by `note_received`, the broker is not unresponsive.
        """
        now = self._time()
        return any(
            now - max(fetch.sent_at + fetch.plan.max_wait, fetch.last_received_at) > seconds
            for fetch in self._pending.values()
        )

    def _received_bytes(self, lane: str) -> int:
        return self._cluster.pool.received_bytes(self.node_id, lane + self._lane_suffix)

    def give_up_unwanted(self) -> None:
        """End the wait for responses of which no partition is wanted any more.

        Such a fetch is given up together with its connection, so that the next one does not wait for its response.
        """
        for fetch in self._pending.values():
            # with a deadline it was given up already, though its task has not run yet
            if fetch.scope.when() is None and not self.broker.is_wanted(fetch.plan):
                fetch.scope.reschedule(self._time())

    def wake(self) -> None:
        """Make both lanes look again for partitions to fetch."""
        for event in self._changed.values():
            event.set()

    def end(self) -> None:
        """End `run`, and close the connections."""
        self._ended.set()

    # --- tasks --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send what is planned, until `end`."""
        loops = (self._run_lane(MAIN_LANE), self._run_lane(EXPRESS_LANE), self._run_validation())
        tasks = [asyncio.create_task(loop, name=f"fetches of {self}") for loop in loops]
        ending = asyncio.create_task(self._ended.wait(), name=f"end of {self}")
        try:
            done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*tasks, ending)
        self._cluster.pool.retire_lanes(lanes_of(self._lane_suffix), self.node_id)

    async def _run_lane(self, lane: str) -> None:
        changed = self._changed[lane]
        while True:
            changed.clear()
            plan = self._scheduler.plan(self.broker, lane, self._time())
            if self.broker.awaits_validation:
                self._validate.set()
            if plan is None:
                await changed.wait()
            else:
                await self._fetch(plan)

    async def _fetch(self, plan: FetchPlan) -> None:
        """Send one fetch, and give the scheduler its outcome."""
        scheduler, lane = self._scheduler, plan.lane + self._lane_suffix
        try:
            async with asyncio.timeout(None) as scope:
                received = self._received_bytes(plan.lane)
                self._pending[plan.lane] = _PendingFetch(plan, scope, self._time(), received)
                timeout = self._config.request_timeout + plan.max_wait
                outcomes = await send_fetch(
                    self._cluster, self.broker, plan, self._config, lane=lane, timeout=timeout
                )
        except TimeoutError:  # `give_up_unwanted`: all of its partitions have moved
            self._cluster.pool.abandon_lane(self.node_id, lane)
            self.broker.give_up(plan)
        except AsyncGroupError as error:
            _log.debug("fetch from node %d failed: %s", self.node_id, error)
            scheduler.fetch_failed(self.broker, plan, error, self._time())
        except asyncio.CancelledError:
            # the next fetch on this lane must not wait for the response to this one
            self._cluster.pool.abandon_lane(self.node_id, lane)
            self.broker.end(plan)
            raise
        else:
            self.last_fetch = self._time()
            scheduler.apply(self.broker, plan, outcomes, self.last_fetch)
            self._cluster.hooks.emit("on_fetch", self.node_id, outcomes.total_bytes, len(plan.partitions))
        finally:
            self._pending.pop(plan.lane, None)
            self.wake()

    async def _run_validation(self) -> None:
        while True:
            await self._validate.wait()
            self._validate.clear()
            if validation := self._scheduler.plan_validation(self.broker):
                await validate_positions(self._cluster, self._scheduler, self.broker, validation, self._time)
            self.wake()


async def send_fetch(
    cluster: ClusterClient,
    broker: BrokerPartitions,
    plan: FetchPlan,
    config: ConsumerConfig,
    *,
    lane: str,
    timeout: float,
) -> FetchOutcomes:
    """Send a planned fetch and return its outcomes. Raises BrokerError, TransportError, ProtocolError."""
    response = await cluster.network.request_versioned(
        plan.node_id,
        m.FetchRequest,
        lambda version: broker.build_request(plan, config, version),
        lane=lane,
        timeout=timeout,
        highest=plan.highest_version,
    )
    return broker.read_response(plan, response, config)


async def validate_positions(
    cluster: ClusterClient,
    scheduler: FetchScheduler,
    broker: BrokerPartitions,
    validation: Validation,
    time: Callable[[], float],
) -> None:
    """Have a broker validate positions."""
    try:
        ends = await send_epoch_request(cluster, broker.node_id, validation.values())
    except UnsupportedVersionError:
        scheduler.skip_validation(validation)
    except AsyncGroupError as error:
        scheduler.validation_failed(broker, validation, error, time())
    else:
        scheduler.apply_validation(broker, validation, ends, time())

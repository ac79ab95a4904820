"""BrokerTask: sends what the scheduler plans for one broker and gives it the answers; it never waits for a slow reader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import BrokerPartitions
from asyncgroup.consumer.fetch_outcome import FetchOutcomes
from asyncgroup.consumer.fetch_plan import EXPRESS_LANE, MAIN_LANE, FetchPlan, lanes_of
from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.partition_consumer import TURN_BYTES
from asyncgroup.consumer.validation import Validation, send_epoch_request
from asyncgroup.errors import AsyncGroupError, UnsupportedVersionError
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.wire import messages as m

__all__ = ["BrokerTask", "send_fetch", "validate_positions"]

_log = logging.getLogger("asyncgroup.consumer")


class _PendingFetch:
    """A fetch in flight."""

    __slots__ = ("last_received_at", "plan", "received", "sent_at", "submission")

    def __init__(self, plan: FetchPlan, now: float, received: int) -> None:
        self.plan = plan
        self.sent_at = now  # loop time
        self.received = received  # the connection's received bytes at the last look
        self.last_received_at = now  # loop time at which `received` was seen to change
        self.submission: asyncio.Task[None] | None = None
        """The task that waits until the request can be sent, if it could not be sent at once."""


class BrokerTask:
    """Fetches on both lanes from one broker and has it validate positions, until `end`.

    A fetch on the main lane may wait at the broker for up to `fetch_max_wait`; a partition that becomes fetchable in the
    meantime is fetched at once on the express lane. `lane_suffix` separates the lanes of several clients on one ClusterClient,
    so that none waits for another's long poll.

    A response is handled and its readers are woken in the turn of the event loop that received it. The next request is also
    sent in that turn, unless the response was small: sending takes about 0.1 ms, and the readers wait for nothing else, so they
    come first, and the request follows in their turn.
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
        broker.wake = self.wake
        self.node_id = broker.node_id
        self._scheduler = scheduler
        self._cluster = cluster
        self._config = config
        self._lane_suffix = lane_suffix
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._validate = asyncio.Event()
        self._ended = asyncio.Event()
        self._context: Context | None = (
            None  # of the plans, while it runs: that of `run`, not that of any reader
        )
        self._next_plan: asyncio.Handle | None = None  # in the next turn of the loop
        self._timer: asyncio.TimerHandle | None = None  # plans when the express lane may be used
        self._bug: asyncio.Future[None] = self._loop.create_future()  # an unexpected error in a callback
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

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the callbacks that plan and the requests in flight, until `end`; raise the first bug of a callback."""
        self._context = copy_context()
        self.wake()
        validation = start_task(self._run_validation(), name=f"validation at node {self.node_id}")
        ending = start_task(self._ended.wait(), name=f"end of {self}")
        try:
            waits: list[asyncio.Future[Any]] = [validation, ending, self._bug]
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            self._context = None
            for handle in (self._next_plan, self._timer):
                if handle is not None:
                    handle.cancel()
            submissions = [self._abandon(fetch) for fetch in list(self._pending.values())]
            self._bug.cancel()
            await cancel_and_wait(validation, ending, *(task for task in submissions if task is not None))
        self._cluster.pool.retire_lanes(lanes_of(self._lane_suffix), self.node_id)

    def end(self) -> None:
        """End `run`, and close the connections."""
        self._ended.set()

    def wake(self) -> None:
        """Look for partitions to fetch in the next turn of the event loop."""
        if self._next_plan is None and self._context is not None:
            self._next_plan = self._loop.call_soon(self._plan, context=self._context)

    def give_up_unwanted(self) -> None:
        """End the wait for responses of which no partition is wanted any more.

        Such a fetch is given up together with its connection, so that the next one does not wait for its response.
        """
        for fetch in list(self._pending.values()):
            if not self.broker.is_wanted(fetch.plan):
                self._abandon(fetch)
                self.wake()

    def _abandon(self, fetch: _PendingFetch) -> asyncio.Task[None] | None:
        """Give up a fetch with its connection; return the task that would have sent it, which is cancelled."""
        del self._pending[fetch.plan.lane]
        self._cluster.pool.abandon_lane(self.node_id, fetch.plan.lane + self._lane_suffix)
        self.broker.give_up(fetch.plan)
        if fetch.submission is not None:
            fetch.submission.cancel()
        return fetch.submission

    # --- fetches ------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Send what there is to fetch on each lane without a fetch in flight. Called by the event loop."""
        if self._next_plan is not None:
            self._next_plan.cancel()
            self._next_plan = None
        if self._context is None:
            return
        try:
            for lane in (MAIN_LANE, EXPRESS_LANE):
                if lane not in self._pending:
                    plan = self._scheduler.plan(self.broker, lane, self._time())
                    if plan is not None:
                        self._send(plan)
            if self.broker.awaits_validation:
                self._validate.set()
            if EXPRESS_LANE not in self._pending and self.broker.candidates.changed:
                self._wake_at(self.broker.express_from())
        except Exception as bug:  # noqa: BLE001  raised by `run`
            self._report(bug)

    def _report(self, bug: Exception) -> None:
        if not self._bug.done():
            self._bug.set_exception(bug)

    def _wake_at(self, when: float) -> None:
        """Plan again when the express lane may be used, unless the main lane has its response before."""
        if self._timer is None and self._time() < when < float("inf"):
            self._timer = self._loop.call_at(when, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer = None
        self._plan()

    def _send(self, plan: FetchPlan) -> None:
        """Send a fetch: now if possible, otherwise by a task that waits for the connection."""
        fetch = self._pending[plan.lane] = _PendingFetch(plan, self._time(), self._received_bytes(plan.lane))
        try:
            is_sent = self._cluster.network.try_submit(
                plan.node_id,
                m.FetchRequest,
                partial(self.broker.build_request, plan, self._config),
                partial(self._on_response, fetch),
                lane=plan.lane + self._lane_suffix,
                timeout=self._config.request_timeout + plan.max_wait,
                highest=plan.highest_version,
            )
        except AsyncGroupError as error:
            self._loop.call_soon(self._on_response, fetch, None, error)
            return
        if not is_sent:
            name = f"fetch from node {self.node_id}"
            fetch.submission = start_task(self._submit(fetch), name=name)

    async def _submit(self, fetch: _PendingFetch) -> None:
        plan = fetch.plan
        try:
            await self._cluster.network.submit(
                plan.node_id,
                m.FetchRequest,
                partial(self.broker.build_request, plan, self._config),
                partial(self._on_response, fetch),
                lane=plan.lane + self._lane_suffix,
                timeout=self._config.request_timeout + plan.max_wait,
                highest=plan.highest_version,
            )
        except Exception as error:  # noqa: BLE001  a bug must not leave the readers waiting
            self._loop.call_soon(self._on_response, fetch, None, error)

    def _on_response(
        self, fetch: _PendingFetch, response: m.FetchResponse | None, error: Exception | None
    ) -> None:
        """Give the scheduler a fetch's outcome, and send the next one. Called when a response arrives."""
        if self._pending.get(fetch.plan.lane) is not fetch:
            return  # it was given up
        del self._pending[fetch.plan.lane]
        received = 0
        try:
            received = self._handle(fetch.plan, response, error)
        except Exception as bug:  # noqa: BLE001  raised by `run`
            self._report(bug)
        if 0 < received <= TURN_BYTES:
            self.wake()
        else:
            self._plan()

    def _handle(self, plan: FetchPlan, response: m.FetchResponse | None, error: Exception | None) -> int:
        """Apply a response or failure; return the bytes of its records."""
        now = self._time()
        try:
            if error is not None:
                raise error
            assert response is not None
            outcomes = self.broker.read_response(plan, response, self._config)
        except AsyncGroupError as failure:
            _log.debug("fetch from node %d failed: %s", self.node_id, failure)
            self._scheduler.fetch_failed(self.broker, plan, failure, now)
            return 0
        self.last_fetch = now
        self._scheduler.apply(self.broker, plan, outcomes, now)
        self._cluster.hooks.emit("on_fetch", self.node_id, outcomes.total_bytes, len(plan.partitions))
        return outcomes.total_bytes

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
        scheduler.skip_validation(broker, validation)
    except AsyncGroupError as error:
        scheduler.validation_failed(broker, validation, error, time())
    else:
        scheduler.apply_validation(broker, validation, ends, time())

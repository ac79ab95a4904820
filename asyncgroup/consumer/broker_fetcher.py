"""BrokerFetcher: fetches from one broker and hands the responses out; it never waits for a slow reader.

Two requests may be in flight: a long poll on the main lane, and a short one on the express lane for partitions that become
fetchable in the meantime.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.answers import FetchCallbacks, FetchResponseHandler, lease_of
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.fetch_plan import (
    SHORT_WAIT,
    FetchPlan,
    PlannedFetch,
    build_fetch_request,
    make_plan,
    response_limit,
)
from asyncgroup.consumer.fetch_session import TOPIC_ID_VERSION, FetchSession, sessionless_request
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.validator import PositionValidator
from asyncgroup.errors import AsyncGroupError, BrokerError, RequestTimedOut
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.batch_view import truncated_batch_size

__all__ = ["BrokerFetcher", "lanes_of"]

_log = logging.getLogger("asyncgroup.consumer")

MAIN_LANE: Final = "fetch"
EXPRESS_LANE: Final = "fetch-express"

_PartitionData = list[tuple[TopicPartition, Any]]
"""The partitions of a response with their data."""


class _PendingFetch:
    """A fetch in flight."""

    __slots__ = ("last_received_at", "plan", "received", "scope", "sent_at")

    def __init__(self, plan: FetchPlan, scope: asyncio.Timeout, now: float, received: int) -> None:
        self.plan = plan
        self.scope = scope  # rescheduled to end the wait for the response
        self.sent_at = now  # loop time
        self.received = received  # the connection's received bytes at the last look
        self.last_received_at = now  # loop time at which `received` was seen to change


def lanes_of(lane_suffix: str) -> set[str]:
    """Return the lanes of all fetchers of one client."""
    return {MAIN_LANE + lane_suffix, EXPRESS_LANE + lane_suffix}


class BrokerFetcher:
    """Fetches the partitions that one broker leads or is the preferred read replica of.

    A fetch on the main lane may wait at the broker for up to `fetch_max_wait`. A partition that becomes fetchable in the
    meantime (added, resumed, drained) is fetched at once on the express lane. `callbacks` is called for partitions that
    this fetcher stops fetching. `lane_suffix` separates the lanes of several clients on one Cluster, so that none waits for
    another's long poll.

    A partition on the express lane returns to the main lane with its next fetch: if that has to start without the
    partition, its `max_wait` is `SHORT_WAIT`, and the express lane does not fetch the partition again before it.

    The main lane uses a fetch session (KIP-227). A partition that is paused, full, or in flight on the express lane is
    removed from it, so that no partition is fetched twice. The express lane uses no session: its fetches are few and short,
    and a broker has only a thousand sessions for all of its clients.
    """

    def __init__(
        self,
        session: FetchSession,
        cluster: ClusterClient,
        config: ConsumerConfig,
        budget: Budget,
        callbacks: FetchCallbacks,
        lane_suffix: str = "",
    ) -> None:
        self.node_id = node_id = session.node_id
        self._lane_suffix = lane_suffix
        self._cluster = cluster
        self._config = config
        self._budget = budget
        self._handler = FetchResponseHandler(node_id, cluster, config, self.remove, callbacks)
        self._session = session
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._in_flight: dict[TopicPartition, PlannedFetch] = {}
        self._validator = PositionValidator(node_id, cluster, self._handler, self._is_current, self.wake)
        self._changed = {MAIN_LANE: asyncio.Event(), EXPRESS_LANE: asyncio.Event()}
        self._main_wait = 0.0  # `max_wait` of the main lane's fetch in flight; 0 without one
        self._skipped: dict[TopicPartition, int] = {}
        """Partitions, with their versions, that the last main fetch left out as they were on the express lane."""
        self.last_fetch = float("-inf")  # loop time of the last response
        self._pending: dict[str, _PendingFetch] = {}
        self._ended = asyncio.Event()
        self.idle_checks = 0
        """Consecutive checks that found the fetcher without partitions."""

    def __repr__(self) -> str:
        return f"<BrokerFetcher node {self.node_id}: {len(self._consumers)} partitions>"

    def __bool__(self) -> bool:
        return bool(self._consumers)

    @property
    def pending_since(self) -> float:
        """Loop time at which the oldest fetch in flight was sent; infinity if there is none."""
        return min((fetch.sent_at for fetch in self._pending.values()), default=float("inf"))

    def is_unresponsive(self, seconds: float) -> bool:
        """Return whether a response is overdue by `seconds` and no part of it was received for as long."""
        now = asyncio.get_running_loop().time()
        return any(
            now - max(fetch.sent_at + fetch.plan.max_wait, self._last_received_at(fetch, lane, now)) > seconds
            for lane, fetch in self._pending.items()
        )

    def _last_received_at(self, fetch: _PendingFetch, lane: str, now: float) -> float:
        """Return when calls of this method first saw the lane's present count of received bytes.

        A large response takes time: while bytes arrive, the broker is not unresponsive.
        """
        received = self._cluster.received_bytes(self.node_id, lane + self._lane_suffix)
        if received != fetch.received:
            fetch.last_received_at, fetch.received = now, received
        return fetch.last_received_at

    def add(self, consumer: PartitionConsumer) -> None:
        """Start fetching a partition."""
        self._consumers[consumer.tp] = consumer
        consumer.wake_fetcher = self.wake
        self.wake()

    def remove(self, consumer: PartitionConsumer) -> bool:
        """Stop fetching a partition; return False if it is not fetched here."""
        if self._consumers.get(consumer.tp) is not consumer:
            return False
        del self._consumers[consumer.tp]
        self._validator.discard(consumer)
        self._in_flight.pop(consumer.tp, None)
        consumer.reserved = 0
        return True

    def release_moved(self) -> list[PartitionConsumer]:
        """Stop fetching the partitions that have another leader now, and return them.

        A fetch in flight of which no other partition is wanted is given up together with its connection, so that the next
        fetch does not wait for its response.
        """
        view = self._cluster.view
        moved = [
            consumer
            for tp, consumer in self._consumers.items()
            if view.leader(tp) not in (-1, self.node_id)
            and consumer.fetch_position.preferred_replica != self.node_id
        ]
        for consumer in moved:
            self.remove(consumer)
        if moved:
            self._give_up_fetches()
        return moved

    def release_from_follower(self, seconds: float) -> None:
        """Return partitions to their leaders if this node, a follower, is unresponsive for `seconds`."""
        if not self.is_unresponsive(seconds):
            return
        followed = [c for c in self._consumers.values() if c.fetch_position.preferred_replica == self.node_id]
        for consumer in followed:
            what = (
                f"partition {consumer.tp}: follower {self.node_id} does not answer; fetching from the leader"
            )
            self._handler.leave_unresponsive_follower(consumer, RequestTimedOut(what))
        if followed:
            self._give_up_fetches()

    def _give_up_fetches(self) -> None:
        """End the wait for responses of which no partition is wanted any more."""
        for fetch in self._pending.values():
            if fetch.scope.when() is not None:
                continue  # given up already, though its task has not run yet
            if not any(self._in_flight.get(tp) is planned for tp, planned in fetch.plan.partitions.items()):
                fetch.scope.reschedule(asyncio.get_running_loop().time())

    def wake(self) -> None:
        """Make both lanes look again for partitions to fetch."""
        for event in self._changed.values():
            event.set()

    def end(self) -> None:
        """End `run`, and close this fetcher's connections."""
        self._ended.set()

    async def run(self) -> None:
        """Fetch on both lanes and validate positions, until `end`."""
        loops = (self.run_main, self.run_express, self.run_validation)
        tasks = [asyncio.create_task(loop(), name=f"{loop.__name__} of {self}") for loop in loops]
        ending = asyncio.create_task(self._ended.wait(), name=f"end of {self}")
        try:
            done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*tasks, ending)
        self._cluster.retire_lanes(lanes_of(self._lane_suffix), self.node_id)

    async def run_main(self) -> None:
        """Fetch on the main lane, without end."""
        while True:
            plan = await self._wait_for_plan(MAIN_LANE)
            self._main_wait = plan.max_wait
            try:
                await self._fetch(plan, MAIN_LANE)
            finally:
                self._main_wait = 0.0

    async def run_express(self) -> None:
        """Fetch on the express lane, without end: only while the main lane waits, and with a short `max_wait`."""
        while True:
            plan = await self._wait_for_plan(EXPRESS_LANE)
            await self._fetch(plan._replace(max_wait=min(plan.max_wait, SHORT_WAIT)), EXPRESS_LANE)

    async def run_validation(self) -> None:
        """Have this node validate positions, without end."""
        await self._validator.run()

    # --- planning -----------------------------------------------------------------------------------------------

    async def _wait_for_plan(self, lane: str) -> FetchPlan:
        """Wait until there is a partition to fetch on a lane; on the express lane only while the main lane waits."""
        changed = self._changed[lane]
        while True:
            changed.clear()
            if lane == MAIN_LANE or self._main_wait > 0:
                plan = self._plan(lane)
                if plan.partitions:
                    return plan
            await changed.wait()

    def _plan(self, lane: str) -> FetchPlan:
        """Plan a fetch of all partitions that may be fetched on a lane and are not in flight."""
        # in the order of `self._consumers`, which `_rotate` keeps fair
        idle = [consumer for consumer in self._consumers.values() if not self._is_in_flight(consumer)]
        max_wait = self._config.fetch_max_wait
        if lane == MAIN_LANE:
            # with partitions on the express lane this fetch is short, so that the next one can include them
            self._skipped = {c.tp: c.version for c in self._consumers.values() if self._is_in_flight(c)}
            if self._skipped:
                max_wait = min(max_wait, SHORT_WAIT)
        elif self._main_wait <= SHORT_WAIT:
            # leave the partitions that wait for the next main fetch alone, unless a seek has moved them since
            idle = [consumer for consumer in idle if self._skipped.get(consumer.tp) != consumer.version]
        epochs: dict[TopicPartition, int] = {}
        idle = [consumer for consumer in idle if self._check_position(consumer, epochs)]
        return make_plan(idle, epochs, self._budget.fetch_size, max_wait)

    def _is_in_flight(self, consumer: PartitionConsumer) -> bool:
        """Return whether a partition is in flight at its current position; a fetch from before a seek does not count."""
        planned = self._in_flight.get(consumer.tp)
        return planned is not None and planned.consumer is consumer and planned.version == consumer.version

    def _check_position(self, consumer: PartitionConsumer, epochs: dict[TopicPartition, int]) -> bool:
        """Return whether the position may be fetched from this node, as far as the metadata tells.

        If not, start what makes it so: restart at a recreated topic, return to the leader, or validate the position. Adds
        the leader's epoch to `epochs`.
        """
        tp, position = consumer.tp, consumer.fetch_position
        topic = self._cluster.view.topics.get(tp.topic)
        if topic is None:
            return True
        if (
            topic.topic_id != position.topic_id
            and position.update_topic_id(topic.topic_id)
            and consumer.is_fetchable
        ):
            self._handler.handle_recreated_topic(consumer, topic.topic_id)
            if self._consumers.get(tp) is not consumer:
                return False
            position.update_topic_id(topic.topic_id)
        info = topic.partitions.get(tp.partition)
        if info is None:
            return True
        epochs[tp] = info.leader_epoch
        must_validate = position.must_validate(consumer.fetched_epoch, info)
        if position.preferred_replica == self.node_id:
            # only a leader can validate a position; the lease may be over
            now = asyncio.get_running_loop().time()
            if must_validate or position.select_read_replica(info.leader, now, info) != self.node_id:
                self._handler.return_to_leader(consumer)
                return False
        if must_validate:
            self._validator.put(consumer)
        return not must_validate

    # --- fetching -----------------------------------------------------------------------------------------------

    async def _fetch(self, plan: FetchPlan, lane: str) -> None:
        """Send one fetch and handle its response; after a failure all its partitions are redispatched.

        Until `_release` its partitions are in `_in_flight`, with the requested bytes reserved in the budget. They are
        released before the response is handled, so that handling sees only what is still in flight.
        """
        self._reserve(plan)
        try:
            async with asyncio.timeout(None) as scope:
                received = self._cluster.received_bytes(self.node_id, lane + self._lane_suffix)
                self._pending[lane] = _PendingFetch(plan, scope, asyncio.get_running_loop().time(), received)
                response = await self._send(plan, lane)
            found = self._read_response(plan, response, lane)
        except TimeoutError:  # `_give_up_fetches`: all of its partitions have moved
            self._cluster.abandon_lane(self.node_id, lane + self._lane_suffix)
            if lane == MAIN_LANE:
                self._session.invalidate()
        except AsyncGroupError as error:
            self._release(plan)
            _log.debug("fetch from node %d failed: %s", self.node_id, error)
            if lane == MAIN_LANE:
                self._session.invalidate()
            self._handler.redispatch([planned.consumer for planned in plan.partitions.values()], error)
        except asyncio.CancelledError:
            # the next fetch on this lane must not wait for the response to this one
            self._cluster.abandon_lane(self.node_id, lane + self._lane_suffix)
            raise
        else:
            self._release(plan)
            self.last_fetch = asyncio.get_running_loop().time()
            self._handle_response(plan, response, found)
        finally:
            self._release(plan)
            self._pending.pop(lane, None)
            self.wake()

    def _reserve(self, plan: FetchPlan) -> None:
        for tp, planned in plan.partitions.items():
            self._in_flight[tp] = planned
            planned.consumer.reserved = planned.wanted.max_bytes

    def _release(self, plan: FetchPlan) -> None:
        for tp, planned in plan.partitions.items():
            # a later fetch may be registered here, and another fetcher's reservation in the consumer
            if self._in_flight.get(tp) is planned:
                del self._in_flight[tp]
                planned.consumer.reserved = 0

    async def _send(self, plan: FetchPlan, lane: str) -> m.FetchResponse:
        wanted = plan.wanted
        all_known = all(data.topic_id != m.NO_UUID for data in wanted.values())
        send_rack = self._config.rack_id != "" and self._begin_leases(plan)

        def build(version: int) -> m.FetchRequest:
            sent = (
                self._session.next_request(wanted, version)
                if lane == MAIN_LANE
                else sessionless_request(wanted)
            )
            return build_fetch_request(sent, self._config, plan.max_wait, version, send_rack=send_rack)

        return await self._cluster.request_versioned(
            self.node_id,
            m.FetchRequest,
            build,
            lane=lane + self._lane_suffix,
            timeout=self._config.request_timeout + plan.max_wait,
            highest=None if all_known else TOPIC_ID_VERSION - 1,
        )

    def _begin_leases(self, plan: FetchPlan) -> bool:
        """Begin the leases of partitions that are fetched from this follower for the first time.

        Return whether the request may have the rack id: not while a replica is avoided, as the leader would advise it again.
        """
        now, lease = asyncio.get_running_loop().time(), lease_of(self._config)
        positions = [planned.consumer.fetch_position for planned in plan.partitions.values()]
        for position in positions:
            if position.preferred_replica == self.node_id:
                position.begin_lease(now, lease)
        return not any(position.is_avoiding_replica(now) for position in positions)

    def _read_response(self, plan: FetchPlan, response: m.FetchResponse, lane: str) -> _PartitionData:
        """Return a response's partitions; none if a new session has to be started. Raises BrokerError, ProtocolError."""
        is_main = lane == MAIN_LANE
        if response.error_code:
            if is_main and self._session.handle_error(response.error_code):
                _log.debug("node %d: a new fetch session after error %d", self.node_id, response.error_code)
                return []
            raise BrokerError(response.error_code, f"fetch from node {self.node_id}")
        names = {planned.wanted.topic_id: tp.topic for tp, planned in plan.partitions.items()}
        found: _PartitionData = []
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            found += [(TopicPartition(name, data.partition_index), data) for data in topic.partitions]
        if is_main:
            self._session.handle_response(response, [tp for tp, _ in found])
        return found

    def _handle_response(self, plan: FetchPlan, response: m.FetchResponse, found: _PartitionData) -> None:
        """Hand a response's partitions to the handler, skipping those that are no longer fetched at this position."""
        filled = {tp: data.records for tp, data in found if data.records}
        cuts = {
            tp: size for tp, records in filled.items() if (size := truncated_batch_size(records)) is not None
        }
        served = [tp for tp in filled if tp not in cuts]
        total = 0
        for tp, data in found:
            if data.records:
                total += len(data.records)
            planned = plan.partitions.get(tp)
            # not if it was removed or had a seek while the request was in flight
            if planned is not None and self._is_current(planned.consumer, planned.version):
                if tp in cuts and not data.error_code:
                    limit = min(planned.wanted.max_bytes, response_limit(self._config))
                    self._handler.handle_partial_batch(
                        planned.consumer, data, cuts[tp], limit, is_alone=not served
                    )
                else:
                    self._handler.handle(planned.consumer, data, response, zero_copy=len(filled) == 1)
        answered = {tp for tp, _ in found}
        for tp, planned in plan.partitions.items():
            if tp not in answered and self._is_current(planned.consumer, planned.version):
                planned.consumer.fetch_failures.clear()  # a session's response omits partitions without news
        self._rotate(served)
        self._cluster.hooks.emit("on_fetch", self.node_id, total, len(plan.partitions))

    def _is_current(self, consumer: PartitionConsumer, version: int) -> bool:
        """Return whether a partition is still fetched here and its position has not jumped since `version`."""
        return consumer.version == version and self._consumers.get(consumer.tp) is consumer

    def _rotate(self, served: list[TopicPartition]) -> None:
        """Move partitions that got records to the end, so that each comes first in turn.

        A broker fills a response in the order of the request, and returns a batch larger than the requested bytes for the
        first partition only (KIP-74), so those without records have to move up (`SubscriptionState.movePartitionToEnd` in
        Java). Within a session the broker does the same; partitions that return to the session are added at its end.
        """
        for tp in served:
            if tp in self._consumers:
                self._consumers[tp] = self._consumers.pop(tp)

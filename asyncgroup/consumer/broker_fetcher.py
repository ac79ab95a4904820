"""One task for each broker: asks it for its partitions' records and splits the answers, waiting for nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from asyncgroup.cluster import Cluster
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
from asyncgroup.wire.records import truncated_batch_size

__all__ = ["BrokerFetcher", "lanes_of"]

_log = logging.getLogger("asyncgroup.consumer")

MAIN_LANE: Final = "fetch"
EXPRESS_LANE: Final = "fetch-express"

_PartitionData = list[tuple[TopicPartition, Any]]
"""The partitions of a response."""


class _PendingFetch:
    """A fetch without an answer yet. `scope` ends the wait for it; `received` is the lane's count of bytes when looked
    at last, at `last_received_at`.
    """

    __slots__ = ("last_received_at", "plan", "received", "scope", "sent_at")

    def __init__(self, plan: FetchPlan, scope: asyncio.Timeout, now: float, received: int) -> None:
        self.plan, self.scope = plan, scope
        self.sent_at = self.last_received_at = now
        self.received = received


def lanes_of(lane_suffix: str) -> set[str]:
    """The lanes of all fetchers of one client."""
    return {MAIN_LANE + lane_suffix, EXPRESS_LANE + lane_suffix}


class BrokerFetcher:
    """Fetches the partitions that one broker leads, or is the closest replica of.

    The main lane parks at the broker for up to `fetch_max_wait`. A partition that begins to want records meanwhile
    (added, resumed, drained) is asked for at once on the express lane. `callbacks` is told of partitions that are let go
    of. `lane_suffix` tells lanes of several clients on one Cluster apart, so that nobody waits behind another's long poll.

    A partition on the express lane goes over to the main lane as soon as that comes back: if the main lane has to set
    out without it, it is parked for a moment only, and the express lane leaves the partition alone meanwhile.

    The main lane has a fetch session (KIP-227); a partition that is paused, full, or under way on the express lane is
    forgotten by it, so that none is ever fetched twice. The express lane asks outside of any session: for a few
    partitions and for a moment, while a broker has room for a thousand sessions of all its clients.
    """

    def __init__(
        self,
        session: FetchSession,
        cluster: Cluster,
        config: ConsumerConfig,
        budget: Budget,
        callbacks: FetchCallbacks,
        lane_suffix: str = "",
    ) -> None:
        self.node_id = node_id = session.node_id
        self._lane_suffix = lane_suffix
        self._cluster, self._config, self._budget = cluster, config, budget
        self._handler = FetchResponseHandler(node_id, cluster, config, self.remove, callbacks)
        self._session = session
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._in_flight: dict[TopicPartition, PlannedFetch] = {}
        self._validator = PositionValidator(node_id, cluster, self._handler, self._is_current, self.wake)
        self._changed = {MAIN_LANE: asyncio.Event(), EXPRESS_LANE: asyncio.Event()}
        self._main_wait = 0.0  # seconds that the main lane's fetch may be parked; 0 while there is none
        self._skipped: dict[TopicPartition, int] = {}
        """Partitions that the main lane could not take, as the express lane had them, with their versions."""
        self.last_fetch = float("-inf")
        self._pending: dict[str, _PendingFetch] = {}
        self._ended = asyncio.Event()
        self.idle_checks = 0
        """How often in a row it was found without any partition."""

    def __repr__(self) -> str:
        return f"<BrokerFetcher node {self.node_id}: {len(self._consumers)} partitions>"

    def __bool__(self) -> bool:
        return bool(self._consumers)

    @property
    def pending_since(self) -> float:
        """Loop time of the oldest ask that has no answer yet; infinity if there is none."""
        return min((fetch.sent_at for fetch in self._pending.values()), default=float("inf"))

    def is_unresponsive(self, seconds: float) -> bool:
        """Whether an answer is due for longer than `seconds`, and no part of it has come for as long either."""
        now = asyncio.get_running_loop().time()
        return any(
            now - max(fetch.sent_at + fetch.plan.max_wait, self._last_received_at(fetch, lane, now)) > seconds
            for lane, fetch in self._pending.items()
        )

    def _last_received_at(self, fetch: _PendingFetch, lane: str, now: float) -> float:
        """When bytes were received last on a lane, as far as calls of this have seen: a large answer takes its time."""
        received = self._cluster.received_bytes(self.node_id, lane + self._lane_suffix)
        if received != fetch.received:
            fetch.last_received_at, fetch.received = now, received
        return fetch.last_received_at

    def add(self, consumer: PartitionConsumer) -> None:
        """Fetch a partition from now on."""
        self._consumers[consumer.tp] = consumer
        consumer.wake_fetcher = self.wake
        self.wake()

    def remove(self, consumer: PartitionConsumer) -> bool:
        """Stop fetching a partition; False if it isn't fetched here."""
        if self._consumers.get(consumer.tp) is not consumer:
            return False
        del self._consumers[consumer.tp]
        self._validator.discard(consumer)
        self._in_flight.pop(consumer.tp, None)
        consumer.reserved = 0
        return True

    def release_moved(self) -> list[PartitionConsumer]:
        """Stop fetching the partitions that another node leads by now, and give them back.

        A fetch of which nothing else is wanted is given up, and so is its connection: what is asked next must not wait
        behind it.
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
        """Send partitions back to their leaders if this node, a follower, owes an answer for longer than `seconds`."""
        if not self.is_unresponsive(seconds):
            return
        followed = [c for c in self._consumers.values() if c.fetch_position.preferred_replica == self.node_id]
        for consumer in followed:
            what = f"partition {consumer.tp}: node {self.node_id}, a follower, does not answer; the leader is asked"
            self._handler.leave_unresponsive_follower(consumer, RequestTimedOut(what))
        if followed:
            self._give_up_fetches()

    def _give_up_fetches(self) -> None:
        """End the wait for answers of which nothing is wanted any more."""
        for fetch in self._pending.values():
            if fetch.scope.when() is not None:
                continue  # given up already: its task has not come to that yet
            if not any(self._in_flight.get(tp) is ask for tp, ask in fetch.plan.partitions.items()):
                fetch.scope.reschedule(asyncio.get_running_loop().time())

    def wake(self) -> None:
        """Something may be wanted now."""
        for event in self._changed.values():
            event.set()

    def end(self) -> None:
        """End `run`, and close this fetcher's connections."""
        self._ended.set()

    async def run(self) -> None:
        """Fetch by both lanes and have positions confirmed, until `end`."""
        works = (self.run_main, self.run_express, self.run_validation)
        tasks = [asyncio.create_task(work(), name=f"{work.__name__} of {self}") for work in works]
        ending = asyncio.create_task(self._ended.wait(), name=f"end of {self}")
        try:
            done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*tasks, ending)
        self._cluster.retire_lanes(lanes_of(self._lane_suffix), self.node_id)

    async def run_main(self) -> None:
        """The main lane, for ever."""
        while True:
            plan = await self._wait_for_plan(MAIN_LANE)
            self._main_wait = plan.max_wait
            try:
                await self._fetch(plan, MAIN_LANE)
            finally:
                self._main_wait = 0.0

    async def run_express(self) -> None:
        """The express lane, for ever: only while the main lane is parked, and never parked for long itself."""
        while True:
            plan = await self._wait_for_plan(EXPRESS_LANE)
            await self._fetch(plan._replace(max_wait=min(plan.max_wait, SHORT_WAIT)), EXPRESS_LANE)

    async def run_validation(self) -> None:
        """Has positions confirmed by this node, for ever."""
        await self._validator.run()

    # --- what to ask for ----------------------------------------------------------------------------------------

    async def _wait_for_plan(self, lane: str) -> FetchPlan:
        changed = self._changed[lane]
        while True:
            changed.clear()
            if lane == MAIN_LANE or self._main_wait > 0:
                plan = self._plan(lane)
                if plan.partitions:
                    return plan
            await changed.wait()

    def _plan(self, lane: str) -> FetchPlan:
        idle = [consumer for consumer in self._consumers.values() if not self._is_in_flight(consumer)]
        max_wait = self._config.fetch_max_wait
        if lane == MAIN_LANE:
            self._skipped = {c.tp: c.version for c in self._consumers.values() if self._is_in_flight(c)}
            if self._skipped:
                max_wait = min(max_wait, SHORT_WAIT)
        elif self._main_wait <= SHORT_WAIT:
            idle = [consumer for consumer in idle if self._skipped.get(consumer.tp) != consumer.version]
        epochs: dict[TopicPartition, int] = {}
        idle = [consumer for consumer in idle if self._check_position(consumer, epochs)]
        return make_plan(idle, epochs, self._budget.fetch_size, max_wait)

    def _is_in_flight(self, consumer: PartitionConsumer) -> bool:
        """Whether it is asked for already; an ask from before a seek does not count."""
        ask = self._in_flight.get(consumer.tp)
        return ask is not None and ask.consumer is consumer and ask.version == consumer.version

    def _check_position(self, consumer: PartitionConsumer, epochs: dict[TopicPartition, int]) -> bool:
        """Whether its position holds for this node's log, as far as the metadata knows; notes the leader's epoch."""
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
            # only a leader can confirm a position, and a lease ends
            now = asyncio.get_running_loop().time()
            if must_validate or position.select_read_replica(info.leader, now, info) != self.node_id:
                self._handler.return_to_leader(consumer)
                return False
        if must_validate:
            self._validator.put(consumer)
        return not must_validate

    # --- fetching -----------------------------------------------------------------------------------------------

    async def _fetch(self, plan: FetchPlan, lane: str) -> None:
        """Send one fetch and hand out its answer; a failure sends all its partitions back to be dispatched anew."""
        self._reserve(plan)
        try:
            async with asyncio.timeout(None) as scope:
                received = self._cluster.received_bytes(self.node_id, lane + self._lane_suffix)
                self._pending[lane] = _PendingFetch(plan, scope, asyncio.get_running_loop().time(), received)
                response = await self._send(plan, lane)
            found = self._read_response(plan, response, lane)
        except TimeoutError:  # all of its partitions have moved
            self._cluster.abandon_lane(self.node_id, lane + self._lane_suffix)
            if lane == MAIN_LANE:
                self._session.invalidate()
        except AsyncGroupError as error:
            self._release(plan)
            _log.debug("fetch from node %d failed: %s", self.node_id, error)
            if lane == MAIN_LANE:
                self._session.invalidate()
            self._handler.redispatch([ask.consumer for ask in plan.partitions.values()], error)
        except asyncio.CancelledError:
            # the next one who fetches by this lane must not wait until the broker has answered us
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
        for tp, ask in plan.partitions.items():
            self._in_flight[tp] = ask
            ask.consumer.reserved = ask.wanted.max_bytes

    def _release(self, plan: FetchPlan) -> None:
        for tp, ask in plan.partitions.items():
            # another ask may stand here by now, or another fetcher's reservation in the consumer
            if self._in_flight.get(tp) is ask:
                del self._in_flight[tp]
                ask.consumer.reserved = 0

    async def _send(self, plan: FetchPlan, lane: str) -> m.FetchResponse:
        wanted = plan.wanted
        all_known = all(ask.topic_id != m.NO_UUID for ask in wanted.values())
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
        """Begin the leases of partitions that are asked for here for the first time; whether the rack may be told."""
        now, lease = asyncio.get_running_loop().time(), lease_of(self._config)
        positions = [ask.consumer.fetch_position for ask in plan.partitions.values()]
        for one in positions:
            if one.preferred_replica == self.node_id:
                one.begin_lease(now, lease)
        return not any(one.is_avoiding_replica(now) for one in positions)

    def _read_response(self, plan: FetchPlan, response: m.FetchResponse, lane: str) -> _PartitionData:
        """The partitions of an answer, none if the session has to begin anew. Raises BrokerError, ProtocolError."""
        is_main = lane == MAIN_LANE
        if response.error_code:
            if is_main and self._session.handle_error(response.error_code):
                _log.debug("node %d: a new fetch session after error %d", self.node_id, response.error_code)
                return []
            raise BrokerError(response.error_code, f"fetch from node {self.node_id}")
        names = {ask.wanted.topic_id: tp.topic for tp, ask in plan.partitions.items()}
        found: _PartitionData = []
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            found += [(TopicPartition(name, data.partition_index), data) for data in topic.partitions]
        if is_main:
            self._session.handle_response(response, [tp for tp, _ in found])
        return found

    def _handle_response(self, plan: FetchPlan, response: m.FetchResponse, found: _PartitionData) -> None:
        filled = {tp: data.records for tp, data in found if data.records}
        cuts = {
            tp: size for tp, records in filled.items() if (size := truncated_batch_size(records)) is not None
        }
        served = [tp for tp in filled if tp not in cuts]
        total = 0
        for tp, data in found:
            if data.records:
                total += len(data.records)
            asked = plan.partitions.get(tp)
            # removed, or sought elsewhere while the request was under way: not wanted any more
            if asked is not None and self._is_current(asked.consumer, asked.version):
                if tp in cuts and not data.error_code:
                    limit = min(asked.wanted.max_bytes, response_limit(self._config))
                    self._handler.handle_partial_batch(
                        asked.consumer, data, cuts[tp], limit, is_alone=not served
                    )
                else:
                    self._handler.handle(asked.consumer, data, response, zero_copy=len(filled) == 1)
        answered = {tp for tp, _ in found}
        for tp, asked in plan.partitions.items():
            if tp not in answered and self._is_current(asked.consumer, asked.version):
                asked.consumer.fetch_failures.clear()  # in a session no news is good news
        self._rotate(served)
        self._cluster.hooks.emit("on_fetch", self.node_id, total, len(plan.partitions))

    def _is_current(self, consumer: PartitionConsumer, version: int) -> bool:
        return consumer.version == version and self._consumers.get(consumer.tp) is consumer

    def _rotate(self, served: list[TopicPartition]) -> None:
        """Partitions that got records go to the end, so that each comes first in turn.

        A broker fills an answer in the order asked, and gives a batch larger than the ask to the first one only
        (KIP-74): those that got nothing must move up (`SubscriptionState.movePartitionToEnd` in Java). Within a session
        the broker itself does so; partitions that come back to the session go to its end as well.
        """
        for tp in served:
            if tp in self._consumers:
                self._consumers[tp] = self._consumers.pop(tp)

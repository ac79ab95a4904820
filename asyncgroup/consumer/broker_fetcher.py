"""One task for each broker: asks it for its partitions' records and splits the answers, waiting for nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from asyncgroup.cluster import Cluster
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.answers import Answers, Dispatch, lease_of
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.fetch_plan import (
    SHORT_WAIT,
    Ask,
    FetchPlan,
    answer_limit,
    build_request,
    make_plan,
)
from asyncgroup.consumer.fetch_session import TOPIC_IDS, FetchSession, outside_sessions
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.consumer.validator import Validator
from asyncgroup.errors import AsyncGroupError, BrokerError, RequestTimedOut
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.records import cut_batch_size

__all__ = ["BrokerFetcher", "lanes_of"]

_log = logging.getLogger("asyncgroup.consumer")

MAIN_LANE: Final = "fetch"
EXPRESS_LANE: Final = "fetch-express"

Found = list[tuple[TopicPartition, Any]]
"""The partitions of a response."""


class _Flight:
    """A fetch without an answer yet. `scope` ends the wait for it; `received` is the lane's count of bytes when looked
    at last, at `heard`.
    """

    __slots__ = ("asked_at", "heard", "plan", "received", "scope")

    def __init__(self, plan: FetchPlan, scope: asyncio.Timeout, now: float, received: int) -> None:
        self.plan, self.scope = plan, scope
        self.asked_at = self.heard = now
        self.received = received


def lanes_of(owner: str) -> set[str]:
    """The lanes of all fetchers of one client."""
    return {MAIN_LANE + owner, EXPRESS_LANE + owner}


class BrokerFetcher:
    """Fetches the partitions that one broker leads, or is the closest replica of.

    The main lane parks at the broker for up to `fetch_max_wait`. A partition that begins to want records meanwhile
    (added, resumed, drained) is asked for at once on the express lane. `dispatch` is told of partitions that are let go
    of. `owner` tells lanes of several clients on one Cluster apart, so that nobody waits behind another's long poll.

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
        dispatch: Dispatch,
        owner: str = "",
    ) -> None:
        self.node_id = node_id = session.node_id
        self._owner = owner
        self._cluster, self._config, self._budget = cluster, config, budget
        self._answers = Answers(node_id, cluster, config, self.remove, dispatch)
        self._session = session
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._under_way: dict[TopicPartition, Ask] = {}
        self._validator = Validator(node_id, cluster, self._answers, self._is_current, self.wake)
        self._changed = {MAIN_LANE: asyncio.Event(), EXPRESS_LANE: asyncio.Event()}
        self._main_wait = 0.0  # seconds that the main lane's fetch may be parked; 0 while there is none
        self._missed: dict[TopicPartition, int] = {}
        """Partitions that the main lane could not take, as the express lane had them, with their versions."""
        self.last_fetch = float("-inf")
        self._flights: dict[str, _Flight] = {}
        self._ended = asyncio.Event()
        self.idle_looks = 0
        """How often in a row it was found without any partition."""

    def __repr__(self) -> str:
        return f"<BrokerFetcher node {self.node_id}: {len(self._consumers)} partitions>"

    def __bool__(self) -> bool:
        return bool(self._consumers)

    @property
    def silent_since(self) -> float:
        """Loop time of the oldest ask that has no answer yet; infinity if there is none."""
        return min((flight.asked_at for flight in self._flights.values()), default=float("inf"))

    def is_silent(self, seconds: float) -> bool:
        """Whether an answer is due for longer than `seconds`, and no part of it has come for as long either."""
        now = asyncio.get_running_loop().time()
        return any(
            now - max(flight.asked_at + flight.plan.max_wait, self._heard(flight, lane, now)) > seconds
            for lane, flight in self._flights.items()
        )

    def _heard(self, flight: _Flight, lane: str, now: float) -> float:
        """When bytes were received last on a lane, as far as calls of this have seen: a large answer takes its time."""
        received = self._cluster.received_bytes(self.node_id, lane + self._owner)
        if received != flight.received:
            flight.heard, flight.received = now, received
        return flight.heard

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
        self._under_way.pop(consumer.tp, None)
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
            if view.leader(tp) not in (-1, self.node_id) and consumer.whereabouts.replica != self.node_id
        ]
        for consumer in moved:
            self.remove(consumer)
        if moved:
            self._give_up_fetches()
        return moved

    def release_followed(self, seconds: float) -> None:
        """Send partitions back to their leaders if this node, a follower, owes an answer for longer than `seconds`."""
        if not self.is_silent(seconds):
            return
        followed = [c for c in self._consumers.values() if c.whereabouts.replica == self.node_id]
        for consumer in followed:
            what = f"partition {consumer.tp}: node {self.node_id}, a follower, does not answer; the leader is asked"
            self._answers.give_up_follower(consumer, RequestTimedOut(what))
        if followed:
            self._give_up_fetches()

    def _give_up_fetches(self) -> None:
        """End the wait for answers of which nothing is wanted any more."""
        for flight in self._flights.values():
            if flight.scope.when() is not None:
                continue  # given up already: its task has not come to that yet
            if not any(self._under_way.get(tp) is ask for tp, ask in flight.plan.asks.items()):
                flight.scope.reschedule(asyncio.get_running_loop().time())

    def wake(self) -> None:
        """Something may be wanted now."""
        for event in self._changed.values():
            event.set()

    def end(self) -> None:
        """End `live`, and close this fetcher's connections."""
        self._ended.set()

    async def live(self) -> None:
        """Fetch by both lanes and have positions confirmed, until `end`."""
        works = (self.run, self.run_express, self.run_validation)
        tasks = [asyncio.create_task(work(), name=f"{work.__name__} of {self}") for work in works]
        ending = asyncio.create_task(self._ended.wait(), name=f"end of {self}")
        try:
            done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_and_wait(*tasks, ending)
        self._cluster.close_lanes(lanes_of(self._owner), self.node_id)

    async def run(self) -> None:
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
                if plan.asks:
                    return plan
            await changed.wait()

    def _plan(self, lane: str) -> FetchPlan:
        idle = [consumer for consumer in self._consumers.values() if not self._is_asked(consumer)]
        max_wait = self._config.fetch_max_wait
        if lane == MAIN_LANE:
            self._missed = {c.tp: c.version for c in self._consumers.values() if self._is_asked(c)}
            if self._missed:
                max_wait = min(max_wait, SHORT_WAIT)
        elif self._main_wait <= SHORT_WAIT:
            idle = [consumer for consumer in idle if self._missed.get(consumer.tp) != consumer.version]
        epochs: dict[TopicPartition, int] = {}
        idle = [consumer for consumer in idle if self._may_be_asked(consumer, epochs)]
        return make_plan(idle, epochs, self._budget.ask, max_wait)

    def _is_asked(self, consumer: PartitionConsumer) -> bool:
        """Whether it is asked for already; an ask from before a seek does not count."""
        ask = self._under_way.get(consumer.tp)
        return ask is not None and ask.consumer is consumer and ask.version == consumer.version

    def _may_be_asked(self, consumer: PartitionConsumer, epochs: dict[TopicPartition, int]) -> bool:
        """Whether its position holds for this node's log, as far as the metadata knows; notes the leader's epoch."""
        tp, places = consumer.tp, consumer.whereabouts
        topic = self._cluster.view.topics.get(tp.topic)
        if topic is None:
            return True
        if topic.topic_id != places.topic_id and places.is_recreated(topic.topic_id) and consumer.wants_more:
            self._answers.restart(consumer, topic.topic_id)
            if self._consumers.get(tp) is not consumer:
                return False
            places.is_recreated(topic.topic_id)
        info = topic.partitions.get(tp.partition)
        if info is None:
            return True
        epochs[tp] = info.leader_epoch
        must_validate = places.must_validate(consumer.fetched_epoch, info)
        if places.replica == self.node_id:
            # only a leader can confirm a position, and a lease ends
            now = asyncio.get_running_loop().time()
            if must_validate or places.home(info.leader, now, info) != self.node_id:
                self._answers.go_home(consumer)
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
                received = self._cluster.received_bytes(self.node_id, lane + self._owner)
                self._flights[lane] = _Flight(plan, scope, asyncio.get_running_loop().time(), received)
                response = await self._send(plan, lane)
            found = self._read(plan, response, lane)
        except TimeoutError:  # all of its partitions have moved
            self._cluster.leave_lane(self.node_id, lane + self._owner)
            if lane == MAIN_LANE:
                self._session.lost()
        except AsyncGroupError as error:
            self._release(plan)
            _log.debug("fetch from node %d failed: %s", self.node_id, error)
            if lane == MAIN_LANE:
                self._session.lost()
            self._answers.redispatch([ask.consumer for ask in plan.asks.values()], error)
        except asyncio.CancelledError:
            # the next one who fetches by this lane must not wait until the broker has answered us
            self._cluster.leave_lane(self.node_id, lane + self._owner)
            raise
        else:
            self._release(plan)
            self.last_fetch = asyncio.get_running_loop().time()
            self._hand_out(plan, response, found)
        finally:
            self._release(plan)
            self._flights.pop(lane, None)
            self.wake()

    def _reserve(self, plan: FetchPlan) -> None:
        for tp, ask in plan.asks.items():
            self._under_way[tp] = ask
            ask.consumer.reserved = ask.wanted.max_bytes

    def _release(self, plan: FetchPlan) -> None:
        for tp, ask in plan.asks.items():
            # another ask may stand here by now, or another fetcher's reservation in the consumer
            if self._under_way.get(tp) is ask:
                del self._under_way[tp]
                ask.consumer.reserved = 0

    async def _send(self, plan: FetchPlan, lane: str) -> m.FetchResponse:
        wanted = plan.wanted
        all_known = all(ask.topic_id != m.NO_UUID for ask in wanted.values())
        says_rack = self._config.rack_id != "" and self._begin_leases(plan)

        def build(version: int) -> m.FetchRequest:
            sent = self._session.next(wanted, version) if lane == MAIN_LANE else outside_sessions(wanted)
            return build_request(sent, self._config, plan.max_wait, version, says_rack=says_rack)

        return await self._cluster.request_built(
            self.node_id,
            m.FetchRequest,
            build,
            lane=lane + self._owner,
            timeout=self._config.request_timeout + plan.max_wait,
            highest=None if all_known else TOPIC_IDS - 1,
        )

    def _begin_leases(self, plan: FetchPlan) -> bool:
        """Begin the leases of partitions that are asked for here for the first time; whether the rack may be told."""
        now, lease = asyncio.get_running_loop().time(), lease_of(self._config)
        places = [ask.consumer.whereabouts for ask in plan.asks.values()]
        for one in places:
            if one.replica == self.node_id:
                one.begin_lease(now, lease)
        return not any(one.avoids_any(now) for one in places)

    def _read(self, plan: FetchPlan, response: m.FetchResponse, lane: str) -> Found:
        """The partitions of an answer, none if the session has to begin anew. Raises BrokerError, ProtocolError."""
        is_main = lane == MAIN_LANE
        if response.error_code:
            if is_main and self._session.refused(response.error_code):
                _log.debug("node %d: a new fetch session after error %d", self.node_id, response.error_code)
                return []
            raise BrokerError(response.error_code, f"fetch from node {self.node_id}")
        names = {ask.wanted.topic_id: tp.topic for tp, ask in plan.asks.items()}
        found: Found = []
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            found += [(TopicPartition(name, data.partition_index), data) for data in topic.partitions]
        if is_main:
            self._session.answered(response, [tp for tp, _ in found])
        return found

    def _hand_out(self, plan: FetchPlan, response: m.FetchResponse, found: Found) -> None:
        filled = {tp: data.records for tp, data in found if data.records}
        cuts = {tp: size for tp, records in filled.items() if (size := cut_batch_size(records)) is not None}
        served = [tp for tp in filled if tp not in cuts]
        total = 0
        for tp, data in found:
            if data.records:
                total += len(data.records)
            asked = plan.asks.get(tp)
            # removed, or sought elsewhere while the request was under way: not wanted any more
            if asked is not None and self._is_current(asked.consumer, asked.version):
                if tp in cuts and not data.error_code:
                    limit = min(asked.wanted.max_bytes, answer_limit(self._config))
                    self._answers.take_cut(asked.consumer, data, cuts[tp], limit, is_alone=not served)
                else:
                    self._answers.take(asked.consumer, data, response, own=len(filled) == 1)
        answered = {tp for tp, _ in found}
        for tp, asked in plan.asks.items():
            if tp not in answered and self._is_current(asked.consumer, asked.version):
                asked.consumer.trouble.clear()  # in a session no news is good news
        self._rotate(served)
        self._cluster.hooks.emit("on_fetch", self.node_id, total, len(plan.asks))

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

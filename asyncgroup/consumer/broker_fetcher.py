"""One task for each leader broker: asks it for its partitions' records and splits the answers, waiting for nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.fetch_plan import (
    ACTIONS,
    SHORT_WAIT,
    TOPIC_IDS,
    Action,
    Ask,
    FetchPlan,
    build_request,
    make_plan,
)
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AsyncGroupError, BrokerError, CorruptRecordsError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["BrokerFetcher"]

_log = logging.getLogger("asyncgroup.consumer")

MAIN_LANE: Final = "fetch"
EXPRESS_LANE: Final = "fetch-express"

Reset = Callable[[PartitionConsumer], None]


class Redispatch(Protocol):
    """Partitions must go elsewhere; `hinted` if the broker has named the new leader."""

    def __call__(self, consumers: list[PartitionConsumer], error: Exception, *, hinted: bool) -> None: ...


class BrokerFetcher:
    """Fetches the partitions that one broker leads.

    The main lane parks at the broker for up to `fetch_max_wait`. A partition that begins to want records meanwhile
    (added, resumed, drained) is asked for at once on the express lane. `on_redispatch` is told of partitions that
    must go elsewhere (already removed here), `on_reset` of those whose offset is not in the log. `owner` tells lanes
    of several clients on one Cluster apart, so that nobody waits behind another's long poll.
    """

    def __init__(
        self,
        node_id: int,
        cluster: Cluster,
        config: ConsumerConfig,
        budget: Budget,
        on_redispatch: Redispatch,
        on_reset: Reset,
        owner: str = "",
    ) -> None:
        self.node_id = node_id
        self._owner = owner
        self._cluster, self._config, self._budget = cluster, config, budget
        self._on_redispatch, self._on_reset = on_redispatch, on_reset
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        self._under_way: dict[TopicPartition, Ask] = {}
        self._changed = {MAIN_LANE: asyncio.Event(), EXPRESS_LANE: asyncio.Event()}
        self._main_is_parked = False
        self.last_fetch = float("-inf")

    def __repr__(self) -> str:
        return f"<BrokerFetcher node {self.node_id}: {len(self._consumers)} partitions>"

    def __bool__(self) -> bool:
        return bool(self._consumers)

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
        self._under_way.pop(consumer.tp, None)
        consumer.reserved = 0
        return True

    def wake(self) -> None:
        """Something may be wanted now."""
        for event in self._changed.values():
            event.set()

    async def run(self) -> None:
        """The main lane, for ever."""
        while True:
            plan = await self._wait_for_plan(MAIN_LANE)
            self._main_is_parked = True
            try:
                await self._fetch(plan, MAIN_LANE)
            finally:
                self._main_is_parked = False

    async def run_express(self) -> None:
        """The express lane, for ever: only while the main lane is parked, and never parked for long itself."""
        while True:
            plan = await self._wait_for_plan(EXPRESS_LANE)
            await self._fetch(plan._replace(max_wait=min(plan.max_wait, SHORT_WAIT)), EXPRESS_LANE)

    async def _wait_for_plan(self, lane: str) -> FetchPlan:
        changed = self._changed[lane]
        while True:
            changed.clear()
            if lane == MAIN_LANE or self._main_is_parked:
                plan = self._plan()
                if plan.asks:
                    return plan
            await changed.wait()

    def _plan(self) -> FetchPlan:
        idle = [consumer for consumer in self._consumers.values() if not self._is_asked(consumer)]
        view = self._cluster.view
        epochs = {c.tp: info.leader_epoch for c in idle if (info := view.partition(*c.tp)) is not None}
        return make_plan(idle, epochs, self._budget.ask, self._config.fetch_max_wait)

    def _is_asked(self, consumer: PartitionConsumer) -> bool:
        """Whether it is asked for already; an ask from before a seek does not count."""
        ask = self._under_way.get(consumer.tp)
        return ask is not None and ask.consumer is consumer and ask.version == consumer.version

    async def _fetch(self, plan: FetchPlan, lane: str) -> None:
        """Send one fetch and hand out its answer; a failure sends all its partitions back to be dispatched anew."""
        self._reserve(plan)
        try:
            response = await self._send(plan, lane)
        except AsyncGroupError as error:
            self._release(plan)
            _log.debug("fetch from node %d failed: %s", self.node_id, error)
            self._redispatch([ask.consumer for ask in plan.asks.values()], error)
        else:
            self._release(plan)
            self.last_fetch = asyncio.get_running_loop().time()
            self._hand_out(plan, response)
        finally:
            self._release(plan)
            self.wake()

    def _reserve(self, plan: FetchPlan) -> None:
        for tp, ask in plan.asks.items():
            self._under_way[tp] = ask
            ask.consumer.reserved = ask.max_bytes

    def _release(self, plan: FetchPlan) -> None:
        for tp, ask in plan.asks.items():
            # another ask may stand here by now, or another fetcher's reservation in the consumer
            if self._under_way.get(tp) is ask:
                del self._under_way[tp]
                ask.consumer.reserved = 0

    async def _send(self, plan: FetchPlan, lane: str) -> m.FetchResponse:
        topics = self._cluster.view.topics
        ids = {tp.topic: topics[tp.topic].topic_id for tp in plan.asks if tp.topic in topics}
        all_known = all(ids.get(tp.topic, m.NO_UUID) != m.NO_UUID for tp in plan.asks)
        return await self._cluster.request_built(
            self.node_id,
            m.FetchRequest,
            lambda version: build_request(plan, self._config, ids, version),
            lane=lane + self._owner,
            timeout=self._config.request_timeout + plan.max_wait,
            highest=None if all_known else TOPIC_IDS - 1,
        )

    def _hand_out(self, plan: FetchPlan, response: m.FetchResponse) -> None:
        if response.error_code:
            error = BrokerError(response.error_code, f"fetch from node {self.node_id}")
            self._redispatch([ask.consumer for ask in plan.asks.values()], error)
            return
        names = {
            self._cluster.view.topics[tp.topic].topic_id: tp.topic for tp in plan.asks if self._knows(tp)
        }
        alone = len(plan.asks) == 1
        total = 0
        served: list[TopicPartition] = []
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                asked = plan.asks.get(TopicPartition(name, data.partition_index))
                if data.records:
                    total += len(data.records)
                    served.append(TopicPartition(name, data.partition_index))
                # removed, or sought elsewhere while the request was under way: not wanted any more
                if asked is not None and self._is_current(asked.consumer, asked.version):
                    self._take(asked.consumer, data, response, alone)
        self._rotate(served)
        self._cluster.hooks.emit("on_fetch", self.node_id, total, len(plan.asks))

    def _knows(self, tp: TopicPartition) -> bool:
        return tp.topic in self._cluster.view.topics

    def _is_current(self, consumer: PartitionConsumer, version: int) -> bool:
        return consumer.version == version and self._consumers.get(consumer.tp) is consumer

    def _rotate(self, served: list[TopicPartition]) -> None:
        """Partitions that got records go to the end, so that each comes first in turn.

        A broker fills an answer in the order asked, and gives a batch larger than the ask to the first one only
        (KIP-74): those that got nothing must move up (`SubscriptionState.movePartitionToEnd` in Java).
        """
        for tp in served:
            if tp in self._consumers:
                self._consumers[tp] = self._consumers.pop(tp)

    def _take(self, consumer: PartitionConsumer, data: Any, response: m.FetchResponse, alone: bool) -> None:
        code = data.error_code
        action = ACTIONS.get(code, Action.REDISPATCH if is_retriable(code) else Action.FAIL)
        if action is Action.DELIVER:
            try:
                consumer.fetched(data.records, data.high_watermark, data.log_start_offset, own=alone)
            except CorruptRecordsError as error:
                consumer.fail(CorruptRecordsError(f"partition {consumer.tp}: {error}"))
        elif action is Action.RESET:
            self.remove(consumer)
            self._on_reset(consumer)
        elif action is Action.REDISPATCH:
            self._take_hint(consumer.tp, data, response)
            hinted = self._cluster.view.leader(consumer.tp) not in (-1, self.node_id)
            self._redispatch([consumer], self._said(code, consumer), hinted=hinted)
        else:
            consumer.fail(self._said(code, consumer))

    def _said(self, code: int, consumer: PartitionConsumer) -> BrokerError:
        return BrokerError(code, f"fetch of {consumer.tp} from node {self.node_id}")

    def _take_hint(self, tp: TopicPartition, data: Any, response: m.FetchResponse) -> None:
        """A broker that lost a partition may name the new leader (KIP-951)."""
        leader = data.current_leader
        if leader.leader_id >= 0:
            brokers = [BrokerInfo(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
            self._cluster.hint_leader(tp, leader.leader_id, leader.leader_epoch, brokers)

    def _redispatch(
        self, consumers: list[PartitionConsumer], error: Exception, *, hinted: bool = False
    ) -> None:
        if gone := [consumer for consumer in consumers if self.remove(consumer)]:
            self._on_redispatch(gone, error, hinted=hinted)

"""Test support: a fetch scheduler without an event loop, and a broker of which only the fetch session is real."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from asyncgroup.cluster.metadata import (
    BrokerInfo,
    ClusterView,
    PartitionInfo,
    TopicInfo,
    with_doubt,
    with_leader,
)
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.broker_partitions import BrokerPartitions
from asyncgroup.consumer.fetch_outcome import FetchedRecords, FetchOutcomes
from asyncgroup.consumer.fetch_plan import MAIN_LANE, FetchPlan
from asyncgroup.consumer.fetch_scheduler import FetchScheduler
from asyncgroup.consumer.fetch_session import FetchSession
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_states import PartitionStates
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff
from asyncgroup.wire import messages as m
from asyncgroup.wire.messages import FetchResponse

__all__ = ["NODE", "Metadata", "ScheduledPartitions", "SessionBroker"]

NODE = 1
VERSION = 12
"""The newest Fetch version with topic names."""


class Metadata:
    """Metadata of three brokers and a topic, whose partitions node 1 leads."""

    def __init__(self, partitions: int) -> None:
        brokers = {node: BrokerInfo(node, "10.0.0.1", 9000 + node) for node in (1, 2, 3)}
        infos = {number: PartitionInfo(number, NODE, 5, (1, 2, 3), (1, 2, 3)) for number in range(partitions)}
        topics = {"orders": TopicInfo("orders", partitions=infos)}
        self.view = replace(ClusterView(), brokers=brokers, topics=topics)

    def update_leader(
        self, tp: TopicPartition, leader: int, epoch: int, brokers: Iterable[BrokerInfo] = ()
    ) -> None:
        self.view = with_leader(self.view, tp, leader, epoch, brokers)

    def doubt_leader(self, tp: TopicPartition, node_id: int) -> None:
        self.view = with_doubt(self.view, tp, node_id)


class SessionBroker:
    """The broker's side of a fetch session: what it knows by the requests (`FetchSession.scala`)."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, int] = {}
        """The session's partitions, in the broker's order, each with its fetch offset."""

    def receive(self, request: m.FetchRequest) -> None:
        """Apply a request to the session."""
        if request.session_epoch == 0:
            self.wanted = {}
        for forgotten in request.forgotten_topics_data:
            for number in forgotten.partitions:
                del self.wanted[TopicPartition(forgotten.topic, number)]
        for topic in request.topics:
            for data in topic.partitions:
                self.wanted[TopicPartition(topic.topic, data.partition)] = data.fetch_offset


class ScheduledPartitions:
    """A scheduler with the partitions of one broker, at a time that the test sets."""

    def __init__(self, partitions: int, **config: object) -> None:
        self.config = ConsumerConfig(**config)  # type: ignore[arg-type]
        self.metadata = Metadata(partitions)
        rng = random.Random(1)
        self.states = PartitionStates(
            self.metadata,
            self.config,
            lambda: RetryBackoff(1.0, 1.0, rng),
            rng,
            wake=lambda _node: None,
            wake_timer=lambda _state: None,
            report=lambda _partitions, _error: None,
            sessions={NODE: FetchSession(NODE)},
        )
        self.scheduler = FetchScheduler(self.states, self.config, lambda: 0)
        self.session = SessionBroker()
        self.now = 100.0

    @property
    def broker(self) -> BrokerPartitions:
        return self.states.brokers[NODE]

    def add(self, number: int, offset: int = 0) -> TopicPartitionState:
        """Start fetching a partition."""
        tp = TopicPartition("orders", number)
        partition = TopicPartitionState(tp, offset, self.config, self.states.budget, Hooks())
        self.states.add(partition, self.now)
        return partition

    def send(self, lane: str = MAIN_LANE) -> FetchPlan | None:
        """Plan a fetch and have the broker receive the request."""
        plan = self.scheduler.plan(self.broker, lane, self.now)
        if plan is not None:
            request = self.broker.build_request(plan, self.config, VERSION)
            if lane == MAIN_LANE:
                self.session.receive(request)
        return plan

    def answer(self, plan: FetchPlan, data: Mapping[TopicPartition, bytes], high_watermark: int = 0) -> None:
        """Answer with records of some partitions; a session's response names no others. An express fetch has no session."""
        outcomes = FetchOutcomes(
            [
                (tp, FetchedRecords(data.get(tp), high_watermark, 0))
                for tp in (plan.partitions if plan.lane != MAIN_LANE else data)
            ],
            [tp for tp, records in data.items() if records],
            sum(map(len, data.values())),
        )
        session = self.broker.session
        if plan.lane == MAIN_LANE and session is not None:
            # a full request is answered with all partitions; what the others hold does not matter here
            session.handle_response(FetchResponse(session_id=7), list(session.session_partitions))
        self.scheduler.apply(self.broker, plan, outcomes, self.now)

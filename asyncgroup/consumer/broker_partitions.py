"""The partitions fetched from one broker: plans of fetches, what is in flight, and the fetch session. Pure state.

Two fetches may be in flight: a long poll on the main lane, and a short one on the express lane for partitions that become
fetchable in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import (
    FetchOutcomes,
    fetch_outcomes,
    missing_outcomes,
    response_partitions,
)
from asyncgroup.consumer.fetch_session import (
    TOPIC_ID_VERSION,
    FetchSession,
    PartitionData,
    build_fetch_request,
    response_limit,
    sessionless_request,
)
from asyncgroup.consumer.fetch_state import NO_NODE
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import BrokerError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "EXPRESS_LANE",
    "MAIN_LANE",
    "NO_LIMIT",
    "SHORT_WAIT",
    "BrokerPartitions",
    "FetchPlan",
    "PlannedFetch",
    "lanes_of",
    "make_plan",
]

_log = logging.getLogger("asyncgroup.consumer")

MAIN_LANE: Final = "fetch"
"""The purpose of the connections for long polls."""

EXPRESS_LANE: Final = "fetch-express"
"""The purpose of the connections for short fetches during a long poll."""

SHORT_WAIT: Final = 0.02
"""Seconds of `max_wait` for a fetch that had to leave out a partition, so that the next fetch can have it soon."""

NO_LIMIT: Final = float("inf")
"""`request_bytes` of a client whose partitions are all asked for at once."""


class PlannedFetch(NamedTuple):
    """One partition of a planned or in-flight fetch."""

    partition: TopicPartitionState
    version: int
    """The partition's version at the time of the plan; a seek raises it, which makes the response void."""
    wanted: PartitionData


class FetchPlan(NamedTuple):
    """A fetch to send."""

    partitions: dict[TopicPartition, PlannedFetch]
    """In order of precedence: brokers fill the response in this order (KIP-74)."""
    max_wait: float
    """Seconds that the broker may wait for `fetch_min_bytes`."""
    node_id: int = NO_NODE
    lane: str = MAIN_LANE
    send_rack: bool = False
    """Whether the request has the client's rack id (KIP-392)."""

    @property
    def wanted(self) -> dict[TopicPartition, PartitionData]:
        """The part of the plan that goes into the request."""
        return {tp: planned.wanted for tp, planned in self.partitions.items()}

    @property
    def highest_version(self) -> int | None:
        """The highest usable version of Fetch, None for no limit: newer ones need the id of every topic."""
        all_known = all(planned.wanted.topic_id != m.NO_UUID for planned in self.partitions.values())
        return None if all_known else TOPIC_ID_VERSION - 1


def lanes_of(lane_suffix: str) -> set[str]:
    """Return the fetch lanes of one client."""
    return {MAIN_LANE + lane_suffix, EXPRESS_LANE + lane_suffix}


def make_plan(
    partitions: Iterable[TopicPartitionState],
    epochs: Mapping[TopicPartition, int],
    max_wait: float,
    *,
    request_bytes: float = NO_LIMIT,
) -> FetchPlan:
    """Plan a fetch of the fetchable partitions in the given order, as many bytes of each as its budget says.

    `epochs` are the leaders' epochs. Partitions are added until they ask for `request_bytes` together. If one is left out
    because its buffer is full, `max_wait` is at most `SHORT_WAIT`, so that it does not wait for a long poll of the others
    once its reader makes room.
    """
    planned = {}
    left_out = False
    bytes_left = request_bytes
    for partition in partitions:
        if bytes_left <= 0:
            break
        if partition.is_fetchable:
            fetch_size = partition.budget.fetch_size
            bytes_left -= fetch_size
            tp = partition.tp
            epoch = epochs.get(tp, -1)
            wanted = PartitionData(
                partition.fetch_offset,
                epoch,
                fetch_size,
                partition.fetched_epoch,
                partition.fetch_source.topic_id,
            )
            planned[tp] = PlannedFetch(partition, partition.version, wanted)
        elif partition.is_buffer_full:
            left_out = True
    return FetchPlan(planned, min(max_wait, SHORT_WAIT) if left_out else max_wait)


class BrokerPartitions:
    """The partitions that one broker leads or is the preferred read replica of.

    A partition on the express lane returns to the main lane with its next fetch: if that has to start without the
    partition, its `max_wait` is `SHORT_WAIT`, and the express lane does not fetch the partition again before it.

    The main lane uses a fetch session (KIP-227). A partition that is paused, full, or in flight on the express lane is
    removed from it, so that no partition is fetched twice. The express lane uses no session: its fetches are few and short,
    and a broker has only a thousand sessions for all of its clients. For the same reason a client of few fetches has none.
    """

    def __init__(self, node_id: int, session: FetchSession | None) -> None:
        self.node_id = node_id
        self.session = session
        self.awaits_validation = False
        """Whether a partition has entered AWAIT_VALIDATION since the last validation was planned."""
        self._partitions: dict[TopicPartition, TopicPartitionState] = {}  # in order of precedence
        self._in_flight: dict[TopicPartition, PlannedFetch] = {}
        self._main_wait = 0.0  # `max_wait` of the main lane's fetch in flight; 0 without one
        self._skipped: dict[TopicPartition, int] = {}
        """Partitions, with their versions, that the last main fetch left out as they were on the express lane."""

    def __repr__(self) -> str:
        return f"<BrokerPartitions node {self.node_id}: {len(self._partitions)} partitions>"

    def __len__(self) -> int:
        return len(self._partitions)

    # --- partitions ---------------------------------------------------------------------------------------------

    def add(self, partition: TopicPartitionState) -> None:
        """Fetch a partition from this broker."""
        partition.node_id = self.node_id
        self._partitions[partition.tp] = partition

    def remove(self, partition: TopicPartitionState) -> None:
        """Fetch a partition no longer, if it is fetched from this broker."""
        if not self.has(partition):
            return
        del self._partitions[partition.tp]
        self._in_flight.pop(partition.tp, None)
        partition.node_id = NO_NODE
        partition.reserved = 0

    def has(self, partition: TopicPartitionState) -> bool:
        """Return whether a partition is fetched from this broker."""
        return self._partitions.get(partition.tp) is partition

    def is_current(self, partition: TopicPartitionState, version: int) -> bool:
        """Return whether a partition is still fetched here and its position has not jumped since `version`."""
        return partition.version == version and self.has(partition)

    def moved(self, view: ClusterView) -> list[TopicPartitionState]:
        """Return the partitions that have another leader by the metadata."""
        return [
            partition
            for tp, partition in self._partitions.items()
            if view.leader(tp) not in (-1, self.node_id)
            and partition.fetch_source.preferred_replica != self.node_id
        ]

    def followed(self) -> list[TopicPartitionState]:
        """Return the partitions of which this broker is the preferred read replica."""
        partitions = self._partitions.values()
        return [p for p in partitions if p.fetch_source.preferred_replica == self.node_id]

    def all(self) -> list[TopicPartitionState]:
        """Return the partitions in order of precedence."""
        return list(self._partitions.values())

    # --- fetches ------------------------------------------------------------------------------------------------

    def candidates(self, lane: str, max_wait: float) -> tuple[list[TopicPartitionState], float]:
        """Return the partitions that are not in flight and may be fetched on a lane, and the fetch's `max_wait`.

        The express lane is used only while the main lane waits.
        """
        # in the order of `_partitions`, which `rotate` keeps fair
        idle = [partition for partition in self._partitions.values() if not self._is_in_flight(partition)]
        if lane == MAIN_LANE:
            # with partitions on the express lane this fetch is short, so that the next one can include them
            return idle, max_wait if len(idle) == len(self._partitions) else min(max_wait, SHORT_WAIT)
        if not self._main_wait:
            return [], 0.0
        if self._main_wait <= SHORT_WAIT:
            # leave the partitions that wait for the next main fetch alone, unless a seek has moved them since
            idle = [partition for partition in idle if self._skipped.get(partition.tp) != partition.version]
        return idle, min(max_wait, SHORT_WAIT)

    def _is_in_flight(self, partition: TopicPartitionState) -> bool:
        """Return whether a partition is in flight at its current position; a fetch from before a seek does not count."""
        planned = self._in_flight.get(partition.tp)
        return planned is not None and planned.partition is partition and planned.version == partition.version

    def begin(self, plan: FetchPlan) -> None:
        """Begin a fetch: until `end` its partitions are in flight, with the requested bytes reserved in the budget."""
        if plan.lane == MAIN_LANE:
            self._main_wait = plan.max_wait
            on_express_lane = [planned.partition for planned in self._in_flight.values()]
            self._skipped = {p.tp: p.version for p in on_express_lane if self._is_in_flight(p)}
        for tp, planned in plan.partitions.items():
            self._in_flight[tp] = planned
            planned.partition.reserved = planned.wanted.max_bytes

    def end(self, plan: FetchPlan) -> None:
        """End a fetch, before its outcome is applied, so that this sees only what is still in flight."""
        if plan.lane == MAIN_LANE:
            self._main_wait = 0.0
        for tp, planned in plan.partitions.items():
            # a later fetch may be registered here, and another broker's reservation in the partition
            if self._in_flight.get(tp) is planned:
                del self._in_flight[tp]
                planned.partition.reserved = 0

    def is_wanted(self, plan: FetchPlan) -> bool:
        """Return whether a partition of a fetch in flight is still to be fetched from here."""
        return any(self._in_flight.get(tp) is planned for tp, planned in plan.partitions.items())

    def rotate(self, served: Iterable[TopicPartition]) -> None:
        """Move partitions that got records to the end, so that each comes first in turn.

        A broker fills a response in the order of the request, and returns a batch larger than the requested bytes for the
        first partition only (KIP-74), so those without records have to move up (`SubscriptionState.movePartitionToEnd` in
        Java). Within a session the broker does the same; partitions that return to the session are added at its end.
        """
        for tp in served:
            if tp in self._partitions:
                self._partitions[tp] = self._partitions.pop(tp)

    # --- requests and responses ---------------------------------------------------------------------------------

    def _session_of(self, plan: FetchPlan) -> FetchSession | None:
        return self.session if plan.lane == MAIN_LANE else None

    def build_request(self, plan: FetchPlan, config: ConsumerConfig, version: int) -> m.FetchRequest:
        """Return the request of a plan in a version; the session assumes that the broker receives it."""
        wanted = plan.wanted
        session = self._session_of(plan)
        sent = sessionless_request(wanted) if session is None else session.next_request(wanted, version)
        return build_fetch_request(sent, config, plan.max_wait, version, send_rack=plan.send_rack)

    def read_response(
        self, plan: FetchPlan, response: m.FetchResponse, config: ConsumerConfig
    ) -> FetchOutcomes:
        """Return a response's outcomes; none if a new session has to be started. Raises BrokerError, ProtocolError."""
        session = self._session_of(plan)
        if response.error_code:
            if session is not None and session.handle_error(response.error_code):
                _log.debug("node %d: a new fetch session after error %d", self.node_id, response.error_code)
                return FetchOutcomes([], [], 0)
            raise BrokerError(response.error_code, f"fetch from node {self.node_id}")
        wanted = plan.wanted
        found = response_partitions(response, {data.topic_id: tp.topic for tp, data in wanted.items()})
        if session is not None:
            session.handle_response(response, [tp for tp, _ in found])
        outcomes = fetch_outcomes(
            found,
            response,
            wanted,
            self.node_id,
            response_limit=response_limit(config),
            max_response_size=config.max_response_size,
        )
        is_throttled = not found and response.throttle_time_ms > 0  # then it was not processed (KIP-219)
        if session is None and not is_throttled:
            outcomes.partitions.extend(missing_outcomes(wanted, found, self.node_id))
        return outcomes

    def give_up(self, plan: FetchPlan) -> None:
        """End a fetch without a response. Its outcome is unknown, so the next request starts a new session."""
        self.end(plan)
        session = self._session_of(plan)
        if session is not None:
            session.invalidate()

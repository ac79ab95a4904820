"""The partitions fetched from one broker: what each lane may ask for, what is in flight, and the fetch session. Pure state.

Two fetches may be in flight: a long poll on the main lane, and a short one on the express lane for partitions that become
fetchable in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import (
    FetchOutcomes,
    fetch_outcomes,
    missing_outcomes,
    response_partitions,
)
from asyncgroup.consumer.fetch_plan import (
    MAIN_LANE,
    NO_LIMIT,
    SHORT_WAIT,
    FetchCandidates,
    FetchPlan,
    PlannedFetch,
    RequestSet,
    topic_names,
)
from asyncgroup.consumer.fetch_session import (
    FetchSession,
    SessionRequest,
    build_fetch_request,
    sessionless_request,
)
from asyncgroup.consumer.fetch_state import NO_NODE
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import BrokerError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["BrokerPartitions"]

_log = logging.getLogger("asyncgroup.consumer")

NOT_SENT: Final = float("-inf")
"""`_main_sent_at` without a fetch in flight on the main lane."""


class BrokerPartitions:
    """The partitions that one broker leads or is the preferred read replica of.

    A partition on the express lane returns to the main lane with its next fetch: if that has to start without the
    partition, its `max_wait` is `SHORT_WAIT`, and the express lane does not fetch the partition again before it. While
    the main lane's response is expected at once, as there is a backlog, the express lane waits for that: what has room in
    the meantime is then asked for together.

    The main lane uses a fetch session (KIP-227). A partition that is paused, full, or in flight on the express lane is
    removed from it, so that no partition is fetched twice. The express lane uses no session: its fetches are few and short,
    and a broker has only a thousand sessions for all of its clients. For the same reason a client of few fetches has none.
    """

    def __init__(self, node_id: int, session: FetchSession | None, wake: Callable[[], object]) -> None:
        self.node_id = node_id
        self.wake = wake
        """Called when there may be something to fetch; once a `BrokerTask` runs, this is its `wake`."""
        self.session = session
        self.awaits_validation = False
        """Whether a partition has entered AWAIT_VALIDATION since the last validation was planned."""
        self.candidates = FetchCandidates()
        self.requested = RequestSet()
        """What the main lane asks for: in flight until `end`, then until the next plan changes it."""
        self._express: dict[TopicPartition, PlannedFetch] = {}  # in flight
        self._main_wait = 0.0  # `max_wait` of the main lane's fetch in flight; 0 without one
        self._main_sent_at = NOT_SENT  # loop time
        self._skipped: dict[TopicPartition, int] = {}
        """Partitions, with their versions, that the last main fetch left out as they were on the express lane."""
        self._deferred: dict[TopicPartition, TopicPartitionState] = {}
        """Partitions that have changed while in flight on the main lane; they are looked at when that fetch has ended."""
        self._avoids_until = float("-inf")  # loop time until which a replica is avoided
        self._next_lease_end = float("inf")  # loop time at which the lease of a preferred read replica ends
        self._seen: tuple[object, ...] = ()  # what all partitions depend on, as of the last plan

    def __repr__(self) -> str:
        return f"<BrokerPartitions node {self.node_id}: {len(self)} partitions>"

    def __len__(self) -> int:
        return len(self.candidates.partitions)

    # --- partitions ---------------------------------------------------------------------------------------------

    def add(self, partition: TopicPartitionState) -> None:
        """Fetch a partition from this broker."""
        partition.node_id = self.node_id
        self.candidates.add(partition)
        self._avoids_until = max(self._avoids_until, partition.fetch_source.avoided_until)

    def remove(self, partition: TopicPartitionState) -> None:
        """Fetch a partition no longer, if it is fetched from this broker."""
        if not self.has(partition):
            return
        self.candidates.remove(partition.tp)
        self.requested.drop(partition.tp)
        self._express.pop(partition.tp, None)
        self._deferred.pop(partition.tp, None)
        partition.node_id = NO_NODE
        partition.reserved = 0

    def has(self, partition: TopicPartitionState) -> bool:
        """Return whether a partition is fetched from this broker."""
        return self.candidates.has(partition)

    def is_current(self, partition: TopicPartitionState, version: int) -> bool:
        """Return whether a partition is still fetched here and its position has not jumped since `version`."""
        return partition.version == version and self.has(partition)

    def moved(self, view: ClusterView) -> list[TopicPartitionState]:
        """Return the partitions that have another leader by the metadata."""
        return [
            partition
            for tp, partition in self.candidates.partitions.items()
            if view.leader(tp) not in (-1, self.node_id)
            and partition.fetch_source.preferred_replica != self.node_id
        ]

    def followed(self) -> list[TopicPartitionState]:
        """Return the partitions of which this broker is the preferred read replica."""
        return [p for p in self.all() if p.fetch_source.preferred_replica == self.node_id]

    def all(self) -> list[TopicPartitionState]:
        """Return the partitions in order of precedence."""
        return list(self.candidates.partitions.values())

    # --- replicas (KIP-392) -------------------------------------------------------------------------------------

    def begin_lease(self, partition: TopicPartitionState, now: float, seconds: float) -> None:
        """Begin the lease of a partition that is read from here as a follower, if this is its first fetch."""
        source = partition.fetch_source
        if source.preferred_replica == self.node_id:
            source.begin_lease(now, seconds)
            self._next_lease_end = min(self._next_lease_end, source.lease_end)

    def mark_ended_leases(self, now: float) -> None:
        """Have the next plan look at the partitions whose leases have ended."""
        if now < self._next_lease_end:
            return
        followed = self.followed()
        for partition in followed:
            if partition.fetch_source.lease_end <= now:
                self.candidates.note_changed(partition)
        ends = (partition.fetch_source.lease_end for partition in followed)
        self._next_lease_end = min((end for end in ends if end > now), default=float("inf"))

    def may_send_rack(self, now: float) -> bool:
        """Return whether a leader may advise a read replica: not while one is avoided, as it would advise that again."""
        return now >= self._avoids_until

    # --- plans --------------------------------------------------------------------------------------------------

    def express_from(self) -> float:
        """Return the loop time from which the express lane may be used; infinity while the main lane does not wait."""
        if not self._main_wait:
            return float("inf")
        return self._main_sent_at + SHORT_WAIT if self.requested.backlogged else self._main_sent_at

    def take_changed(self, seen: tuple[object, ...]) -> list[TopicPartitionState]:
        """Return the partitions to look at before a plan: all if `seen`, on which all depend, is not as at the last one.

        Those in flight have to wait until that has ended.
        """
        if seen != self._seen:
            self._seen = seen
            self.candidates.note_all_changed()
        changed = []
        for partition in self.candidates.take_changed():
            tp = partition.tp
            if self.is_main_in_flight and _is_in_flight(self.requested.planned.get(tp), partition):
                self._deferred[tp] = partition
            elif not _is_in_flight(self._express.get(tp), partition):
                partition.reserved = 0
                changed.append(partition)
        return changed

    def leave_out(self, tp: TopicPartition, *, is_full: bool) -> None:
        """Ask for a partition no longer: it is full, or not to be fetched."""
        self.requested.drop(tp)
        if is_full and tp in self.candidates.partitions:
            self.candidates.set_full(tp)
        else:
            self.candidates.set_idle(tp)

    def backlogged(self, plan: FetchPlan) -> list[PlannedFetch]:
        """Return the partitions of a plan whose logs are known to have more records."""
        if plan.lane == MAIN_LANE:
            return list(self.requested.backlogged.values())
        return [planned for planned in plan.partitions.values() if planned.has_backlog]

    def take_unproven(self, plan: FetchPlan) -> list[PlannedFetch]:
        """Return the partitions of a plan that had failures, as its response has come."""
        if plan.lane == MAIN_LANE:
            return self.requested.take_unproven()
        return [
            planned for planned in plan.partitions.values() if not planned.partition.fetch_failures.is_clear
        ]

    def plan_main(self, max_wait: float, request_bytes: float) -> FetchPlan:
        """Ask on the main lane for what is ready, up to `request_bytes`, beside what it asks for already."""
        candidates, requested = self.candidates, self.requested
        ready: Iterable[TopicPartition] = candidates.ready
        if request_bytes != NO_LIMIT:
            ready = self._within(request_bytes)
        for planned in candidates.take_ready(ready):
            requested.put(planned)
            planned.partition.reserved = planned.wanted.max_bytes
            self._express.pop(planned.partition.tp, None)  # in flight from before a seek
        self._skipped = {tp: planned.version for tp, planned in self._express.items() if planned.is_current}
        # a partition on the express lane, or a full one once its reader makes room, must not wait for a long poll
        is_short = self._skipped or candidates.full
        max_wait = min(max_wait, SHORT_WAIT) if is_short else max_wait
        return FetchPlan(requested.planned, max_wait, self.node_id, has_topic_ids=not requested.nameless)

    def _within(self, request_bytes: float) -> list[TopicPartition]:
        """Return the first of the ready partitions, until all that is asked for has `request_bytes`."""
        for tp in self.candidates.ready:
            self.requested.drop(tp)  # what it asked for before is answered or out of date, and takes no room
        found, room = [], request_bytes - self.requested.asked
        for tp in self.candidates.in_order(self.candidates.ready):
            if room <= 0:
                break
            found.append(tp)
            room -= self.candidates.ready[tp].wanted.max_bytes
        return found

    def plan_express(self, max_wait: float, lane: str) -> FetchPlan:
        """Ask on the express lane for what is ready, except what the next main fetch asks for in a moment."""
        ready: Iterable[TopicPartition] = self.candidates.ready
        if self._main_wait <= SHORT_WAIT:
            # leave the partitions that wait for the next main fetch alone, unless a seek has moved them since
            ready = [
                tp
                for tp, planned in self.candidates.ready.items()
                if self._skipped.get(tp) != planned.version
            ]
        chosen = {planned.partition.tp: planned for planned in self.candidates.take_ready(ready)}
        for tp in chosen:
            self.requested.drop(tp)  # in flight from before a seek
        has_topic_ids = all(planned.wanted.topic_id != m.NO_UUID for planned in chosen.values())
        return FetchPlan(chosen, min(max_wait, SHORT_WAIT), self.node_id, lane, has_topic_ids=has_topic_ids)

    # --- fetches ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> list[TopicPartition]:
        """The partitions in flight on either lane."""
        return [*(self.requested.planned if self.is_main_in_flight else ()), *self._express]

    @property
    def is_main_in_flight(self) -> bool:
        """Whether a fetch is in flight on the main lane."""
        return self._main_sent_at != NOT_SENT

    def begin(self, plan: FetchPlan, now: float) -> None:
        """Begin a fetch: until `end` its partitions are in flight, with the requested bytes reserved in the budget."""
        if plan.lane == MAIN_LANE:
            self._main_wait, self._main_sent_at = plan.max_wait, now
            return
        for tp, planned in plan.partitions.items():
            self._express[tp] = planned
            planned.partition.reserved = planned.wanted.max_bytes

    def end(self, plan: FetchPlan) -> None:
        """End a fetch, before its outcome is applied, so that this sees only what is still in flight."""
        if plan.lane == MAIN_LANE:
            self._main_wait, self._main_sent_at = 0.0, NOT_SENT
            deferred, self._deferred = self._deferred, {}
            self.candidates.changed.update(dict.fromkeys(deferred))
            return
        for tp, planned in plan.partitions.items():
            # there may be a later fetch of the partition here, and the partition may have another broker's reservation
            if self._express.get(tp) is planned:
                del self._express[tp]
                planned.partition.reserved = 0
                self.candidates.note_changed(planned.partition)

    def is_wanted(self, plan: FetchPlan) -> bool:
        """Return whether a partition of a fetch in flight is still to be fetched from here."""
        in_flight = self.requested.planned if plan.lane == MAIN_LANE else self._express
        return any(in_flight.get(tp) is planned for tp, planned in plan.partitions.items())

    # --- requests and responses ---------------------------------------------------------------------------------

    def _session_of(self, plan: FetchPlan) -> FetchSession | None:
        return self.session if plan.lane == MAIN_LANE else None

    def build_request(self, plan: FetchPlan, config: ConsumerConfig, version: int) -> m.FetchRequest:
        """Return the request of a plan in a version; the session assumes that the broker receives it."""
        sent = self._main_request(version) if plan.lane == MAIN_LANE else sessionless_request(plan.wanted)
        return build_fetch_request(
            sent, config, plan.max_wait, version, send_rack=plan.send_rack, max_bytes=plan.max_bytes
        )

    def _main_request(self, version: int) -> SessionRequest:
        wanted, touched = self.requested.wanted, self.requested.take_touched()
        sent = (
            sessionless_request(wanted)
            if self.session is None
            else self.session.next_request(wanted, version, touched)
        )
        if sent.wanted is not wanted:
            return sent
        return sent._replace(wanted={tp: wanted[tp] for tp in self.candidates.in_order(wanted)})

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
        wanted = self.requested.wanted if plan.lane == MAIN_LANE else plan.wanted
        by_id = self.requested.names if plan.lane == MAIN_LANE else topic_names(wanted)
        found, is_named = response_partitions(response, by_id)
        partitions = [tp for tp, _ in found]
        if session is not None:
            lacking = session.handle_response(response, partitions)
            if not is_named:
                session.invalidate()  # so that the next response has to name all partitions
        else:
            is_throttled = not found and response.throttle_time_ms > 0  # then it was not processed (KIP-219)
            lacking = [] if is_throttled else list(set(wanted).difference(partitions))
        outcomes = fetch_outcomes(
            found,
            response,
            wanted,
            self.node_id,
            response_limit=plan.max_bytes,
            max_response_size=config.max_response_size,
        )
        if lacking:
            outcomes.partitions.extend(missing_outcomes((tp for tp in lacking if tp in wanted), self.node_id))
        return outcomes

    def give_up(self, plan: FetchPlan) -> None:
        """End a fetch without a response. Its outcome is unknown, so the next request starts a new session."""
        self.end(plan)
        session = self._session_of(plan)
        if session is not None:
            session.invalidate()


def _is_in_flight(planned: PlannedFetch | None, partition: TopicPartitionState) -> bool:
    """Return whether a partition is in flight at its current position; a fetch from before a seek does not count."""
    return planned is not None and planned.partition is partition and planned.is_current

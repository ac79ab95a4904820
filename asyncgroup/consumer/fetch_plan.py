"""FetchPlan: the partitions of one fetch. Pure state.

`FetchCandidates`: the partitions of a broker that can be asked for next. `RequestSet`: those of the main lane, kept between
fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.consumer.fetch_session import TOPIC_ID_VERSION, PartitionData
from asyncgroup.consumer.fetch_state import NO_NODE
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = [
    "EXPRESS_LANE",
    "MAIN_LANE",
    "NO_LIMIT",
    "SHORT_WAIT",
    "FetchCandidates",
    "FetchPlan",
    "PlannedFetch",
    "RequestSet",
    "lanes_of",
    "topic_names",
]

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
    has_backlog: bool = False
    """Whether the log is known to have more records than were fetched, so that the broker answers at once."""

    @property
    def is_current(self) -> bool:
        """Whether the partition's position has not jumped since the plan."""
        return self.partition.version == self.version


class FetchPlan(NamedTuple):
    """A fetch to send."""

    partitions: Mapping[TopicPartition, PlannedFetch]
    """On the main lane those of the `RequestSet`, which the next plan changes."""
    max_wait: float
    """Seconds that the broker may wait for `fetch_min_bytes`."""
    node_id: int = NO_NODE
    lane: str = MAIN_LANE
    max_bytes: int = 0
    """Bytes that the response may have with several record batches (KIP-74)."""
    send_rack: bool = False
    """Whether the request has the client's rack id (KIP-392)."""
    has_topic_ids: bool = True
    """Whether the id of every topic is known."""

    @property
    def wanted(self) -> dict[TopicPartition, PartitionData]:
        """The part of the plan that goes into the request."""
        return {tp: planned.wanted for tp, planned in self.partitions.items()}

    @property
    def highest_version(self) -> int | None:
        """The highest usable version of Fetch, None for no limit: newer ones need the id of every topic."""
        return None if self.has_topic_ids else TOPIC_ID_VERSION - 1

    def explained(self, error: Exception) -> Exception:
        """Return the error of a failed fetch; if no usable version is left without topic ids, with the topics that have none."""
        if self.has_topic_ids or not isinstance(error, UnsupportedVersionError):
            return error
        topics = sorted({tp.topic for tp, data in self.wanted.items() if data.topic_id == m.NO_UUID})
        return UnsupportedVersionError(
            f"{error}; later versions name topics by id (KIP-516), and the metadata has no id of {', '.join(topics)}"
        )


def lanes_of(lane_suffix: str) -> set[str]:
    """Return the fetch lanes of one client."""
    return {MAIN_LANE + lane_suffix, EXPRESS_LANE + lane_suffix}


def topic_names(wanted: Mapping[TopicPartition, PartitionData]) -> dict[UUID, str]:
    """Return the names of topics by their ids."""
    return {data.topic_id: tp.topic for tp, data in wanted.items() if data.topic_id != m.NO_UUID}


class RequestSet:
    """The partitions that the main lane asks for.

    A fetch session states only what has changed since the last request (KIP-227), and so does this: what a response does
    not mention stays as it is, so that a thousand partitions without news cost a fetch nothing.
    """

    __slots__ = ("asked", "backlogged", "nameless", "names", "planned", "touched", "unproven", "wanted")

    def __init__(self) -> None:
        self.planned: dict[TopicPartition, PlannedFetch] = {}
        """In no order."""
        self.wanted: dict[TopicPartition, PartitionData] = {}
        """The part of `planned` that goes into the request."""
        self.asked = 0
        """Bytes that the partitions ask for together."""
        self.touched: dict[TopicPartition, None] = {}
        """What was added, changed or dropped since the last request, in order of precedence."""
        self.backlogged: dict[TopicPartition, PlannedFetch] = {}
        """The partitions with a backlog: while there is one, the broker answers at once."""
        self.unproven: dict[TopicPartition, PlannedFetch] = {}
        """The partitions with failures: the first response without an error clears them."""
        self.nameless: set[TopicPartition] = set()
        """The partitions whose topic id is unknown."""
        self.names: dict[UUID, str] = {}
        """The names by id of all topics that were ever requested: a response may name one that was dropped after the request."""

    def __repr__(self) -> str:
        return f"<RequestSet: {len(self.planned)} partitions, {len(self.touched)} changes>"

    def put(self, planned: PlannedFetch) -> None:
        """Add a partition, or change it."""
        tp, wanted = planned.partition.tp, planned.wanted
        before = self.wanted.get(tp)
        self.planned[tp] = planned
        # what has not changed is not in the next request of a session
        if before != wanted:
            self.wanted[tp] = wanted
            self.touched[tp] = None
            self.asked += wanted.max_bytes - (before.max_bytes if before else 0)
            self._note_topic(tp, wanted.topic_id)
        if planned.has_backlog:
            self.backlogged[tp] = planned
        else:
            self.backlogged.pop(tp, None)
        # failures are cleared by the next response without an error, for these partitions only
        if planned.partition.fetch_failures.is_clear:
            self.unproven.pop(tp, None)
        else:
            self.unproven[tp] = planned

    def _note_topic(self, tp: TopicPartition, topic_id: UUID) -> None:
        if topic_id == m.NO_UUID:
            self.nameless.add(tp)
        else:
            self.names[topic_id] = tp.topic
            self.nameless.discard(tp)

    def drop(self, tp: TopicPartition) -> None:
        """Remove a partition, if it is a member."""
        # callers need not know whether it was asked for
        if self.planned.pop(tp, None) is None:
            return
        self.asked -= self.wanted.pop(tp).max_bytes
        self.touched[tp] = None
        self.nameless.discard(tp)
        self.backlogged.pop(tp, None)
        self.unproven.pop(tp, None)

    def take_touched(self) -> list[TopicPartition]:
        """Return what has changed since the last call."""
        touched, self.touched = list(self.touched), {}
        return touched

    def take_unproven(self) -> list[PlannedFetch]:
        """Return the partitions with failures; a response has come."""
        unproven, self.unproven = list(self.unproven.values()), {}
        return unproven


class FetchCandidates:
    """The partitions of one broker in order of precedence, and the sets that a plan needs.

    A partition that has changed is looked at again by the next plan, which calls `set_ready`, `set_full` or `set_idle`
    for it. A plan costs as much as has changed, however many partitions there are.
    """

    __slots__ = ("_ranks", "_sequence", "changed", "full", "partitions", "ready")

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, TopicPartitionState] = {}
        """All, in order of precedence."""
        self._ranks: dict[TopicPartition, int] = {}  # the same order, for sorting a few
        self._sequence = count()
        self.changed: dict[TopicPartition, None] = {}
        """The partitions to look at again."""
        self.ready: dict[TopicPartition, PlannedFetch] = {}
        """The partitions that are fetchable and not asked for yet."""
        self.full: set[TopicPartition] = set()
        """The partitions that only their full buffers keep out of the next fetch."""

    def __repr__(self) -> str:
        return f"<FetchCandidates: {len(self.ready)} of {len(self.partitions)} ready, {len(self.changed)} changed>"

    def add(self, partition: TopicPartitionState) -> None:
        """Add a partition, as the last one."""
        tp = partition.tp
        self.partitions[tp] = partition
        self._ranks[tp] = next(self._sequence)
        self.changed[tp] = None

    def remove(self, tp: TopicPartition) -> None:
        """Remove a partition."""
        del self.partitions[tp], self._ranks[tp]
        self.changed.pop(tp, None)
        # or a plan could still take it from one of the sets
        self.set_idle(tp)

    def has(self, partition: TopicPartitionState) -> bool:
        """Return whether this very object is a member, and not another one of the same name."""
        return self.partitions.get(partition.tp) is partition

    def note_changed(self, partition: TopicPartitionState) -> None:
        """Have the next plan look at a partition, if it is a member."""
        if self.has(partition):
            self.changed[partition.tp] = None

    def note_all_changed(self) -> None:
        """Have the next plan look at all partitions."""
        self.changed = dict.fromkeys(self.partitions)

    def take_changed(self) -> list[TopicPartitionState]:
        """Return the partitions to look at."""
        changed, self.changed = self.changed, {}
        return [self.partitions[tp] for tp in changed]

    def rotate(self, served: Iterable[TopicPartition]) -> None:
        """Move partitions that got records to the end, so that each comes first in turn.

        A broker fills a response in the order of the request, and returns a batch larger than the requested bytes for the
        first partition only (KIP-74), so those without records have to move up (`SubscriptionState.movePartitionToEnd` in
        Java). Within a session the broker does the same; partitions that return to the session are added at its end.
        """
        for tp in served:
            if tp in self.partitions:
                # a dict keeps the order of insertion: this moves it to the end
                self.partitions[tp] = self.partitions.pop(tp)
                self._ranks[tp] = next(self._sequence)

    def in_order(self, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return members in order of precedence."""
        return sorted(tps, key=self._ranks.__getitem__)

    # --- the sets -----------------------------------------------------------------------------------------------

    def set_ready(self, planned: PlannedFetch) -> None:
        """A partition can be asked for."""
        tp = planned.partition.tp
        self.full.discard(tp)
        self.ready[tp] = planned

    def set_full(self, tp: TopicPartition) -> None:
        """A partition has to wait until its reader makes room."""
        self.ready.pop(tp, None)
        self.full.add(tp)

    def set_idle(self, tp: TopicPartition) -> None:
        """A partition is not to be fetched."""
        self.ready.pop(tp, None)
        self.full.discard(tp)

    def take_ready(self, tps: Iterable[TopicPartition]) -> list[PlannedFetch]:
        """Remove and return partitions that are asked for now, in order of precedence."""
        return [self.ready.pop(tp) for tp in self.in_order(tps)]

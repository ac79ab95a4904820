"""FetchPlan: the partitions of one fetch. `RequestSet`: the partitions of the main lane, kept between fetches. Pure state."""

from __future__ import annotations

from collections.abc import Mapping
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
        if before != wanted:
            self.wanted[tp] = wanted
            self.touched[tp] = None
            self.asked += wanted.max_bytes - (before.max_bytes if before else 0)
            self._note_topic(tp, wanted.topic_id)
        if planned.has_backlog:
            self.backlogged[tp] = planned
        else:
            self.backlogged.pop(tp, None)
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

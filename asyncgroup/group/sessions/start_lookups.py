"""StartLookups: newly assigned partitions whose start offsets are looked up, each by itself. Pure state.

First the group's commits of all of them are requested, then, for those without a commit, the offsets of the policy at their
leaders. A partition that fails is asked again alone, after a pause and with fresh metadata, for as long as it is assigned.
Java does the same in `ConsumerCoordinator.initWithCommittedOffsetsIfNeeded` and `OffsetFetcher.resetPositionsIfNeeded`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple

from asyncgroup.cluster.metadata import ClusterView, leader_and_epoch
from asyncgroup.consumer.partition_warnings import PartitionWarnings
from asyncgroup.consumer.retries import SILENT_SECONDS
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode
from asyncgroup.group.sessions.claim_source import ClaimStart
from asyncgroup.model import TopicPartition
from asyncgroup.net.backoff import RetryBackoff

__all__ = ["FoundStart", "PendingStart", "StartLookup", "StartLookups", "StartStage"]

_log = logging.getLogger("asyncgroup.group")

GATHER_SECONDS: Final = 0.2
"""Longest time that a start offset waits for answers for other partitions: they start with the same hooks."""

RETRY_WINDOW: Final = 0.02
"""Lookups that are due within this time, in seconds, share their requests."""

NEVER: Final = float("inf")
AT_ONCE: Final = float("-inf")

_FOR_METADATA: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors of a committed offset after which metadata is refreshed."""


class StartStage(Enum):
    """What is looked up for a partition."""

    COMMIT = "the group's committed offset"
    LOG = "the offset by auto_offset_reset"


class PendingStart:
    """A partition whose start offset is not known yet."""

    __slots__ = (
        "asked_at",
        "due_at",
        "error",
        "failed_at",
        "failures",
        "flight",
        "is_recreated",
        "leader",
        "since",
        "stage",
        "tp",
        "version",
    )

    def __init__(self, tp: TopicPartition, version: int, now: float) -> None:
        self.tp = tp
        self.version = version
        """The `ClaimSet.version` of the assignment that added it."""
        self.since = now
        """Loop time at which the lookup began."""
        self.stage = StartStage.COMMIT
        self.error: AsyncGroupError | None = None
        """Why the last lookup failed; None before the first failure."""
        self.failures = 0
        self.failed_at = AT_ONCE
        self.due_at = AT_ONCE
        """Loop time of the next request, or of the refresh of the metadata before it; infinity during a request."""
        self.asked_at: float | None = None
        """Loop time of the request in flight; None without one."""
        self.flight = 0
        """Raised by each request, and by a new leader: an answer with a lower number is void."""
        self.is_recreated = False
        """Whether the group's commit is of a deleted topic of the same name."""
        self.leader = (-1, -1)
        """Leader and leader epoch at the last request to it."""

    def __repr__(self) -> str:
        return f"<PendingStart {self.tp}: {self.stage.name}, {self.error or 'no error'}>"

    @property
    def needs_metadata(self) -> bool:
        """Whether metadata may be the reason of the last failure."""
        if self.stage is StartStage.LOG:
            return self.error is not None
        return isinstance(self.error, BrokerError) and self.error.code in _FOR_METADATA


class StartLookup(NamedTuple):
    """Partitions that share a request, each with its `PendingStart.flight`."""

    flights: dict[PendingStart, int]

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions to ask for."""
        return [pending.tp for pending in self.flights]

    @property
    def recreated(self) -> set[TopicPartition]:
        """Partitions of a topic that was recreated after the group's commit."""
        return {pending.tp for pending in self.flights if pending.is_recreated}


class FoundStart(NamedTuple):
    """A start offset, and the assignment for which it was looked up."""

    tp: TopicPartition
    start: ClaimStart
    version: int
    """The `ClaimSet.version` of the assignment that added the partition."""


class StartLookups:
    """The partitions that wait for their start offsets. `view` is the newest metadata; `now` is the loop's time."""

    def __init__(
        self, group_id: str, view: Callable[[], ClusterView], make_backoff: Callable[[], RetryBackoff]
    ) -> None:
        self._group_id = group_id
        self._view = view
        self._make_backoff = make_backoff
        self._backoff: RetryBackoff | None = None  # from the first failure on
        self._pending: dict[TopicPartition, PendingStart] = {}
        self._found: dict[TopicPartition, FoundStart] = {}  # until `take`
        self._found_at = NEVER  # loop time of the first of them
        self._warnings = PartitionWarnings()
        self._is_refreshing = False
        self._refreshed_at = AT_ONCE  # loop time of the end of the last refresh, failed or not

    def __repr__(self) -> str:
        return f"<StartLookups of {self._group_id!r}: {len(self._pending)} pending>"

    # --- what is looked up ----------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[PendingStart]:
        """The partitions whose start offsets are not known yet, sorted."""
        return [self._pending[tp] for tp in sorted(self._pending)]

    @property
    def is_settled(self) -> bool:
        """Whether each partition has had an answer or an error."""
        return all(pending.error is not None for pending in self._pending.values())

    def add(self, partitions: Iterable[TopicPartition], version: int, now: float) -> None:
        """Begin the lookup for partitions that the assignment `version` has added."""
        self._pending |= {tp: PendingStart(tp, version, now) for tp in partitions}

    def keep(self, assigned: AbstractSet[TopicPartition]) -> None:
        """Forget the partitions that are no longer assigned: later responses and errors for them are ignored."""
        for tp in [tp for tp in self._pending if tp not in assigned]:
            del self._pending[tp]
        for tp in [tp for tp in self._found if tp not in assigned]:
            del self._found[tp]
        if not self._found:
            self._found_at = NEVER

    # --- requests -------------------------------------------------------------------------------------------------

    def plan_commits(self, now: float) -> StartLookup | None:
        """Return the partitions whose committed offsets are to be requested now."""
        due = list(self._due(StartStage.COMMIT, now))
        return self._lookup(due, now) if due else None

    def plan_offsets(self, now: float) -> list[StartLookup]:
        """Return the partitions whose leaders are to be asked now: one lookup for each leader.

        A partition without a leader fails at once.
        """
        by_leader: dict[int, list[PendingStart]] = {}
        for pending in self._due(StartStage.LOG, now):
            pending.leader = leader_and_epoch(self._view(), pending.tp)
            by_leader.setdefault(pending.leader[0], []).append(pending)
        leaderless = by_leader.pop(-1, [])
        if leaderless:
            code = ErrorCode.LEADER_NOT_AVAILABLE
            lookup = self._lookup(leaderless, now)
            self.fail(lookup, {p.tp: BrokerError(code, f"start offset of {p.tp}") for p in leaderless}, now)
        return [self._lookup(group, now) for group in by_leader.values()]

    def _due(self, stage: StartStage, now: float) -> Iterator[PendingStart]:
        for pending in self._pending.values():
            if (
                pending.stage is stage
                and pending.due_at <= now + RETRY_WINDOW
                and not self._is_outdated(pending)
            ):
                yield pending

    def _lookup(self, asked: list[PendingStart], now: float) -> StartLookup:
        for pending in asked:
            pending.flight += 1
            pending.asked_at, pending.due_at = now, NEVER
        return StartLookup({pending: pending.flight for pending in asked})

    # --- answers --------------------------------------------------------------------------------------------------

    def current(self, lookup: StartLookup) -> list[TopicPartition]:
        """Return the partitions of a lookup whose answers still count."""
        return [pending.tp for pending in self._current(lookup)]

    def _current(self, lookup: StartLookup) -> Iterator[PendingStart]:
        for pending, flight in lookup.flights.items():
            if self._pending.get(pending.tp) is pending and pending.flight == flight:
                yield pending

    def found(self, lookup: StartLookup, starts: Mapping[TopicPartition, ClaimStart], now: float) -> None:
        """Keep the start offsets that an answer has, until `take`."""
        for pending in list(self._current(lookup)):
            if pending.tp in starts:
                del self._pending[pending.tp]
                self._found[pending.tp] = FoundStart(pending.tp, starts[pending.tp], pending.version)
                self._found_at = min(self._found_at, now)

    def without_commit(
        self,
        lookup: StartLookup,
        partitions: AbstractSet[TopicPartition],
        recreated: AbstractSet[TopicPartition],
    ) -> None:
        """The group has no commit of these partitions, or one of a deleted topic: ask their leaders next."""
        for pending in self._current(lookup):
            if pending.tp in partitions:
                pending.is_recreated = pending.tp in recreated
                pending.stage, pending.asked_at, pending.due_at = StartStage.LOG, None, AT_ONCE
                pending.error, pending.failures = None, 0

    def fail(
        self, lookup: StartLookup, problems: Mapping[TopicPartition, AsyncGroupError], now: float
    ) -> None:
        """Ask for these partitions again after a pause; those of one answer together."""
        self._backoff = self._backoff or self._make_backoff()
        pauses: dict[int, float] = {}  # by the number of failures
        for pending in self._current(lookup):
            if pending.tp not in problems:
                continue
            error = problems[pending.tp]
            pending.error, pending.failed_at, pending.asked_at = error, now, None
            if pending.failures not in pauses:
                pauses[pending.failures] = self._backoff.after(pending.failures)
            pending.due_at = now + pauses[pending.failures]
            pending.failures += 1
            if (others := self._warnings.others(pending.tp, pending.failures, error, now)) is not None:
                text, age = "group %s: %s cannot start for %.0f s: %s%s", now - pending.since
                _log.warning(text, self._group_id, pending.tp, age, error, others)

    def take(self, now: float) -> list[FoundStart]:
        """Return the start offsets with which claims start now, sorted.

        Empty while answers for others are awaited, for at most `GATHER_SECONDS`.
        """
        if not self._found or (self._awaits_answers and now < self._found_at + GATHER_SECONDS):
            return []
        found = [self._found[tp] for tp in sorted(self._found)]
        self._found.clear()
        self._found_at = NEVER
        return found

    @property
    def _awaits_answers(self) -> bool:
        """Whether a partition is in a request, or has not been in one yet."""
        return any(p.asked_at is not None or p.error is None for p in self._pending.values())

    # --- metadata and times ---------------------------------------------------------------------------------------

    def begin_refresh(self, now: float) -> bool:
        """Begin a metadata refresh if a partition that is due again needs one, or a leader is silent.

        Return whether it has begun; it is in progress until `end_refresh`.
        """
        if self._refresh_at() > now:
            return False
        self._is_refreshing = True
        return True

    def end_refresh(self, now: float) -> None:
        """The refresh has succeeded or failed: leaders are asked again in either case."""
        self._is_refreshing = False
        self._refreshed_at = now

    def _refresh_at(self) -> float:
        if self._is_refreshing:
            return NEVER
        times, metadata_at = [NEVER], self._metadata_at
        for pending in self._pending.values():
            if pending.asked_at is None and self._is_outdated(pending):
                times.append(pending.due_at)
            elif pending.asked_at is not None and pending.stage is StartStage.LOG:
                times.append(max(pending.asked_at, metadata_at) + SILENT_SECONDS)
        return min(times)

    @property
    def _metadata_at(self) -> float:
        return max(self._view().updated_at, self._refreshed_at)

    def _is_outdated(self, pending: PendingStart) -> bool:
        """Whether metadata has to be refreshed before the partition is asked again."""
        return pending.needs_metadata and self._metadata_at < pending.failed_at

    def metadata_changed(self) -> None:
        """Ask new leaders at once: also for partitions that wait for their next try, or for a former leader's answer."""
        for pending in self._pending.values():
            leader = leader_and_epoch(self._view(), pending.tp)
            has_new_leader = leader[0] >= 0 and leader != pending.leader
            if pending.stage is StartStage.LOG and has_new_leader:
                pending.flight += 1
                pending.asked_at, pending.due_at = None, AT_ONCE

    def next_at(self) -> float:
        """Return the loop time at which there is something to do next, if there are no further answers."""
        due = (p.due_at for p in self._pending.values() if not self._is_outdated(p))
        return min(min(due, default=NEVER), self._refresh_at(), self._found_at + GATHER_SECONDS)

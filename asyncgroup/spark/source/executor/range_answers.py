"""Apply fetch responses and failures to the ranges of a task, and check their timeouts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.consumer.fetch_outcome import (
    Diverged,
    Fatal,
    FetchAction,
    FetchedRecords,
    FetchOutcome,
    OutOfRange,
    ReadReplica,
    Retriable,
    TooLarge,
    fetch_action,
)
from asyncgroup.consumer.fetch_position import EpochEndOffset
from asyncgroup.consumer.list_offsets import EARLIEST, LATEST, is_retriable_error, list_offsets_once
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, NoBrokersError, RequestTimedOut
from asyncgroup.spark.source.errors import (
    brokers_unreachable,
    could_not_read_offset_range,
    no_progress,
    report_data_loss,
)
from asyncgroup.spark.source.executor.range_ends import leaders_end
from asyncgroup.spark.source.executor.range_fetch import Asked
from asyncgroup.spark.source.executor.range_loss import lose_rest, resume_within
from asyncgroup.spark.source.executor.range_progress import Outcome, RangeProgress
from asyncgroup.wire import messages as m

__all__ = ["RangeAnswers"]

_log = logging.getLogger("asyncgroup.spark")

LEASE: Final = 600.0
"""Seconds for which a preferred read replica is used (KIP-392)."""

GONE_AFTER: Final = 10.0
"""Seconds for which a partition must be missing in the metadata, or belong to a recreated topic, before it counts as
deleted: a broker that has just started may have no metadata yet, or outdated metadata.
"""

SHORT_AFTER: Final = 10.0
"""Seconds without progress after which the leader of a log that seems to end before the range is asked for its end."""

EMPTY_PAUSE: Final = 0.01
"""Seconds until the next fetch from a log that had no more records; brokers wait themselves if they support it."""


class RangeAnswers:
    """Applies responses and failures to the ranges of one task; remembers the error that fails the task."""

    def __init__(
        self, cluster: ClusterClient, *, poll_timeout: float, fail_on_data_loss: bool, servers: str = ""
    ) -> None:
        self._cluster = cluster
        self._servers = servers
        self._poll_timeout = poll_timeout
        self._fail_on_data_loss = fail_on_data_loss
        self._failure: Exception | None = None
        self._is_stale = False  # whether metadata must be refreshed
        self._next_refresh = float("-inf")  # the loop's time before which it is not refreshed
        self._refresh_backoff = cluster.backoff()

    def fail(self, error: Exception) -> None:
        """Record the error that fails the task; the first one counts."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise the error that failed the task, if there is one."""
        if self._failure is not None:
            raise self._failure

    # --- responses ----------------------------------------------------------------------------------------------

    async def take(self, asked: Asked, outcome: FetchOutcome) -> bool:
        """Apply a partition's outcome; return False if the log had no more records."""
        progress = asked.progress
        if asked.wanted.offset != progress.fetch_offset:
            return (
                True  # the fetch offset has changed since the request: using the response would skip records
            )
        try:
            if isinstance(outcome, FetchedRecords) and not self._deliver(asked, outcome):
                await self._check_end(progress)
                return False
            await self._apply(asked, outcome)
        except AsyncGroupError as error:
            self.fail(error)
        return True

    async def _apply(self, asked: Asked, outcome: FetchOutcome) -> None:
        """Take the step that an outcome without records asks for."""
        progress = asked.progress
        match outcome:
            case FetchedRecords():
                return
            case ReadReplica(node_id):
                self._go_elsewhere(progress, node_id, asyncio.get_running_loop().time())
                self._adopt_topic_id(asked)
            case Diverged(end):
                self._truncated(progress, end)
                self._adopt_topic_id(asked)
            case Retriable(error, hint):
                if hint is not None:
                    self._cluster.update_leader(progress.tp, *hint)
                progress.fetch_position.clear_preferred_replica()
                self.failed([progress], error)
            case OutOfRange(error) | Fatal(error) if progress.fetch_position.clear_preferred_replica():
                # the leader may have what a follower lacks. But it may redirect to the follower again, so pause then
                pause = self._pause(progress) if progress.failures else 0.0
                progress.failed(error, asyncio.get_running_loop().time() + pause)
            case OutOfRange(error):
                await self._out_of_range(progress, error)
            case Fatal(error) | TooLarge(error):
                self.fail(error)

    def _deliver(self, asked: Asked, records: FetchedRecords) -> bool:
        """Hand over records; return False if there are none."""
        progress, now = asked.progress, asyncio.get_running_loop().time()
        outcome = progress.answered(records, now)
        if outcome is Outcome.NOTHING:
            progress.not_before = now + EMPTY_PAUSE
            return False
        if outcome is Outcome.LOST:
            self._report(
                progress, *progress.missing, f"the log now starts at offset {records.log_start_offset}"
            )
        self._adopt_topic_id(asked)
        return True

    def _truncated(self, progress: RangeProgress, end: EpochEndOffset) -> None:
        lost = f"the log was truncated, its leader epoch {end.epoch} ends at offset {end.end_offset}"
        self._report(progress, progress.fetch_offset, progress.end, lost)
        progress.skip_to(progress.fetch_offset)  # resets the last fetched epoch, which is the old log's

    def _adopt_topic_id(self, asked: Asked) -> None:
        if asked.progress.fetch_position.topic_id == m.NO_UUID:
            asked.progress.fetch_position.topic_id = asked.wanted.topic_id

    def _go_elsewhere(self, progress: RangeProgress, replica: int, now: float) -> None:
        view = self._cluster.view
        info = view.partition(*progress.tp)
        if info is not None and replica in info.replicas and replica in view.brokers:
            progress.fetch_position.update_preferred_replica(replica, now + LEASE)
        else:  # the metadata does not have the replica yet; the leader would only redirect to it again
            what = f"fetch of {progress.tp} from node {replica}, the preferred read replica"
            self.failed([progress], BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, what))

    async def _check_end(self, progress: RangeProgress) -> None:
        """Check whether the leader's log has the rest of the range, if no more records come: are they late or lost?

        Java's consumer, and so Spark, does not check this: it waits until the timeout, and then reports a loss.
        """
        now = asyncio.get_running_loop().time()
        since = now if progress.since is None else max(progress.since, progress.end_asked_at)
        if progress.log_end is None or now < since + SHORT_AFTER:
            return
        progress.end_asked_at = now
        try:
            progress.leaders_end = await leaders_end(self._cluster, progress.tp)
        except AsyncGroupError as error:
            progress.end_asked_at = float("-inf")
            self.failed([progress], error)
            return
        progress.fetch_position.clear_preferred_replica()  # a follower may be far behind
        if progress.leaders_end is not None and progress.leaders_end <= progress.fetch_offset:
            self._lose_end(progress, progress.leaders_end)

    def _lose_end(self, progress: RangeProgress, end: int) -> None:
        lose_rest(progress, f"the log ends at offset {end}", fail=self._fail_on_data_loss)

    def _report(self, progress: RangeProgress, start: int, end: int, reason: str) -> None:
        error = could_not_read_offset_range(progress.tp, start, end, reason)
        report_data_loss(error, fail=self._fail_on_data_loss)

    async def _out_of_range(self, progress: RangeProgress, error: BrokerError) -> None:
        """Handle OFFSET_OUT_OF_RANGE of the leader: look up the log's offsets, as Spark does."""
        tp = progress.tp
        earliest = await list_offsets_once(self._cluster, {tp: EARLIEST})
        latest = await list_offsets_once(self._cluster, {tp: LATEST})
        for problem in (*earliest.problems.values(), *latest.problems.values()):
            self.failed([progress], problem)
            return
        resume_within(progress, earliest.offsets[tp], latest.offsets[tp], fail=self._fail_on_data_loss)
        now = asyncio.get_running_loop().time()
        if progress.lacks:
            progress.failed(error, now + self._pause(progress))
        else:
            progress.succeeded(now)

    # --- failures -----------------------------------------------------------------------------------------------

    def failed(self, progresses: Iterable[RangeProgress], error: Exception) -> None:
        """Record a failed attempt for these ranges; fail the task if the error is not retriable."""
        if (
            not is_retriable_error(error)
            and fetch_action(getattr(error, "code", 0)) is not FetchAction.REDISPATCH
        ):
            self.fail(error)
            return
        _log.debug("a fetch of ranges failed: %s", error)
        now = asyncio.get_running_loop().time()
        for progress in progresses:
            progress.fetch_position.clear_preferred_replica()
            progress.failed(error, now + self._pause(progress))
        self._is_stale = True

    def _pause(self, progress: RangeProgress) -> float:
        backoff = self._cluster.backoff()
        backoff.failures = progress.failures
        return backoff.next()

    # --- metadata -----------------------------------------------------------------------------------------------

    def must_refresh(self, waiting: Iterable[RangeProgress], now: float) -> bool:
        """Return whether metadata should be refreshed now: it may be outdated, or a range has no leader."""
        if now < self._next_refresh:
            return False
        view = self._cluster.view
        return self._is_stale or any(
            view.leader(progress.tp) < 0 or _is_gone(view, progress) for progress in waiting
        )

    def refreshed(self, waiting: Iterable[RangeProgress], error: Exception | None) -> None:
        """Process the result of a metadata refresh, `error` if it failed."""
        now, view = asyncio.get_running_loop().time(), self._cluster.view
        if error is None:
            self._is_stale = False
        missing = False
        for progress in waiting:
            if error is not None:
                progress.problem = error
                progress.begin(now)
            elif _is_gone(view, progress):
                progress.begin(now)
                if progress.unknown_since is None:
                    progress.unknown_since = now
                missing = True
            else:
                progress.unknown_since = None
                missing = missing or view.leader(progress.tp) < 0
        if error is None and not missing:
            self._refresh_backoff.reset()
        else:
            self._next_refresh = now + self._refresh_backoff.next()

    def check_topics(self, waiting: Iterable[RangeProgress]) -> None:
        """Raise BrokerError for a topic with a final error, such as missing authorization."""
        topics = self._cluster.view.topics
        for progress in waiting:
            topic = topics.get(progress.tp.topic)
            if topic is None:
                continue
            if topic.error_code and not is_retriable(topic.error_code):
                raise BrokerError(topic.error_code, f"topic {topic.name!r}")

    # --- timeouts -----------------------------------------------------------------------------------------------

    def take_a_place(self, progress: RangeProgress, now: float) -> None:
        """Pause the timeout of a range without a request if it waits only for other ranges of the same broker."""
        view = self._cluster.view
        has_leader = view.leader(progress.tp) >= 0 and not _is_gone(view, progress)
        if has_leader and progress.not_before <= now and progress.wants_more:
            progress.queue(now)
        else:
            progress.take_turn(now)

    def due_times(self, waiting: Iterable[RangeProgress], now: float) -> Iterator[float]:
        """Yield the loop times of the next checks: metadata refresh, retries and timeouts."""
        if self._next_refresh > now:
            yield self._next_refresh
        for progress in waiting:
            if progress.not_before > now:
                yield progress.not_before
            if (ends := progress.patience_ends(self._poll_timeout)) is not None:
                yield ends
            if progress.unknown_since is not None:
                yield progress.unknown_since + GONE_AFTER

    def check_patience(self, waiting: Iterable[RangeProgress], now: float) -> None:
        """Raise SourceError for a range without progress until the timeout; ranges that are lost may only end."""
        for progress in waiting:
            if progress.has_data or progress.is_done:
                continue
            ends = progress.patience_ends(self._poll_timeout)
            over = ends is not None and now >= ends
            unknown = progress.unknown_since
            if unknown is not None and (over or now >= unknown + GONE_AFTER):
                self._lose_topic(progress)
            elif over:
                self._give_up(progress)

    def _lose_topic(self, progress: RangeProgress) -> None:
        """End a range of a deleted topic. A recreated one is not read in its place: the driver plans it from its start."""
        recreated = self._cluster.view.partition(*progress.tp) is not None
        reason = (
            "the topic was deleted and recreated" if recreated else "the partition does not exist any more"
        )
        lose_rest(progress, reason, fail=self._fail_on_data_loss)

    def _give_up(self, progress: RangeProgress) -> None:
        if progress.log_end is not None and progress.leaders_end is None:
            self._lose_end(progress, progress.log_end)
            return
        reason = progress.problem or progress.held_back or RequestTimedOut("no broker has answered")
        if isinstance(reason, NoBrokersError):
            raise brokers_unreachable(f"Reading {progress.tp}", self._servers, reason) from reason
        raise no_progress(
            progress.tp, progress.fetch_offset, progress.end, self._poll_timeout, reason
        ) from progress.problem


def _is_gone(view: ClusterView, progress: RangeProgress) -> bool:
    """Return whether the partition is missing in the metadata; that of a recreated topic is another one."""
    topic = view.topics.get(progress.tp.topic)
    return topic is None or progress.tp.partition not in topic.partitions or progress.is_other(topic.topic_id)

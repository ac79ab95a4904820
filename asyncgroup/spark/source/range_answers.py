"""What answers and failures mean for ranges, and when waiting for one has been enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.metadata import BrokerInfo, ClusterView
from asyncgroup.consumer.fetch_plan import FETCH_ACTIONS, FetchAction
from asyncgroup.consumer.list_offsets import EARLIEST, LATEST, is_retriable_error, list_offsets_once
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, NoBrokersError, RequestTimedOut
from asyncgroup.spark.source.errors import (
    brokers_unreachable,
    could_not_read_offset_range,
    no_progress,
    report_data_loss,
)
from asyncgroup.spark.source.range_ends import leaders_end
from asyncgroup.spark.source.range_fetch import Asked
from asyncgroup.spark.source.range_loss import lose_rest, resume_within
from asyncgroup.spark.source.range_progress import Outcome, RangeProgress
from asyncgroup.wire import messages as m

__all__ = ["RangeAnswers"]

_log = logging.getLogger("asyncgroup.spark")

LEASE: Final = 600.0
"""Seconds that a preferred replica is kept (KIP-392)."""

GONE_AFTER: Final = 10.0
"""Seconds for which metadata must know nothing of a partition, or only another topic of its name, before it counts as
deleted: a broker that has just started may know nothing yet, or what was long ago.
"""

SHORT_AFTER: Final = 10.0
"""Seconds without progress after which the leader of a log that seems to end too early is asked for its true end."""

EMPTY_PAUSE: Final = 0.01
"""Seconds before a log that had nothing more is asked again; brokers wait by themselves, where they wait at all."""


class RangeAnswers:
    """Takes in answers for the ranges of one task; `failure` is what ends the task."""

    def __init__(
        self, cluster: Cluster, *, poll_timeout: float, fail_on_data_loss: bool, servers: str = ""
    ) -> None:
        self._cluster, self._servers = cluster, servers
        self._poll_timeout, self._fail_on_data_loss = poll_timeout, fail_on_data_loss
        self._failure: Exception | None = None
        self._is_stale = False
        self._next_refresh = float("-inf")
        self._refresh_backoff = cluster.backoff()

    def fail(self, error: Exception) -> None:
        """The task cannot go on."""
        self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raises what ended the task, if anything has."""
        if self._failure is not None:
            raise self._failure

    # --- answers ------------------------------------------------------------------------------------------------

    async def take(self, asked: Asked, data: Any, response: m.FetchResponse, node_id: int) -> bool:
        """Take in a partition's part of an answer; False if it had nothing more to give."""
        progress, code = asked.progress, data.error_code
        if asked.wanted.offset != progress.fetch_offset:
            return True  # asked for before reading went elsewhere: what lies between would be passed over
        action = FETCH_ACTIONS.get(code, FetchAction.REDISPATCH if is_retriable(code) else FetchAction.FAIL)
        try:
            if action is FetchAction.DELIVER:
                if self._deliver(asked, data, node_id):
                    return True
                await self._check_end(progress)
                return False
            error = BrokerError(code, f"fetch of {progress.tp} from node {node_id}")
            if action is FetchAction.REDISPATCH:
                self._take_hint(progress, data, response)
                progress.fetch_position.clear_preferred_replica()
                self.failed([progress], error)
            elif progress.fetch_position.clear_preferred_replica():
                # what a follower lacks the leader may have; its word counts. But it may send us there again and again
                pause = self._pause(progress) if progress.failures else 0.0
                progress.failed(error, asyncio.get_running_loop().time() + pause)
            elif action is FetchAction.RESET:
                await self._out_of_range(progress, error)
            else:
                self.fail(error)
        except AsyncGroupError as error:
            self.fail(error)
        return True

    def _deliver(self, asked: Asked, data: Any, node_id: int) -> bool:
        progress, now = asked.progress, asyncio.get_running_loop().time()
        outcome = progress.answered(data, node_id, now)
        if outcome is Outcome.ELSEWHERE:
            self._go_elsewhere(progress, data.preferred_read_replica, now)
        elif outcome is Outcome.TRUNCATED:
            lost = f"the log was cut, its epoch {data.diverging_epoch.epoch} ends at {data.diverging_epoch.end_offset}"
            self._report(progress, progress.fetch_offset, progress.end, lost)
            progress.skip_to(progress.fetch_offset)  # without the old log's epoch
        elif outcome is Outcome.LOST:
            self._report(progress, *progress.missing, f"the log begins at {data.log_start_offset} by now")
        elif outcome is Outcome.NOTHING:
            progress.not_before = now + EMPTY_PAUSE
            return False
        if progress.fetch_position.topic_id == m.NO_UUID:
            progress.fetch_position.topic_id = asked.wanted.topic_id
        return True

    def _go_elsewhere(self, progress: RangeProgress, replica: int, now: float) -> None:
        view = self._cluster.view
        info = view.partition(*progress.tp)
        if info is not None and replica in info.replicas and replica in view.brokers:
            progress.fetch_position.update_preferred_replica(replica, now + LEASE)
        else:  # metadata are older than the replica: its leader would name it again and again, and give nothing
            what = f"fetch of {progress.tp} from node {replica}, the leader's choice"
            self.failed([progress], BrokerError(ErrorCode.REPLICA_NOT_AVAILABLE, what))

    async def _check_end(self, progress: RangeProgress) -> None:
        """See whether a log that has nothing more for its readers holds the rest of the range: is that late, or lost?

        Java's consumer, and so Spark, cannot tell: there the range waits as long as it may, and is lost then.
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
        lose_rest(progress, f"the log ends at {end}", fail=self._fail_on_data_loss)

    def _report(self, progress: RangeProgress, start: int, end: int, reason: str) -> None:
        error = could_not_read_offset_range(progress.tp, start, end, reason)
        report_data_loss(error, fail=self._fail_on_data_loss)

    async def _out_of_range(self, progress: RangeProgress, error: BrokerError) -> None:
        """The leader's log does not hold the offset asked for: ask what it holds, as Spark does."""
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

    def _take_hint(self, progress: RangeProgress, data: Any, response: m.FetchResponse) -> None:
        """A broker that lost a partition may name the new leader (KIP-951)."""
        leader = data.current_leader
        if leader.leader_id >= 0:
            brokers = [BrokerInfo(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
            self._cluster.update_leader(progress.tp, leader.leader_id, leader.leader_epoch, brokers)

    # --- failures -----------------------------------------------------------------------------------------------

    def failed(self, progresses: Iterable[RangeProgress], error: Exception) -> None:
        """A try failed for these; what does not heal ends the task."""
        if (
            not is_retriable_error(error)
            and FETCH_ACTIONS.get(getattr(error, "code", 0)) is not FetchAction.REDISPATCH
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
        """Whether metadata should be asked for now: they may be old, or know no leader of a range."""
        if now < self._next_refresh:
            return False
        view = self._cluster.view
        return self._is_stale or any(
            view.leader(progress.tp) < 0 or _is_gone(view, progress) for progress in waiting
        )

    def refreshed(self, waiting: Iterable[RangeProgress], error: Exception | None) -> None:
        """Metadata came, or did not come because of `error`."""
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
        """Raises BrokerError for a topic that may not be read."""
        topics = self._cluster.view.topics
        for progress in waiting:
            topic = topics.get(progress.tp.topic)
            if topic is None:
                continue
            if topic.error_code and not is_retriable(topic.error_code):
                raise BrokerError(topic.error_code, f"topic {topic.name!r}")

    # --- patience -----------------------------------------------------------------------------------------------

    def take_a_place(self, progress: RangeProgress, now: float) -> None:
        """It was not asked for: does it wait for its turn, because others fill the requests, or for something to heal?"""
        view = self._cluster.view
        has_leader = view.leader(progress.tp) >= 0 and not _is_gone(view, progress)
        if has_leader and progress.not_before <= now and progress.wants_more:
            progress.queue(now)
        else:
            progress.take_turn(now)

    def due_times(self, waiting: Iterable[RangeProgress], now: float) -> Iterator[float]:
        """Loop times at which something has to be looked at again."""
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
        """Raises SourceError for a range without progress for too long; one that its log has lost may just end."""
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
        """What a namesake holds is not read in its place: the driver begins at its start, once it knows of it."""
        anew = self._cluster.view.partition(*progress.tp) is not None
        reason = "the topic was deleted and made anew" if anew else "there is no such partition any more"
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
    """Whether metadata know no such partition; that of a namesake is another one."""
    topic = view.topics.get(progress.tp.topic)
    return topic is None or progress.tp.partition not in topic.partitions or progress.is_other(topic.topic_id)

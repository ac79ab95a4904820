"""What answers and failures mean for ranges, and when waiting for one has been enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from asyncgroup.cluster import Cluster
from asyncgroup.cluster.metadata import BrokerInfo
from asyncgroup.consumer.fetch_plan import ACTIONS, Action
from asyncgroup.consumer.list_offsets import EARLIEST, LATEST, heals, look_up
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AsyncGroupError, BrokerError, NoBrokersError, RequestTimedOut
from asyncgroup.spark.source.errors import (
    brokers_unreachable,
    could_not_read_offset_range,
    no_progress,
    report_data_loss,
)
from asyncgroup.spark.source.range_fetch import Asked
from asyncgroup.spark.source.range_loss import lose_rest, resume_within
from asyncgroup.spark.source.range_progress import Outcome, RangeProgress
from asyncgroup.wire import messages as m

__all__ = ["RangeAnswers"]

_log = logging.getLogger("asyncgroup.spark")

LEASE: Final = 600.0
"""Seconds that a preferred replica is kept (KIP-392)."""

GONE_AFTER: Final = 10.0
"""Seconds for which metadata must know nothing of a partition before it counts as deleted: a broker that has just
started may know nothing yet.
"""

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
        action = ACTIONS.get(code, Action.REDISPATCH if is_retriable(code) else Action.FAIL)
        try:
            if action is Action.DELIVER:
                return self._deliver(asked, data, node_id)
            error = BrokerError(code, f"fetch of {progress.tp} from node {node_id}")
            if action is Action.REDISPATCH:
                self._take_hint(progress, data, response)
                progress.whereabouts.forget_replica()
                self.failed([progress], error)
            elif progress.whereabouts.forget_replica():
                pass  # what a follower lacks the leader may have; its word counts
            elif action is Action.RESET:
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
            progress.whereabouts.prefer(data.preferred_read_replica, now + LEASE)
        elif outcome is Outcome.TRUNCATED:
            lost = f"the log was cut, its epoch {data.diverging_epoch.epoch} ends at {data.diverging_epoch.end_offset}"
            self._report(progress, progress.fetch_offset, progress.end, lost)
            progress.skip_to(progress.fetch_offset)  # without the old log's epoch
        elif outcome is Outcome.LOST:
            self._report(progress, *progress.missing, f"the log begins at {data.log_start_offset} by now")
        elif outcome is Outcome.NOTHING:
            progress.not_before = now + EMPTY_PAUSE
            return False
        progress.whereabouts.topic_id = asked.wanted.topic_id
        return True

    def _report(self, progress: RangeProgress, start: int, end: int, reason: str) -> None:
        error = could_not_read_offset_range(progress.tp, start, end, reason)
        report_data_loss(error, fail=self._fail_on_data_loss)

    async def _out_of_range(self, progress: RangeProgress, error: BrokerError) -> None:
        """The leader's log does not hold the offset asked for: ask what it holds, as Spark does."""
        tp = progress.tp
        earliest = await look_up(self._cluster, {tp: EARLIEST})
        latest = await look_up(self._cluster, {tp: LATEST})
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
            self._cluster.hint_leader(progress.tp, leader.leader_id, leader.leader_epoch, brokers)

    # --- failures -----------------------------------------------------------------------------------------------

    def failed(self, progresses: Iterable[RangeProgress], error: Exception) -> None:
        """A try failed for these; what does not heal ends the task."""
        if not heals(error) and ACTIONS.get(getattr(error, "code", 0)) is not Action.REDISPATCH:
            self.fail(error)
            return
        _log.debug("a fetch of ranges failed: %s", error)
        now = asyncio.get_running_loop().time()
        for progress in progresses:
            progress.whereabouts.forget_replica()
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
        return self._is_stale or any(view.leader(progress.tp) < 0 for progress in waiting)

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
            elif view.partition(*progress.tp) is None:
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
        """Raises BrokerError for a topic that may not be read, and looks for topics that were made anew (KIP-516)."""
        topics = self._cluster.view.topics
        for progress in waiting:
            topic = topics.get(progress.tp.topic)
            if topic is None:
                continue
            if topic.error_code and not is_retriable(topic.error_code):
                raise BrokerError(topic.error_code, f"topic {topic.name!r}")
            places = progress.whereabouts
            known = m.NO_UUID not in (places.topic_id, topic.topic_id)
            if known and places.topic_id != topic.topic_id:
                self._report(
                    progress, progress.fetch_offset, progress.end, "the topic was deleted and made anew"
                )
                places.sought()
                progress.skip_to(progress.fetch_offset)

    # --- patience -----------------------------------------------------------------------------------------------

    def due_times(self, waiting: Iterable[RangeProgress], now: float) -> Iterator[float]:
        """Loop times at which something has to be looked at again."""
        if self._next_refresh > now:
            yield self._next_refresh
        for progress in waiting:
            if progress.not_before > now:
                yield progress.not_before
            if progress.since is not None:
                yield progress.since + self._poll_timeout
            if progress.unknown_since is not None:
                yield progress.unknown_since + GONE_AFTER

    def check_patience(self, waiting: Iterable[RangeProgress], now: float) -> None:
        """Raises SourceError for a range without progress for too long; one that its log has lost may just end."""
        for progress in waiting:
            if progress.has_data or progress.is_done:
                continue
            over = progress.since is not None and now >= progress.since + self._poll_timeout
            unknown = progress.unknown_since
            if unknown is not None and (over or now >= unknown + GONE_AFTER):
                lose_rest(progress, "there is no such partition any more", fail=self._fail_on_data_loss)
            elif over:
                self._give_up(progress)

    def _give_up(self, progress: RangeProgress) -> None:
        if progress.log_end is not None:
            lose_rest(progress, f"the log ends at {progress.log_end}", fail=self._fail_on_data_loss)
            return
        reason = progress.problem or RequestTimedOut("no broker has answered")
        if isinstance(reason, NoBrokersError):
            raise brokers_unreachable(f"Reading {progress.tp}", self._servers, reason) from reason
        raise no_progress(
            progress.tp, progress.fetch_offset, progress.end, self._poll_timeout, reason
        ) from progress.problem

"""`RangeReader`: read ranges of offsets, every record from start (inclusive) to end (exclusive), as Arrow batches.

The caller alternates two steps: `advance` waits until records have come, and leaves the next Fetch in flight; `read`
decodes them without waiting. So brokers and kernel work while records are decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.metadata import ClusterView
from asyncgroup.columns import MalformedTimestamp
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import Diverged, FetchedRecords, FetchOutcomes, ReadReplica
from asyncgroup.consumer.fetch_state import FetchState
from asyncgroup.consumer.list_offsets import is_retriable_error
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CorruptRecordsError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
)
from asyncgroup.model import TopicPartition
from asyncgroup.spark.arrow import ArrowBatches
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.executor.range_ends import leaders_end
from asyncgroup.spark.source.executor.range_fetcher import RangeFetcher
from asyncgroup.spark.source.executor.range_loss import LossReports
from asyncgroup.spark.source.executor.range_progress import RangeProgress
from asyncgroup.spark.worker_process import WaitingTime

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangeReader"]

_log = logging.getLogger("asyncgroup.spark")

GONE_AFTER: Final = 10.0
"""Seconds for which a partition must be missing in the metadata, or belong to a recreated topic, before it counts as
deleted: a broker that has just started may have no metadata yet, or outdated metadata.
"""

SHORT_AFTER: Final = 10.0
"""Seconds without progress after which the leader of a log that seems to end before the range is asked for its end."""


class RangeReader:
    """Reads the ranges of one task; those of a partition in their order.

    `config` is the result of `fetching_config`. Must be used on the loop on which `cluster` was opened. `poll_timeout` is
    the time in seconds for which a range may be without progress during waits; `servers` names the cluster in errors.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        progresses: Iterable[RangeProgress],
        *,
        poll_timeout: float,
        fail_on_data_loss: bool = True,
        servers: str = "",
    ) -> None:
        self._cluster = cluster
        self._poll_timeout = poll_timeout
        self._servers = servers
        self.progresses = list(progresses)
        self._waiting = [progress for progress in self.progresses if not progress.is_done]
        self._active: dict[TopicPartition, RangeProgress] = {}
        """The first range of each partition that is not done: only those are fetched."""
        self._fetched: dict[TopicPartition, RangeProgress] = {}  # those given to the fetcher
        self._has_refreshed = False
        self._begun_at = float("inf")  # loop time; only metadata since then can show that a topic is gone
        self._losses = LossReports(fail=fail_on_data_loss)
        self._time = WaitingTime()
        self._fetcher = RangeFetcher(
            cluster,
            config,
            self._time,
            on_fetched=self._on_fetched,
            on_problem=self._on_problem,
            on_no_metadata=self._on_no_metadata,
        )

    def __repr__(self) -> str:
        return f"<RangeReader: {len(self._waiting)} ranges left, {self._fetcher!r}>"

    @property
    def is_done(self) -> bool:
        """Whether all ranges were read completely."""
        return not self._waiting

    # --- decoding -----------------------------------------------------------------------------------------------

    def read(self, batches: ArrowBatches) -> Iterator[pa.RecordBatch]:
        """Decode buffered records; yield batches when they are full, the rest stays in `batches`.

        Raises CorruptRecordsError and UnsupportedVersionError for records that cannot be read even after they were fetched
        again, SourceError for a timestamp that is out of range.
        """
        for progress in self._waiting:
            while self._read_next(progress, batches):
                if batches.is_full:
                    yield from self.flush(batches)
        self._drop_done()

    def flush(self, batches: ArrowBatches) -> Iterator[pa.RecordBatch]:
        """Yield what `batches` has collected. Raises SourceError for a timestamp that is out of range."""
        try:
            yield from batches.flush()
        except MalformedTimestamp as error:
            tp = TopicPartition(error.topic, error.partition)
            raise SourceError(
                "KAFKA_MALFORMED_RECORD_TIMESTAMP",
                topicPartition=tp,
                offset=error.offset,
                timestamp=error.timestamp,
            ) from error

    def _read_next(self, progress: RangeProgress, batches: ArrowBatches) -> bool:
        try:
            return progress.read_into(batches.columns)
        except CorruptRecordsError as error:
            if not progress.fetch_anew():
                raise
            _log.warning(
                "%s: corrupt records are fetched again, as they may have been corrupted in transit: %s",
                progress.tp,
                error,
            )
            return False

    # --- fetching -----------------------------------------------------------------------------------------------

    async def advance(self) -> None:
        """Wait until there are records to read, or all were read; the next requests are in flight then.

        Raises SourceError (data loss, no progress), BrokerError and other errors that are not retriable.
        """
        self._time.resume()
        self._begun_at = min(self._begun_at, asyncio.get_running_loop().time())
        try:
            while True:
                self._fetcher.raise_failure()
                self._settle_errors()
                self._begin_ranges()
                self._fetcher.send()
                self._check_topics()
                if not self._waiting or any(progress.has_data for progress in self._waiting):
                    break
                if not self._has_errors and not self._check_times():
                    await self._fetcher.wait(self._next_check())
            await asyncio.sleep(0)  # start new tasks, which write their requests to the sockets
        finally:
            self._time.pause()

    @property
    def _has_errors(self) -> bool:
        return any(progress.partition.error is not None for progress in self._active.values())

    def _drop_done(self) -> None:
        self._waiting = [progress for progress in self._waiting if not progress.is_done]
        for tp, progress in list(self._active.items()):
            if progress.is_done:
                del self._active[tp]
                if self._fetched.pop(tp, None) is not None:
                    self._fetcher.remove(progress.partition)

    def _begin_ranges(self) -> None:
        """Begin to fetch the next range of each partition."""
        self._drop_done()
        view, now, is_unknown = self._cluster.view, self._time(), False
        for progress in self._waiting:
            if self._active.setdefault(progress.tp, progress) is not progress or progress.tp in self._fetched:
                continue
            progress.patience.begin(now)
            is_fresh = self._has_refreshed and not self._fetcher.is_refreshing
            if not is_fresh and _is_gone(view, progress):
                is_unknown = True  # the metadata may be as old as the last task
            else:
                self._fetched[progress.tp] = progress
                self._fetcher.add(progress.partition)
        if is_unknown and not self._fetcher.is_refreshing:
            self._has_refreshed = True
            self._fetcher.refresh()

    def _settle_errors(self) -> None:
        """Report losses of partitions that are not fetched because of an error; raise other errors."""
        for progress in self._active.values():
            if (error := progress.partition.error) is not None:
                log = self._fetcher.log_ranges.pop(progress.tp, None)
                self._losses.settle(progress, error, log)

    def _check_topics(self) -> None:
        """Raise BrokerError for a topic with a final error, such as missing authorization."""
        topics = self._cluster.view.topics
        for tp in self._active:
            topic = topics.get(tp.topic)
            if topic is not None and topic.error_code and not is_retriable(topic.error_code):
                raise BrokerError(topic.error_code, f"topic {topic.name!r}")

    # --- responses ----------------------------------------------------------------------------------------------

    def _on_fetched(self, outcomes: FetchOutcomes, before: Mapping[TopicPartition, int]) -> None:
        """Process the outcomes of a response, after the partitions' states."""
        now, empty = self._time(), []
        for tp, outcome in outcomes.partitions:
            progress = self._active.get(tp)
            if progress is None or tp not in before:
                continue
            if isinstance(outcome, (ReadReplica, Diverged)):
                progress.confirm_topic_id()
            if not isinstance(outcome, FetchedRecords):
                continue
            missing = progress.answered(outcome, before[tp], now)
            if missing is not None:
                at = f"the log now starts at offset {outcome.log_start_offset}"
                self._losses.report(progress, *missing, at)
            if progress.fetch_offset == before[tp]:
                empty.append(progress)
        if len(empty) < len(before):
            for progress in empty:
                if progress.log_end is None:
                    progress.patience.restart(now)  # other partitions have filled the response

    def _on_problem(self, partitions: Iterable[TopicPartitionState], error: Exception) -> None:
        """Remember errors that a retry may heal, for the error of a range that makes no progress."""
        _log.debug("a fetch of ranges failed: %s", error)
        for partition in partitions:
            progress = self._active.get(partition.tp)
            if progress is not None:
                progress.failed(error)

    def _on_no_metadata(self, error: Exception) -> None:
        for progress in self._active.values():
            progress.problem = error

    # --- timeouts -----------------------------------------------------------------------------------------------

    def _check_times(self) -> bool:
        """Check all timeouts; return whether a range was lost.

        Raises SourceError for a range without progress until the timeout; ranges that are lost may only end.
        """
        view, now, is_any_lost = self._cluster.view, self._time(), False
        for progress in self._active.values():
            patience = progress.patience
            if not _is_gone(view, progress):
                patience.gone_since = None
            elif patience.gone_since is None and view.updated_at >= self._begun_at:
                patience.gone_since = now
            if _is_queued(progress.partition):
                patience.queue(now)
            else:
                patience.take_turn(now)
            over = now >= patience.ends(self._poll_timeout)
            if patience.gone_since is not None and (over or now >= patience.gone_since + GONE_AFTER):
                self._lose_topic(progress)
                is_any_lost = True
            elif over:
                self._give_up(progress)
                is_any_lost = True
            elif progress.log_end is not None and now >= patience.end_check(SHORT_AFTER):
                patience.end_asked_at = now
                self._fetcher.spawn(self._check_end(progress))
        return is_any_lost

    def _next_check(self) -> float:
        """Return the time at which `_check_times` has to be called next."""
        times = []
        for progress in self._active.values():
            patience = progress.patience
            times.append(patience.ends(self._poll_timeout))
            if patience.gone_since is not None:
                times.append(patience.gone_since + GONE_AFTER)
            if progress.log_end is not None:
                times.append(patience.end_check(SHORT_AFTER))
        return min(times, default=float("inf"))

    async def _check_end(self, progress: RangeProgress) -> None:
        """Check whether the leader's log has the rest of the range, if no more records come: are they late or lost?

        Java's consumer, and so Spark, does not check this: it waits until the timeout, and then reports a loss.
        """
        try:
            end = await leaders_end(self._cluster, progress.partition)
        except AsyncGroupError as error:
            if not is_retriable_error(error):
                raise
            progress.patience.end_asked_at = float("-inf")
            self._on_problem([progress.partition], error)
            return
        progress.leaders_end = end
        self._fetcher.ask_leader(progress.partition)  # a follower may be far behind
        if end is not None and end <= progress.fetch_offset:
            self._lose_end(progress, end)

    def _lose_end(self, progress: RangeProgress, end: int) -> None:
        self._losses.lose_rest(progress, f"the log ends at offset {end}")

    def _lose_topic(self, progress: RangeProgress) -> None:
        """End a range of a deleted topic. A recreated one is not read in its place: the driver plans it from its start."""
        recreated = self._cluster.view.partition(*progress.tp) is not None
        reason = (
            "the topic was deleted and recreated" if recreated else "the partition does not exist any more"
        )
        self._losses.lose_rest(progress, reason)

    def _give_up(self, progress: RangeProgress) -> None:
        if progress.log_end is not None and progress.leaders_end is None:
            self._lose_end(progress, progress.log_end)
            return
        reason = progress.problem or progress.held_back or self._no_answer(progress.tp)
        if isinstance(reason, NoBrokersError):
            what = f"Reading {progress.tp}"
            raise SourceError(
                "ASYNCGROUP_BROKERS_UNREACHABLE", what=what, servers=self._servers, reason=reason
            ) from reason
        raise SourceError(
            "ASYNCGROUP_NO_PROGRESS",
            topicPartition=progress.tp,
            startOffset=progress.fetch_offset,
            endOffset=progress.end,
            seconds=self._poll_timeout,
            reason=reason,
        ) from progress.problem

    def _no_answer(self, tp: TopicPartition) -> AsyncGroupError:
        if self._cluster.view.leader(tp) < 0:
            return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp}")
        return RequestTimedOut("no broker has answered")

    async def aclose(self) -> None:
        """Cancel fetches in flight; abandon their connections, so that late responses do not delay the next reader."""
        await self._fetcher.aclose()


def _is_queued(partition: TopicPartitionState) -> bool:
    """Return whether a partition waits only for others of the same broker."""
    return partition.fetch_state is FetchState.FETCHING and not partition.reserved and partition.is_fetchable


def _is_gone(view: ClusterView, progress: RangeProgress) -> bool:
    """Return whether the partition is missing in the metadata; that of a recreated topic is another one."""
    topic = view.topics.get(progress.tp.topic)
    return topic is None or progress.tp.partition not in topic.partitions or progress.is_other(topic.topic_id)

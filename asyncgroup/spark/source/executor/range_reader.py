"""`RangeReader`: read ranges of offsets, every record from start (inclusive) to end (exclusive), as Arrow batches.

The caller alternates two steps: `advance` waits until records have come, and leaves the next Fetch in flight; `read`
decodes them without waiting. So brokers and kernel work while records are decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import is_retriable_error
from asyncgroup.columns import MalformedTimestamp
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_outcome import EpochEnd, FetchedRecords, ReadReplica
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.validation import PositionCheck, send_epoch_request
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CorruptRecordsError,
    ErrorCode,
    NoBrokersError,
    RequestTimedOut,
    UnsupportedVersionError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.spark.arrow import ArrowBatches
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.executor.poll_timer import NEVER, Due, WaitingTime
from asyncgroup.spark.source.executor.range_fetcher import Fetched, NoMetadata, Problem, RangeFetcher
from asyncgroup.spark.source.executor.range_progress import RangeProgress

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangeReader"]

_log = logging.getLogger("asyncgroup.spark")


class RangeReader:
    """Reads the ranges of one task; those of a partition in their order.

    `config` is the result of `fetching_config`. Must be used on the loop on which `cluster` was opened. `servers` names the
    cluster in errors.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        progresses: Iterable[RangeProgress],
        *,
        include_headers: bool = False,
        servers: str = "",
    ) -> None:
        self._cluster = cluster
        self._servers = servers
        self._batches = ArrowBatches(include_headers=include_headers)
        self.progresses = list(progresses)
        self._waiting = [progress for progress in self.progresses if not progress.is_done]
        self._active: dict[TopicPartition, RangeProgress] = {}
        """The first range of each partition that is not done: only those are fetched."""
        self._fetched: set[TopicPartition] = set()  # the partitions that the fetcher has
        self._has_refreshed = False
        self._begun_at = float("inf")  # loop time; only metadata since then can show that a topic is gone
        self._time = WaitingTime()
        self._fetcher = RangeFetcher(cluster, config, self._time)

    def __repr__(self) -> str:
        return f"<RangeReader: {len(self._waiting)} ranges left, {self._fetcher!r}>"

    @property
    def is_done(self) -> bool:
        """Whether all ranges were read completely."""
        return not self._waiting

    # --- decoding -----------------------------------------------------------------------------------------------

    def read(self) -> Iterator[pa.RecordBatch]:
        """Decode buffered records; yield full batches, and the rest if it is enough to keep the JVM busy during a wait.

        Raises CorruptRecordsError and UnsupportedVersionError for records that cannot be read even after they were fetched
        again, SourceError for a timestamp that is out of range.
        """
        for progress in self._waiting:
            while self._read_next(progress):
                if self._batches.is_full:
                    yield from self.flush()
        self._drop_done()
        if self._batches.is_worth_flushing:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are left after `read`. Raises SourceError for a timestamp that is out of range."""
        try:
            yield from self._batches.flush()
        except MalformedTimestamp as error:
            tp = TopicPartition(error.topic, error.partition)
            raise SourceError(
                "KAFKA_MALFORMED_RECORD_TIMESTAMP",
                topicPartition=tp,
                offset=error.offset,
                timestamp=error.timestamp,
            ) from error

    def _read_next(self, progress: RangeProgress) -> bool:
        try:
            return progress.read_into(self._batches.columns)
        except CorruptRecordsError as error:
            if not progress.fetch_again():
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
                self._apply_events()
                self._begin_ranges()
                self._fetcher.send()
                self._check_topics()
                if not self._waiting or any(progress.has_data for progress in self._waiting):
                    break
                if not self._has_errors and not self._check_times():
                    due = (progress.poll_timer.next_check for progress in self._active.values())
                    await self._fetcher.wait(min(due, default=NEVER))
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
                if tp in self._fetched:
                    self._fetched.remove(tp)
                    self._fetcher.remove(progress.partition)

    def _begin_ranges(self) -> None:
        """Begin to fetch the next range of each partition."""
        self._drop_done()
        view, now, is_unknown = self._cluster.view, self._time(), False
        for progress in self._waiting:
            if self._active.setdefault(progress.tp, progress) is not progress or progress.tp in self._fetched:
                continue
            progress.poll_timer.begin(now)
            is_fresh = self._has_refreshed and not self._fetcher.is_refreshing
            if not is_fresh and progress.is_gone(view):
                is_unknown = True  # the metadata may be as old as the last task
            else:
                self._fetched.add(progress.tp)
                self._fetcher.add(progress.partition)
        if is_unknown and not self._fetcher.is_refreshing:
            self._has_refreshed = True
            self._fetcher.refresh()

    def _check_topics(self) -> None:
        """Raise BrokerError for a topic with a final error, such as missing authorization."""
        topics = self._cluster.view.topics
        for tp in self._active:
            topic = topics.get(tp.topic)
            if topic is not None and topic.error_code and not is_retriable(topic.error_code):
                raise BrokerError(topic.error_code, f"topic {topic.name!r}")

    # --- responses ----------------------------------------------------------------------------------------------

    def _apply_events(self) -> None:
        """Apply the events that the fetcher has collected; recover the partitions that are not fetched because of an error."""
        for event in self._fetcher.take():
            match event:
                case Fetched():
                    self._answered(event)
                case Problem(partitions, error):
                    self._failed(partitions, error)
                case NoMetadata(error):
                    for progress in self._active.values():
                        progress.poll_timer.metadata_failed(error)
        for progress in self._active.values():
            if progress.partition.error is not None:
                progress.recover(self._fetcher.log_ranges.pop(progress.tp, None))

    def _answered(self, fetched: Fetched) -> None:
        """Process the outcomes of a response, after the partitions' states."""
        now, before, empty = self._time(), fetched.before, []
        for tp, outcome in fetched.outcomes.partitions:
            progress = self._active.get(tp)
            if progress is None or tp not in before:
                continue
            if isinstance(outcome, (ReadReplica, EpochEnd)):
                progress.confirm_topic_id()
            if not isinstance(outcome, FetchedRecords):
                continue
            progress.answered(outcome, before[tp], now)
            if progress.fetch_offset == before[tp]:
                empty.append(progress)
        if len(empty) < len(before):
            for progress in empty:
                progress.poll_timer.crowded_out(now)

    def _failed(self, partitions: Iterable[TopicPartitionState], error: Exception) -> None:
        """Remember errors that a retry may heal, for the error of a range that makes no progress."""
        _log.debug("a fetch of ranges failed: %s", error)
        for partition in partitions:
            progress = self._active.get(partition.tp)
            if progress is not None:
                progress.failed(error)

    # --- timeouts -----------------------------------------------------------------------------------------------

    def _check_times(self) -> bool:
        """Check all timeouts; return whether a range was lost.

        Raises SourceError for a range without progress until the timeout; ranges that are lost may only end.
        """
        view, now, is_any_lost = self._cluster.view, self._time(), False
        for progress in self._active.values():
            due = progress.check(view, now, self._begun_at)
            if due is Due.END_CHECK:
                self._fetcher.spawn(self._check_end(progress))
            elif due is Due.TOPIC_GONE:
                progress.lose_topic(view)
                is_any_lost = True
            elif due is Due.TIMEOUT:
                self._time_out(progress)
                is_any_lost = True
        return is_any_lost

    async def _check_end(self, progress: RangeProgress) -> None:
        """Check whether the leader's log has the rest of the range, if no more records come: are they late or lost?

        Java's consumer, and so Spark, does not check this: it waits until the timeout, and then reports a loss.
        """
        try:
            end = await self._find_leaders_end(progress.partition)
        except AsyncGroupError as error:
            if not is_retriable_error(error):
                raise
            progress.poll_timer.end_check_failed()
            self._failed([progress.partition], error)
            return
        progress.poll_timer.set_leaders_end(end)
        self._fetcher.ask_leader(progress.partition)  # a follower may be far behind
        if end is not None and end <= progress.fetch_offset:
            progress.lose_end(end)

    async def _find_leaders_end(self, partition: TopicPartitionState) -> int | None:
        """Return the end offset of the leader's current epoch (OffsetForLeaderEpoch, KIP-101), after a metadata refresh.

        While a new leader waits for its followers, the high watermark may be lower than offsets that were read already;
        after a clean election the leader has those records. Returns None if the broker cannot answer. Makes no retries.
        Raises BrokerError, TransportError.
        """
        await self._cluster.refresh()
        tp, view = partition.tp, self._cluster.view
        info, leader = view.partition(*tp), view.leader(tp)
        if info is None or leader < 0:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"end of {tp}")
        epoch = info.leader_epoch
        if epoch < 0:
            return None
        check = PositionCheck(partition, partition.version, fetched_epoch=epoch, leader_epoch=epoch)
        try:
            ends = await send_epoch_request(self._cluster, leader, [check])
        except UnsupportedVersionError:
            return None
        code, end = ends.get(tp, (ErrorCode.UNKNOWN_SERVER_ERROR, None))
        if code or end is None:
            raise BrokerError(code, f"end of {tp} in the log of node {leader}")
        return end.end_offset if end.is_known else None

    def _time_out(self, progress: RangeProgress) -> None:
        """End a range whose log has ended; raise SourceError if its records may still come."""
        poll_timer = progress.poll_timer
        if poll_timer.log_end is not None:
            progress.lose_end(poll_timer.log_end)
            return
        reason = poll_timer.problem or poll_timer.held_back or self._no_answer(progress.tp)
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
            seconds=poll_timer.timeout,
            reason=reason,
        ) from poll_timer.problem

    def _no_answer(self, tp: TopicPartition) -> AsyncGroupError:
        if self._cluster.view.leader(tp) < 0:
            return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp}")
        return RequestTimedOut("no broker has answered")

    async def aclose(self) -> None:
        """Cancel fetches in flight; abandon their connections, so that late responses do not delay the next reader."""
        await self._fetcher.aclose()

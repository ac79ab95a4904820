"""`StreamProgress`: the state of a streaming query in the driver, and the answers to Spark's calls, as offsets.

The rules are those of Spark's `KafkaMicroBatchStream`; differences are noted below.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from asyncgroup.cluster.requests.list_offsets import EARLIEST
from asyncgroup.lifecycle import start_task
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.broker_client import BrokerClient
from asyncgroup.spark.source.driver.broker_lookups import ONLY_LOOKUP_TIMEOUT, BrokerLookups
from asyncgroup.spark.source.driver.end_offsets import EndOffsets
from asyncgroup.spark.source.driver.group_committer import GroupCommitter
from asyncgroup.spark.source.driver.initial_offsets import is_reproducible, may_start_at_end, resolve_offsets
from asyncgroup.spark.source.driver.limits import LogSampler, TriggerLimits
from asyncgroup.spark.source.driver.planner import plan_batch, split_into_tasks
from asyncgroup.spark.source.driver.recreated_topics import QueryTopics
from asyncgroup.spark.source.driver.topic_check import TopicCheck
from asyncgroup.spark.source.errors import DataLossError, report_data_loss
from asyncgroup.spark.source.options.settings import ReadSettings, TopicIds

__all__ = ["StreamProgress"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")

Offsets: TypeAlias = dict[TopicPartition, int]

IDLE_PAUSES: Final = (0.01, 0.05)
"""The first and the longest pause in seconds between lookups of the latest offsets while there are no new records.

Spark asks every 10 ms (`spark.sql.streaming.pollingDelay`), which would keep a broker and a core busy."""

IDLE_PAUSE_FACTOR: Final = 10
"""The longest pause is this multiple of the last lookup's duration, if that is more: thousands of partitions take long."""

RECREATED: Final = "the topic was deleted and recreated"

MAX_IDLE_PAUSE: Final = 1.0
"""Upper limit in seconds of any pause."""


class _Known(NamedTuple):
    """Offsets without those that are `EARLIEST`: partitions whose log start was not known when the query started."""

    offsets: Offsets
    from_log_start: frozenset[TopicPartition]

    @classmethod
    def of(cls, offsets: Offsets) -> _Known:
        """Divide the offsets of a query's start, or of its checkpoint."""
        deferred = frozenset(tp for tp, offset in offsets.items() if offset == EARLIEST)
        return cls({tp: offset for tp, offset in offsets.items() if tp not in deferred}, deferred)


class StreamProgress:
    """The state of one streaming query between its calls.

    An offset may be `EARLIEST`, also in the checkpoint, as in Spark's options: the partition was not available when the
    query started, and will be read from its first record. It is then handled like a new partition. Spark's own source also
    reads a range from there, if it continues the checkpoint (`KafkaBatchPartitionReader.resolveRange`).
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._client = BrokerClient(settings)
        self._limits = TriggerLimits(settings)
        self._sampler = LogSampler()
        self._initial: Offsets | None = None
        self._latest: Offsets = {}
        self._topics = QueryTopics()
        self._ends = EndOffsets(settings, self._topics)
        self._check = TopicCheck(settings, self._topics)
        self._left_out: frozenset[TopicPartition] = frozenset()
        """New partitions that are not part of the last batch, as their first offsets are not known."""
        self._planned = False  # after the first call of `tasks`
        self._idle_at: Offsets | None = None  # where the last lookup found no new records
        self._idle_since = 0.0  # the loop's time of the last lookup
        self._pause = 0.0  # seconds before the next lookup
        self._lookup_seconds = 0.0  # duration of the last lookup

    @property
    def latest(self) -> Offsets:
        """The ends of the logs at the last lookup; with Trigger.AvailableNow the end of the query."""
        return self._latest

    @property
    def topic_ids(self) -> TopicIds:
        """The topic ids that the query's offsets belong to, as far as known."""
        return self._topics.ids

    def interrupt(self) -> bool:
        """Cancel the running call, if there is one; return whether there was. For signal handlers."""
        return self._client.interrupt()

    def stop(self) -> None:
        """Close the connections."""
        self._client.close()

    # --- Spark's calls ------------------------------------------------------------------------------------------

    def initial_offsets(self) -> Offsets:
        """Return where a new query starts; the same at every call."""
        if self._initial is None:
            self._initial = self._client.call(self._find_initial)
        return self._initial

    def prepare_available_now(self) -> None:
        """Remember the ends of the logs: the query reads up to there, and no further."""
        # without the minimum of offsets: a delayed batch is empty, and the trigger stops at the first empty batch
        self._limits = TriggerLimits(replace(self._settings, min_offsets_per_trigger=None))
        self._latest = self._client.call(self._ends.prepare_available_now)

    def next_end(self, start: Offsets, *, limited: bool = True) -> Offsets:
        """Return the end of the batch that starts at `start`; `start` itself if there is no batch to run yet.

        The query has finished everything before `start`, so these offsets are committed to the group. If not `limited`, the
        batch reads all available records, as for Trigger.Once.
        """
        return self._client.call(lambda lookups: self._find_end(lookups, start, limited=limited))

    def tasks(self, start: Offsets, end: Offsets) -> list[tuple[OffsetRange, ...]]:
        """Return the ranges of each task of a batch. Raises DataLossError with failOnDataLoss, otherwise logs a warning."""
        return self._client.call(lambda lookups: self._find_tasks(lookups, start, end))

    # --- the start ----------------------------------------------------------------------------------------------

    async def _find_initial(self, lookups: BrokerLookups) -> Offsets:
        starting = self._settings.starting
        found = await resolve_offsets(
            starting, lookups, position="start", group_id=self._settings.group_id, may_defer=True
        )
        target = self._ends.target
        if target is None:
            return found
        # Trigger.AvailableNow has started before: "latest" are the ends found then, and later partitions count as new
        ends = {tp: target[tp] for tp in found if tp in target and may_start_at_end(starting, tp)}
        existed = target.keys() | self._ends.missing
        return {tp: min(offset, ends.get(tp, offset)) for tp, offset in found.items() if tp in existed}

    def _pins_start(self, start: Offsets) -> bool:
        """Return whether the first batch must be empty, only to store the query's start in the checkpoint.

        If this process died before the first batch is finished, another process would resolve another start (the end of
        the log, for example). Spark's source stores the start in a file of the checkpoint, which a Python source cannot
        access; but the end of an empty batch is stored there.
        """
        fresh = not self._planned and self._initial is not None and start == self._initial
        return fresh and not is_reproducible(self._settings.starting)

    # --- the end ------------------------------------------------------------------------------------------------

    async def _find_end(self, lookups: BrokerLookups, start: Offsets, *, limited: bool) -> Offsets:
        await self._wait_if_idle(start)
        lookups.mark_topics_known(start)
        known, from_log_start = _Known.of(start)
        end = await self._find_known_end(lookups, known, limited=limited, pins=self._pins_start(start))
        if waiting := from_log_start - end.keys():
            existing = await lookups.assigned(waiting)
            # without those that are deleted, which the plan reports as it does others
            end |= dict.fromkeys(waiting & existing.keys(), EARLIEST)
        self._idle_at = end if end == start else None
        return end

    async def _find_known_end(
        self, lookups: BrokerLookups, start: Offsets, *, limited: bool, pins: bool
    ) -> Offsets:
        """Return the end of the batch, without partitions whose first offset is not known."""
        commits = self._client.commits()
        if self._initial is None:
            await self._check.run(lookups, start, commits)
        self._topics.recreated(start, lookups.topic_ids)
        wait = None if limited else ONLY_LOOKUP_TIMEOUT
        finding = self._ends.find(lookups, start, self._check.unchecked, wait)
        if commits is None:
            self._latest = await finding
        else:
            self._latest = await _alongside(finding, self._commit(commits, start))
        self._lookup_seconds = asyncio.get_running_loop().time() - self._idle_since
        new = self._latest.keys() - start.keys()
        earliest = await lookups.list_available_offsets(dict.fromkeys(new, EARLIEST))
        # read from their first offset as soon as that is known; deleted ones have none, which the planner reports
        self._left_out = frozenset(new - earliest.keys()) & lookups.topic_ids.keys()
        latest = {tp: offset for tp, offset in self._latest.items() if tp not in self._left_out}
        end = await self._limit_end(lookups, start, latest, earliest, limited=limited, pins=pins)
        if commits is not None and end.keys() - start.keys():
            # commit the start of new partitions before their first batch: by it the next run detects recreated topics
            await self._commit(commits, start | {tp: first for tp, first in earliest.items() if tp in end})
        return end

    async def _commit(self, commits: GroupCommitter, offsets: Offsets) -> None:
        await commits.commit_finished(self._check.may_be_committed(offsets), self._topics.ids)

    async def _wait_if_idle(self, start: Offsets) -> None:
        """Sleep before the lookup if the last one for the same start found no new records."""
        time = asyncio.get_running_loop().time
        first, longest = IDLE_PAUSES
        if self._idle_at != start or self._ends.target is not None:
            self._pause = first
        else:
            await asyncio.sleep(max(self._idle_since + self._pause - time(), 0))
            self._pause = min(
                self._pause * 2, max(longest, IDLE_PAUSE_FACTOR * self._lookup_seconds), MAX_IDLE_PAUSE
            )
        self._idle_since = time()

    async def _limit_end(
        self,
        lookups: BrokerLookups,
        start: Offsets,
        latest: Offsets,
        earliest: Offsets,
        *,
        limited: bool,
        pins: bool,
    ) -> Offsets:
        if not limited:
            return latest  # Trigger.Once: its first batch is its only one
        if pins:
            return dict(start)
        if self._settings.max_bytes_per_trigger is not None:
            await self._sampler.sample(lookups.cluster, earliest | start, latest, self._limits.sizes)
        return self._limits.end_offsets(start, latest, earliest, asyncio.get_running_loop().time())

    # --- the plan -----------------------------------------------------------------------------------------------

    async def _find_tasks(
        self, lookups: BrokerLookups, start: Offsets, end: Offsets
    ) -> list[tuple[OffsetRange, ...]]:
        lookups.mark_topics_known(start | end)
        end, waiting = _Known.of(end)
        start, from_log_start = _Known.of(start)
        from_log_start -= waiting  # what is still to be read from its log's start is not part of the batch
        recreated: list[TopicPartition] = []
        if not self._ends.is_looked_up:
            # a batch that another process has planned is repeated: the topic ids of its offsets are not known yet
            if self._initial is None:
                await self._check.run(lookups, start, self._client.commits())
                await self._check.wait_for(lookups, start, end)
            recreated = self._topics.recreated(end, await lookups.assigned())
        if self._ends.target is not None:
            same = {tp: offset for tp, offset in end.items() if tp not in recreated}
            if not self._ends.is_looked_up:
                await self._ends.renew(lookups, start, same)
            await self._ends.check(lookups, same, without=self._left_out)
        # a batch is read as it was planned, so this waits for its partitions
        earliest = await lookups.list_offsets(dict.fromkeys(end.keys() - start.keys(), EARLIEST))
        replays_first = self._initial is not None and not self._ends.is_looked_up
        if replays_first:
            # the start was looked up again: partitions that are new since belong to the next batch
            start = {tp: offset for tp, offset in start.items() if tp in end}
            from_log_start &= end.keys()
        moved = replays_first and not is_reproducible(self._settings.starting)
        if moved and (
            skipped := [tp for tp, offset in sorted(end.items()) if offset < start.get(tp, offset)]
        ):
            # if this source has written the checkpoint, its first batch is empty (`_pins_start`), so nothing is missed
            _log.warning(
                "the query's first batch is repeated, and its start is not in the checkpoint; if another source has written"
                " the checkpoint, rows of this batch are skipped: %s",
                ", ".join(map(str, skipped)),
            )
        found = plan_batch(
            start,
            end,
            earliest,
            group_id=self._settings.group_id,
            replays_first=moved,
            from_log_start=from_log_start,
        )
        gone = [part for part in found.ranges if (part.topic, part.partition) in recreated]
        losses = [
            DataLossError(
                "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE",
                topicPartition=TopicPartition(part.topic, part.partition),
                startOffset=part.start,
                endOffset=part.end,
                reason=RECREATED,
            )
            for part in gone
        ]
        for loss in (*found.losses, *losses):
            report_data_loss(loss, fail=self._settings.fail_on_data_loss)
        self._planned = True
        return split_into_tasks([part for part in found.ranges if part not in gone], self._settings)


async def _alongside(work: Awaitable[T], other: Coroutine[Any, Any, None]) -> T:
    """Await `work` and `other` concurrently; return the result of `work`. Raises what either raises, after both ended."""
    beside = start_task(other, name="commit beside a lookup")
    try:
        return await work
    except asyncio.CancelledError:
        beside.cancel()  # Spark has stopped the query
        raise
    finally:
        await asyncio.wait([beside])
        if not beside.cancelled():
            beside.result()

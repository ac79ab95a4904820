"""`StreamProgress`: the state of a streaming query in the driver, and the answers to Spark's calls, as offsets.

The rules are those of Spark's `KafkaMicroBatchStream`; differences are noted below.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from asyncgroup.consumer.list_offsets import EARLIEST, LATEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.driver.broker_client import BrokerClient
from asyncgroup.spark.source.driver.broker_lookups import BrokerLookups
from asyncgroup.spark.source.driver.initial_offsets import is_reproducible, may_start_at_end, resolve_offsets
from asyncgroup.spark.source.driver.limits import LogSampler, TriggerLimits
from asyncgroup.spark.source.driver.planner import check_available_now, plan_batch, split_into_tasks
from asyncgroup.spark.source.driver.recreated_topics import UNKNOWN_TOPIC, QueryTopics, checkpoint_topics
from asyncgroup.spark.source.driver.retry_policy import offset_attempts
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


class StreamProgress:
    """The state of one streaming query between its calls."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._client = BrokerClient(settings)
        self._limits = TriggerLimits(settings)
        self._sampler = LogSampler()
        self._initial: Offsets | None = None
        self._available_now_end: Offsets | None = None
        """The ends of the logs when Trigger.AvailableNow started; the query stops there."""
        self._kept: Offsets = {}
        """Ends of Trigger.AvailableNow that are the starts, as the logs end before them."""
        self._latest: Offsets = {}
        self._topics = QueryTopics()
        self._looked_up_end = False  # after the first call of `next_end`
        self._planned = False  # after the first call of `tasks`
        self._checked = False  # after `_check_topics`
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
        # missing topics are no error yet: whether they have existed is known later, from the checkpoint
        found = self._client.call(lambda lookups: lookups.list_all_offsets(LATEST, require_topics=False))
        self._available_now_end = self._latest = found

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
        found = await resolve_offsets(starting, lookups, position="start", group_id=self._settings.group_id)
        target = self._available_now_end
        if target is None:
            return found
        # Trigger.AvailableNow has started before: "latest" are the ends found then, and later partitions count as new
        ends = {tp: target[tp] for tp in found if tp in target and may_start_at_end(starting, tp)}
        return {tp: min(offset, ends.get(tp, offset)) for tp, offset in found.items() if tp in target}

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
        await self._check_topics(lookups, start)
        self._topics.recreated(start, lookups.topic_ids)
        commits = self._client.commits()
        if commits is None:
            self._latest = await self._find_latest(lookups, start)
        else:
            self._latest = await _alongside(
                self._find_latest(lookups, start), commits.commit_finished(start, self._topics.ids)
            )
        self._looked_up_end = True
        self._lookup_seconds = asyncio.get_running_loop().time() - self._idle_since
        new = dict.fromkeys(self._latest.keys() - start.keys(), EARLIEST)
        earliest = await lookups.list_offsets(new) if new else {}
        end = await self._limit_end(lookups, start, self._latest, earliest, limited=limited)
        if commits is not None and end.keys() - start.keys():
            # commit the start of new partitions before their first batch: by it the next run detects recreated topics
            await commits.commit_finished(
                start | {tp: first for tp, first in earliest.items() if tp in end}, self._topics.ids
            )
        self._idle_at = end if end == start else None
        return end

    async def _wait_if_idle(self, start: Offsets) -> None:
        """Sleep before the lookup if the last one for the same start found no new records."""
        time = asyncio.get_running_loop().time
        first, longest = IDLE_PAUSES
        if self._idle_at != start or self._available_now_end is not None:
            self._pause = first
        else:
            await asyncio.sleep(max(self._idle_since + self._pause - time(), 0))
            self._pause = min(
                self._pause * 2, max(longest, IDLE_PAUSE_FACTOR * self._lookup_seconds), MAX_IDLE_PAUSE
            )
        self._idle_since = time()

    async def _find_latest(self, lookups: BrokerLookups, start: Offsets) -> Offsets:
        if self._available_now_end is None:
            latest = await self._ask_latest(lookups, start)
        else:
            if not self._looked_up_end:
                await self._complete_available_now_end(lookups, start, self._available_now_end)
                self._keep_ends(lookups, start, self._available_now_end)
            latest = self._available_now_end
        new = self._topics.without_start(self._topics.recreated(start, lookups.topic_ids))
        self._topics.add_starts(await lookups.list_offsets(dict.fromkeys(new, EARLIEST)))
        return latest | self._topics.resets(start, lookups.topic_ids)

    async def _ask_latest(self, lookups: BrokerLookups, start: Offsets) -> Offsets:
        latest = await lookups.list_all_offsets(LATEST, last_known=start)
        retry = offset_attempts(self._settings)
        while self._doubtful(lookups, start, latest) and retry.failed():
            await retry.wait()
            latest = await lookups.list_all_offsets(LATEST, refresh=True, last_known=start)
        if self._settings.fail_on_data_loss:
            # before Spark has stored the end: it would fail every restart, as with Spark's source
            for loss in self._shorter(lookups, start, latest).values():
                raise loss
        return latest

    def _doubtful(self, lookups: BrokerLookups, start: Offsets, ends: Offsets) -> list[TopicPartition]:
        """Return the partitions whose end is missing or below the start, which was read already.

        That may be due to stale metadata (KAFKA-7703), so the end is looked up again, as Spark does; or due to a broker that
        has just started and does not know the topic yet.
        """
        recreated = self._topics.recreated(start, lookups.topic_ids)
        return [
            tp
            for tp, offset in start.items()
            if tp not in ends or (ends[tp] < offset and tp not in recreated)
        ]

    def _shorter(
        self, lookups: BrokerLookups, start: Offsets, ends: Offsets
    ) -> dict[TopicPartition, DataLossError]:
        """Return the loss of each partition whose log ends before the start."""
        return {
            tp: DataLossError(
                "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED",
                topicPartition=tp,
                prevOffset=start[tp],
                newOffset=ends[tp],
            )
            for tp in sorted(self._doubtful(lookups, start, ends))
            if tp in ends
        }

    async def _complete_available_now_end(
        self, lookups: BrokerLookups, start: Offsets, target: Offsets
    ) -> None:
        """Look again for ends that were missing or below the checkpoint when Trigger.AvailableNow started."""
        retry = offset_attempts(self._settings)
        while (doubtful := self._doubtful(lookups, start, target)) and retry.failed():
            await retry.wait()
            found = await lookups.list_all_offsets(LATEST, refresh=True, last_known=start)
            target |= {tp: found[tp] for tp in doubtful if tp in found}

    async def _renew_available_now_end(
        self, lookups: BrokerLookups, start: Offsets, end: Offsets, target: Offsets
    ) -> None:
        """Look again for ends below those of a batch that is repeated, and keep those that `_keep_ends` had kept when it was planned."""
        await self._complete_available_now_end(lookups, end, target)
        if not self._settings.fail_on_data_loss:
            unread = {tp: offset for tp, offset in end.items() if offset == start.get(tp)}
            self._keep_ends(lookups, unread, target)

    def _keep_ends(self, lookups: BrokerLookups, start: Offsets, target: Offsets) -> None:
        """Report logs that end before the start. Without failOnDataLoss the query stays where it is there.

        A lower end would be stored, and what follows it would be read twice if the answer was stale.
        """
        for tp, loss in self._shorter(lookups, start, target).items():
            report_data_loss(loss, fail=self._settings.fail_on_data_loss)
            self._kept[tp] = target[tp] = start[tp]

    async def _check_topics(self, lookups: BrokerLookups, start: Offsets) -> None:
        """Check once, in a run that started from a checkpoint, whether topics of `start` were recreated since the last run.

        Partitions of recreated topics get the old topic's id in `_topics`, or `UNKNOWN_TOPIC`. Raises DataLossError
        with failOnDataLoss if the group has no offsets for topics of the checkpoint.
        """
        if self._checked or self._initial is not None:
            return
        self._checked = True
        commits = self._client.commits()
        found = None if commits is None else await commits.initial_commits(start)
        if commits is None or found is None:
            cause = (
                f"the committed offsets of group {commits.group_id!r} are not known"
                if commits is not None
                else "the query does not commit offsets to a group (kafka.group.id, commitOffsets)"
            )
            _log.warning(
                "topics that were deleted and recreated since the query's last run cannot be detected: %s",
                cause,
            )
            return
        ids = await lookups.assigned()
        retry = offset_attempts(self._settings)
        while not start.keys() <= ids.keys() and retry.failed():
            await retry.wait()
            # a broker that has just started may not know the topics yet
            ids = await lookups.assigned(refresh=True)
        known = checkpoint_topics(start, ids, found)
        self._topics.add_ids(known.ids)
        if not known.without_commit or self._settings.trusts_checkpoint:
            return
        earliest = await lookups.list_offsets(dict.fromkeys(known.without_commit, EARLIEST))
        lost = {tp: start[tp] for tp in known.without_commit if start[tp] > earliest.get(tp, start[tp])}
        if lost:
            loss = DataLossError("ASYNCGROUP_GROUP_LACKS_OFFSETS", groupId=commits.group_id, offsets=lost)
            report_data_loss(loss, fail=self._settings.fail_on_data_loss)
            self._topics.add_ids(dict.fromkeys(lost, UNKNOWN_TOPIC))

    async def _limit_end(
        self,
        lookups: BrokerLookups,
        start: Offsets,
        latest: Offsets,
        earliest: Offsets,
        *,
        limited: bool,
    ) -> Offsets:
        if not limited:
            return latest  # Trigger.Once: its first batch is its only one
        if self._pins_start(start):
            return start
        if self._settings.max_bytes_per_trigger is not None:
            await self._sampler.sample(lookups.cluster, earliest | start, latest, self._limits.sizes)
        return self._limits.end_offsets(start, latest, earliest, asyncio.get_running_loop().time())

    # --- the plan -----------------------------------------------------------------------------------------------

    async def _find_tasks(
        self, lookups: BrokerLookups, start: Offsets, end: Offsets
    ) -> list[tuple[OffsetRange, ...]]:
        lookups.mark_topics_known(start | end)
        recreated: list[TopicPartition] = []
        if not self._looked_up_end:
            # a batch that another process has planned is repeated: the topic ids of its offsets are not known yet
            await self._check_topics(lookups, start)
            recreated = self._topics.recreated(end, await lookups.assigned())
        if self._available_now_end is not None:
            same = {tp: offset for tp, offset in end.items() if tp not in recreated}
            if not self._looked_up_end:
                await self._renew_available_now_end(lookups, start, same, self._available_now_end)
            await self._check_available_now(lookups, self._available_now_end, same)
        earliest = await lookups.list_offsets(dict.fromkeys(end.keys() - start.keys(), EARLIEST))
        replays_first = self._initial is not None and not self._looked_up_end
        if replays_first:
            # the start was looked up again: partitions that are new since belong to the next batch
            start = {tp: offset for tp, offset in start.items() if tp in end}
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
        found = plan_batch(start, end, earliest, group_id=self._settings.group_id, replays_first=moved)
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

    async def _check_available_now(self, lookups: BrokerLookups, target: Offsets, end: Offsets) -> None:
        latest = await lookups.list_all_offsets(LATEST, last_known=end) | self._kept
        retry = offset_attempts(self._settings)
        while any(latest.get(tp, -1) < offset for tp, offset in end.items()) and retry.failed():
            await retry.wait()
            latest = await lookups.list_all_offsets(LATEST, refresh=True, last_known=end) | self._kept
        check_available_now(target, end, latest, replayed=not self._looked_up_end)


async def _alongside(work: Awaitable[T], other: Awaitable[None]) -> T:
    """Await `work` and `other` concurrently; return the result of `work`. Raises what either raises, after both ended."""
    beside = asyncio.ensure_future(other)
    try:
        return await work
    except asyncio.CancelledError:
        beside.cancel()  # Spark has stopped the query
        raise
    finally:
        await asyncio.wait([beside])
        if not beside.cancelled():
            beside.result()

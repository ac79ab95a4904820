"""How far a streaming query is and may go: what Spark asks its reader, in offsets instead of JSON.

The rules are those of Spark's `KafkaMicroBatchStream`; what differs is said where it does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from asyncgroup.consumer.list_offsets import EARLIEST, LATEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.broker_client import BrokerClient
from asyncgroup.spark.source.broker_lookups import BrokerLookups
from asyncgroup.spark.source.initial_offsets import is_reproducible, may_start_at_end, resolve_offsets
from asyncgroup.spark.source.limits import TriggerLimits
from asyncgroup.spark.source.log_sampler import LogSampler
from asyncgroup.spark.source.planner import check_available_now, plan_batch, split_into_tasks
from asyncgroup.spark.source.recreated_topics import UNKNOWN_TOPIC, checkpoint_topics
from asyncgroup.spark.source.settings import ReadSettings, TopicIds

__all__ = ["StreamProgress"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")

Offsets: TypeAlias = dict[TopicPartition, int]

IDLE_PAUSES: Final = (0.01, 0.05)
"""Seconds between two questions for news while there are none: the first pause, and the longest.

Spark asks again after 10 ms (`spark.sql.streaming.pollingDelay`), which would keep a broker and a core busy."""

IDLE_PAUSE_FACTOR: Final = 10
"""The longest pause is so many times what the last answer took, if that is more: thousands of partitions take a while."""

RECREATED: Final = "the topic was deleted and recreated"

MAX_IDLE_PAUSE: Final = 1.0
"""In any case, in seconds."""


class StreamProgress:
    """The state of one streaming query between its calls."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._client = BrokerClient(settings)
        self._limits = TriggerLimits(settings)
        self._sampler = LogSampler()
        self._initial: Offsets | None = None
        self._available_now_end: Offsets | None = None
        """What there was when Trigger.AvailableNow began; the query ends there."""
        self._latest: Offsets = {}
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """The topics that the query's offsets are of: a topic made anew has another id."""
        self._recreated_starts: Offsets = {}
        """Where topics made anew start; the query's own offsets there say that it knows."""
        self._looked_up_end = self._planned = self._checked = False
        self._idle_at: Offsets | None = None
        self._idle_since = self._pause = self._lookup_seconds = 0.0

    @property
    def latest(self) -> Offsets:
        """The logs' ends as they were found the last time; the query's end with Trigger.AvailableNow."""
        return self._latest

    @property
    def topic_ids(self) -> TopicIds:
        """The topics that the query's offsets are of, as far as that is known."""
        return self._topic_ids

    def interrupt(self) -> bool:
        """End the call that runs, if one does, by CancelledError; whether one did. For signal handlers."""
        return self._client.interrupt()

    def stop(self) -> None:
        """Close the connections."""
        self._client.close()

    # --- what Spark asks ----------------------------------------------------------------------------------------

    def initial_offsets(self) -> Offsets:
        """Where a new query starts; the same at every call."""
        if self._initial is None:
            self._initial = self._client.call(self._find_initial)
        return self._initial

    def prepare_available_now(self) -> None:
        """Remember the logs' ends: the query reads up to there, and no further."""
        # a batch that waits for more would never come, as the trigger ends with the first that is empty
        self._limits = TriggerLimits(replace(self._settings, min_offsets_per_trigger=None))
        # whether topics that are missing have been there is known later: from the checkpoint, or they never were
        found = self._client.call(lambda lookups: lookups.list_all_offsets(LATEST, require_topics=False))
        self._available_now_end = self._latest = found

    def next_end(self, start: Offsets, *, limited: bool = True) -> Offsets:
        """Where the batch ends that starts at `start`; `start` itself if there is none to run yet.

        Everything before `start` is done: that is committed to the group. Not `limited` takes whatever there is, as
        Trigger.Once asks for.
        """
        return self._client.call(lambda lookups: self._find_end(lookups, start, limited=limited))

    def tasks(self, start: Offsets, end: Offsets) -> list[tuple[OffsetRange, ...]]:
        """The ranges of each task of a batch. Raises DataLossError with failOnDataLoss, and warns without."""
        return self._client.call(lambda lookups: self._find_tasks(lookups, start, end))

    # --- the start ----------------------------------------------------------------------------------------------

    async def _find_initial(self, lookups: BrokerLookups) -> Offsets:
        starting = self._settings.starting
        found = await resolve_offsets(starting, lookups, position="start", group_id=self._settings.group_id)
        target = self._available_now_end
        if target is None:
            return found
        # Trigger.AvailableNow has begun before: "latest" was there, and a partition that came since is a new one
        ends = {tp: target[tp] for tp in found if tp in target and may_start_at_end(starting, tp)}
        return {tp: min(offset, ends.get(tp, offset)) for tp, offset in found.items() if tp in target}

    def _pins_start(self, start: Offsets) -> bool:
        """Whether the first batch has to be an empty one, which only writes down where the query starts.

        Another process would find another start (the log's end, for example), should this one die before its first
        batch is done. Spark's source keeps the start in a file of the checkpoint, which a Python source cannot reach;
        the end of an empty batch gets there all the same.
        """
        fresh = not self._planned and self._initial is not None and start == self._initial
        return fresh and not is_reproducible(self._settings.starting)

    # --- the end ------------------------------------------------------------------------------------------------

    async def _find_end(self, lookups: BrokerLookups, start: Offsets, *, limited: bool) -> Offsets:
        await self._wait_if_idle(start)
        lookups.mark_topics_known(start)
        await self._check_topics(lookups, start)
        self._find_recreated(start, lookups.topic_ids)
        commits = self._client.commits()
        if commits is None:
            self._latest = await self._find_latest(lookups, start)
        else:
            self._latest = await _alongside(
                self._find_latest(lookups, start), commits.commit_finished(start, self._topic_ids)
            )
        self._looked_up_end = True
        self._lookup_seconds = asyncio.get_running_loop().time() - self._idle_since
        new = dict.fromkeys(self._latest.keys() - start.keys(), EARLIEST)
        earliest = await lookups.list_offsets(new) if new else {}
        end = await self._limit_end(lookups, start, self._latest, earliest, limited=limited)
        if commits is not None and end.keys() - start.keys():
            # before their first batch: the next run tells by that whether their topics were recreated
            await commits.commit_finished(
                start | {tp: first for tp, first in earliest.items() if tp in end}, self._topic_ids
            )
        self._idle_at = end if end == start else None
        return end

    async def _wait_if_idle(self, start: Offsets) -> None:
        """Answer a question that was answered by "nothing new" the last time only after a pause."""
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
            latest = self._available_now_end
        anew = self._find_recreated(start, lookups.topic_ids)
        # a batch that ends at the start of the new topic, below its own start, makes the reset visible; the next one reads it
        self._recreated_starts |= await lookups.list_offsets(
            {tp: EARLIEST for tp in anew if tp not in self._recreated_starts}
        )
        back = self._find_recreated(start, lookups.topic_ids)  # but for those that are at the start already
        return latest | {tp: self._recreated_starts[tp] for tp in back if tp in self._recreated_starts}

    async def _ask_latest(self, lookups: BrokerLookups, start: Offsets) -> Offsets:
        latest = await lookups.list_all_offsets(LATEST, last_known=start)
        anew = self._find_recreated(start, lookups.topic_ids)
        for _ in range(1, self._settings.offset_retries):
            if all(latest.get(tp, -1) >= offset for tp, offset in start.items() if tp not in anew):
                break
            # stale metadata may be the cause (KAFKA-7703), so that is asked again, as Spark does; or a broker that has
            # just started, and knows of no topic yet
            await asyncio.sleep(self._settings.offset_retry_interval)
            latest = await lookups.list_all_offsets(LATEST, refresh=True, last_known=start)
            anew = self._find_recreated(start, lookups.topic_ids)
        return latest

    async def _complete_available_now_end(
        self, lookups: BrokerLookups, start: Offsets, target: Offsets
    ) -> None:
        """Add what was not there for a moment when Trigger.AvailableNow began: the checkpoint knows of it."""
        for _ in range(1, self._settings.offset_retries):
            if not (missing := start.keys() - target.keys()):
                break
            await asyncio.sleep(self._settings.offset_retry_interval)
            found = await lookups.list_all_offsets(LATEST, refresh=True, last_known=start)
            target |= {tp: found[tp] for tp in missing if tp in found}

    def _find_recreated(self, start: Offsets, ids: Mapping[TopicPartition, UUID]) -> list[TopicPartition]:
        """The partitions whose `start` is of a topic that is gone, and that a namesake has taken the place of."""
        for tp, topic_id in ids.items():
            if tp not in start or tp not in self._topic_ids or start[tp] == self._recreated_starts.get(tp):
                self._topic_ids[tp] = topic_id
                self._recreated_starts.pop(tp, None)
        return [tp for tp in start if tp in ids and self._topic_ids[tp] != ids[tp]]

    async def _check_topics(self, lookups: BrokerLookups, start: Offsets) -> None:
        """See once in a run that started from a checkpoint whether the topics of `start` were recreated since.

        Partitions of which that is so, or must be assumed, get another id than their topic has. Raises DataLossError
        with failOnDataLoss where the group lacks offsets that the checkpoint has.
        """
        if self._checked or self._initial is not None:
            return
        self._checked = True
        commits = self._client.commits()
        found = None if commits is None else await commits.initial_commits(start)
        if commits is None or found is None:
            cause = (
                f"what group {commits.group_id!r} has committed is not known"
                if commits is not None
                else "the query commits to no group (kafka.group.id, commitOffsets)"
            )
            _log.warning(
                "topics that were deleted and recreated since the query's last run cannot be detected: %s",
                cause,
            )
            return
        ids = await lookups.assigned()
        for _ in range(1, self._settings.offset_retries):
            if start.keys() <= ids.keys():
                break
            await asyncio.sleep(self._settings.offset_retry_interval)
            ids = await lookups.assigned(refresh=True)  # a broker that has just started knows of no topic yet
        known = checkpoint_topics(start, ids, found)
        self._topic_ids |= known.ids
        if not known.without_commit or self._settings.trusts_checkpoint:
            return
        earliest = await lookups.list_offsets(dict.fromkeys(known.without_commit, EARLIEST))
        lost = {tp: start[tp] for tp in known.without_commit if start[tp] > earliest.get(tp, start[tp])}
        if lost:
            loss = errors.group_lacks_offsets(commits.group_id, lost)
            errors.report_data_loss(loss, fail=self._settings.fail_on_data_loss)
            self._topic_ids |= dict.fromkeys(lost, UNKNOWN_TOPIC)

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
            return latest  # by Trigger.Once, whose first batch is its only one
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
        if (
            not self._looked_up_end
        ):  # a batch of another process, done again: from now on its topics are known
            await self._check_topics(lookups, start)
            recreated = self._find_recreated(end, await lookups.assigned())
        if self._available_now_end is not None:
            latest = await lookups.list_all_offsets(LATEST, last_known=end)
            same = {tp: offset for tp, offset in end.items() if tp not in recreated}
            check_available_now(self._available_now_end, same, latest, replayed=not self._looked_up_end)
        earliest = await lookups.list_offsets(dict.fromkeys(end.keys() - start.keys(), EARLIEST))
        replays_first = self._initial is not None and not self._looked_up_end
        if (
            replays_first
        ):  # the start was looked up anew: partitions that have come since are the next batch's
            start = {tp: offset for tp, offset in start.items() if tp in end}
        moved = replays_first and not is_reproducible(self._settings.starting)
        if moved and (behind := [tp for tp, offset in sorted(end.items()) if offset < start.get(tp, offset)]):
            # in a checkpoint that this source has begun there is nothing to read then (`_pins_start`)
            _log.warning(
                "the query's first batch is done again, and where it began is not in the checkpoint; if another source"
                " has begun that, rows of this batch are left out: %s",
                ", ".join(map(str, behind)),
            )
        found = plan_batch(start, end, earliest, group_id=self._settings.group_id, replays_first=moved)
        gone = [part for part in found.ranges if (part.topic, part.partition) in recreated]
        losses = [
            errors.could_not_read_offset_range(
                TopicPartition(part.topic, part.partition), part.start, part.end, RECREATED
            )
            for part in gone
        ]
        for loss in (*found.losses, *losses):
            errors.report_data_loss(loss, fail=self._settings.fail_on_data_loss)
        self._planned = True
        return split_into_tasks([part for part in found.ranges if part not in gone], self._settings)


async def _alongside(work: Awaitable[T], other: Awaitable[None]) -> T:
    """What `work` returns, while `other` is done as well. Raises what either raises, once both have ended."""
    beside = asyncio.ensure_future(other)
    try:
        return await work
    except asyncio.CancelledError:
        beside.cancel()  # Spark has ended the query: nobody waits for anything any more
        raise
    finally:
        await asyncio.wait([beside])
        if not beside.cancelled():
            beside.result()

"""`EndOffsets`: up to which offsets a streaming query may read: the ends of the logs, now or when its run started.

A partition whose end is not known does not stop the others: it stays where it is, and one that is new is not part of the
batch, so that it is read from its first offset later. Spark's `KafkaMicroBatchStream` waits for all partitions and fails.
"""

from __future__ import annotations

from typing import TypeAlias

from asyncgroup.cluster.requests.list_offsets import EARLIEST, LATEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver.broker_lookups import ONLY_LOOKUP_TIMEOUT, BrokerLookups
from asyncgroup.spark.source.driver.planner import check_available_now
from asyncgroup.spark.source.driver.recreated_topics import QueryTopics
from asyncgroup.spark.source.driver.retry_policy import offset_attempts
from asyncgroup.spark.source.errors import DataLossError, report_data_loss
from asyncgroup.spark.source.options.settings import ReadSettings

__all__ = ["EndOffsets"]

Offsets: TypeAlias = dict[TopicPartition, int]


class EndOffsets:
    """Finds the ends of the logs for one query; `topics` are the topics that its offsets belong to."""

    def __init__(self, settings: ReadSettings, topics: QueryTopics) -> None:
        self._settings = settings
        self._topics = topics
        self.target: Offsets | None = None
        """The ends of the logs when Trigger.AvailableNow started; the query stops there."""
        self.missing: frozenset[TopicPartition] = frozenset()
        """Partitions that existed when Trigger.AvailableNow started, whose ends could not be looked up."""
        self.is_looked_up = False
        """Whether `find` has returned, so a batch that is planned now was not planned by another process."""
        self._kept: Offsets = {}
        """Ends of Trigger.AvailableNow that are the starts: the logs end before them, or are not read yet."""

    async def prepare_available_now(self, lookups: BrokerLookups) -> Offsets:
        """Remember the ends of the logs, and return them."""
        # missing topics are no error yet: whether they have existed is known later, from the checkpoint
        self.target = await lookups.list_all_offsets(LATEST, require_topics=False, wait=ONLY_LOOKUP_TIMEOUT)
        self.missing = frozenset(lookups.topic_ids.keys() - self.target.keys())
        return self.target

    async def find(
        self,
        lookups: BrokerLookups,
        start: Offsets,
        unchecked: frozenset[TopicPartition],
        wait: float | None = None,
    ) -> Offsets:
        """Return the ends for a batch that starts at `start`: for the partitions `unchecked`, `start` itself.

        Waits up to `wait` seconds for unavailable partitions.
        """
        if self.target is None:
            latest = await self._ask_latest(lookups, start, wait)
        else:
            if not self.is_looked_up:
                await self._complete(lookups, start, self.target)
                self._keep(lookups, start, self.target)
            latest = self.target
        recreated = self._topics.recreated(start, lookups.topic_ids)
        new = self._topics.without_start(recreated)
        self._topics.add_starts(await lookups.list_available_offsets(dict.fromkeys(new, EARLIEST)))
        waiting = [*self._topics.without_start(recreated), *unchecked]
        held = {tp: start[tp] for tp in waiting if tp in start and tp in latest}
        if self.target is not None:
            self.target |= held
            self._kept |= held
        self.is_looked_up = True
        return latest | self._topics.resets(start, lookups.topic_ids) | held

    async def renew(self, lookups: BrokerLookups, start: Offsets, end: Offsets) -> None:
        """Look again for ends below those of a batch that is repeated, and keep those that were kept when it was planned."""
        if self.target is None:
            return
        await self._complete(lookups, end, self.target)
        if not self._settings.fail_on_data_loss:
            unread = {tp: offset for tp, offset in end.items() if offset == start.get(tp)}
            self._keep(lookups, unread, self.target)

    async def check(
        self, lookups: BrokerLookups, end: Offsets, *, without: frozenset[TopicPartition]
    ) -> None:
        """Check the end of a batch of Trigger.AvailableNow. The partitions `without` need not be part of it."""
        if self.target is None:
            return
        latest = await lookups.list_all_offsets(LATEST, last_known=end) | self._kept
        retry = offset_attempts(self._settings)
        while any(latest.get(tp, -1) < offset for tp, offset in end.items()) and retry.failed():
            await retry.wait()
            latest = await lookups.list_all_offsets(LATEST, refresh=True, last_known=end) | self._kept
        wanted = {tp: offset for tp, offset in self.target.items() if tp in end or tp not in without}
        check_available_now(wanted, end, latest, replayed=not self.is_looked_up)

    # --- ends that are missing or below the start ----------------------------------------------------------------

    async def _ask_latest(self, lookups: BrokerLookups, start: Offsets, wait: float | None) -> Offsets:
        latest = await lookups.list_all_offsets(LATEST, last_known=start, wait=wait)
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

    async def _complete(self, lookups: BrokerLookups, start: Offsets, target: Offsets) -> None:
        """Look again for ends that were missing or below the checkpoint when Trigger.AvailableNow started."""
        retry = offset_attempts(self._settings)
        while (doubtful := self._doubtful(lookups, start, target)) and retry.failed():
            await retry.wait()
            found = await lookups.list_all_offsets(LATEST, refresh=True, last_known=start)
            target |= {tp: found[tp] for tp in doubtful if tp in found}

    def _keep(self, lookups: BrokerLookups, start: Offsets, target: Offsets) -> None:
        """Report logs that end before the start. Without failOnDataLoss the query stays where it is there.

        A lower end would be stored, and what follows it would be read twice if the answer was stale.
        """
        for tp, loss in self._shorter(lookups, start, target).items():
            report_data_loss(loss, fail=self._settings.fail_on_data_loss)
            self._kept[tp] = target[tp] = start[tp]

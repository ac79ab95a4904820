"""`TopicCheck`: whether topics of a checkpoint were deleted and recreated since the query's last run.

The group's commits show it (`recreated_topics`); of topics without any commit, the first offsets of their logs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeAlias

from asyncgroup.cluster.requests.list_offsets import EARLIEST
from asyncgroup.model import TopicPartition
from asyncgroup.spark.source.driver.broker_lookups import BrokerLookups
from asyncgroup.spark.source.driver.group_committer import GroupCommitter
from asyncgroup.spark.source.driver.recreated_topics import UNKNOWN_TOPIC, QueryTopics, checkpoint_topics
from asyncgroup.spark.source.errors import DataLossError, report_data_loss
from asyncgroup.spark.source.options.settings import ReadSettings

__all__ = ["TopicCheck"]

_log = logging.getLogger("asyncgroup.spark")

Offsets: TypeAlias = Mapping[TopicPartition, int]


class TopicCheck:
    """The check of one query, which has started from a checkpoint. `topics` gets the ids of topics that were recreated.

    A partition whose log start cannot be looked up does not stop the others: it is checked later, and not read before.
    """

    def __init__(self, settings: ReadSettings, topics: QueryTopics) -> None:
        self._settings = settings
        self._topics = topics
        self.unchecked: frozenset[TopicPartition] = frozenset()
        """Partitions whose topics have no commit, and whose first offset is not known yet."""
        self._started = False

    async def run(self, lookups: BrokerLookups, start: Offsets, commits: GroupCommitter | None) -> None:
        """Check the topics of `start`, at the first call; at later ones those that are `unchecked`.

        Partitions of recreated topics get the old topic's id in `topics`, or `UNKNOWN_TOPIC`. Raises DataLossError
        with failOnDataLoss if the group has no offsets for topics of the checkpoint.
        """
        if not self._started:
            self._started = True
            await self._compare_commits(lookups, start, commits)
        self.unchecked &= start.keys()
        if self.unchecked:
            earliest = await lookups.list_available_offsets(dict.fromkeys(self.unchecked, EARLIEST))
            self._apply(lookups, start, earliest)

    async def wait_for(self, lookups: BrokerLookups, start: Offsets, end: Offsets) -> None:
        """Check the partitions that a batch between these offsets reads; wait for those that are not available."""
        wanted = [tp for tp in self.unchecked if end.get(tp) != start.get(tp)]
        if wanted:
            self._apply(lookups, start, await lookups.list_offsets(dict.fromkeys(wanted, EARLIEST)))

    def may_be_committed(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """Return the offsets of topics that are checked: by a commit, the next run would take an unchecked one for known."""
        topics = {tp.topic for tp in self.unchecked}
        return {tp: offset for tp, offset in offsets.items() if tp.topic not in topics}

    async def _compare_commits(
        self, lookups: BrokerLookups, start: Offsets, commits: GroupCommitter | None
    ) -> None:
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
        known = checkpoint_topics(start, await lookups.assigned(start.keys()), found)
        self._topics.add_ids(known.ids)
        if not self._settings.trusts_checkpoint:
            self.unchecked = frozenset(known.without_commit)

    def _apply(self, lookups: BrokerLookups, start: Offsets, earliest: Offsets) -> None:
        """Record the recreated ones of the partitions whose log start is `earliest`."""
        lost = {tp: start[tp] for tp, first in earliest.items() if start[tp] > first}
        self.unchecked -= earliest.keys()
        self.unchecked &= lookups.topic_ids.keys()  # the planner reports topics that are deleted
        if lost:
            loss = DataLossError(
                "ASYNCGROUP_GROUP_LACKS_OFFSETS", groupId=self._settings.group_id, offsets=lost
            )
            report_data_loss(loss, fail=self._settings.fail_on_data_loss)
            self._topics.add_ids(dict.fromkeys(lost, UNKNOWN_TOPIC))

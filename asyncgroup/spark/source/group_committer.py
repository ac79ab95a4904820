"""The offsets of a query in its group: committed after each batch and, while nothing comes, from time to time again.

Spark calls `commit` one batch late, and never for the last batch; but `latestOffset` gets the end of the last finished
batch each time. So that is what is committed, beside the question for the log's ends, where it costs no time.

A query is no member of its group: brokers take such commits while the group has none, and refuse them with
UNKNOWN_MEMBER_ID when it has one (`GroupMetadataManager.validateOffsetCommit`). The group is the query's own, then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from asyncgroup.errors import AsyncGroupError, BrokerError, CommitFailedError, ErrorCode
from asyncgroup.lifecycle import cancel_and_wait
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.broker_lookups import BrokerLookups
from asyncgroup.spark.source.group_members import Members, group_members
from asyncgroup.spark.source.recreated_topics import Commits, same_topic_offsets
from asyncgroup.spark.source.settings import ReadSettings, TopicIds

__all__ = ["GroupCommitter"]

_log = logging.getLogger("asyncgroup.spark")

Offsets: TypeAlias = Mapping[TopicPartition, int]

COMMIT_WAIT: Final = 1.0
"""Seconds that a trigger waits for its commit at most; it goes on while the driver does something else."""

INITIAL_WAIT: Final = 10.0
"""Seconds that the first trigger waits to hear whether the group is free, if `commitFailure=warn`: a coordinator that is
not there must not keep records back that can be had.
"""

FAILURE_TIMEOUT: Final = 60.0
"""Seconds of failures after which `commitFailure=fail` ends the query: Java's `default.api.timeout.ms`."""

RETRY_PAUSE: Final = 1.0
"""The pause after a commit that failed with all its tries."""

WARNING_INTERVAL: Final = 60.0
"""How often a failure that goes on is logged again."""


class GroupCommitter:
    """Commits for `settings.group_id` what a query has finished; `lookups` stays open as long as this is used."""

    def __init__(self, lookups: BrokerLookups, settings: ReadSettings) -> None:
        assert settings.group_id is not None
        self._lookups, self._settings, self.group_id = lookups, settings, settings.group_id
        self._cluster = lookups.cluster
        self._committer = Committer(
            self._cluster,
            self.group_id,
            retry_max=settings.config.commit_retry_max,
            with_topic_ids=True,  # the query's next run tells by them whether a topic was recreated
        )
        self._initial_commits: Commits | None = None
        self._last_marked: Offsets = {}
        self._started = False
        self._committed_at = self._not_before = float("-inf")
        self._failing_since: float | None = None
        self._warned_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    # --- the life of a query ------------------------------------------------------------------------------------

    async def initial_commits(self, offsets: Offsets) -> Commits | None:
        """What the group had committed for these partitions when the query began; None if that is not known (yet).

        Raises as `commit_finished`.
        """
        if not self._started:
            await self._ensure_started(offsets)
        return self._initial_commits

    async def commit_finished(self, offsets: Offsets, ids: TopicIds) -> None:
        """Everything before `offsets` is done. Commits what is new, or all of it if the last time is long ago.

        `ids` says of which topics the offsets are, as far as that is known.

        Returns when that is committed or has failed, after `COMMIT_WAIT` in any case. Raises a coded error if the group has
        members, who would be at odds with the query, when it begins; and for a failure if `commitFailure=fail`: at once
        for a final one, after `FAILURE_TIMEOUT` seconds of those that may heal.
        """
        if not self._started and not await self._ensure_started(offsets):
            return
        now = asyncio.get_running_loop().time()
        again = now - self._committed_at >= self._settings.commit_interval
        if again or offsets != self._last_marked:
            self._mark(offsets, ids, again=again)
            self._last_marked = dict(offsets)
        self._raise_task_error()
        patience = 0.0  # for one that goes on since an earlier call
        if self._committer.dirty and self._task is None and now >= self._not_before:
            self._task = asyncio.create_task(self._commit(), name=f"commit of group {self.group_id!r}")
            patience = COMMIT_WAIT
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience)
            self._raise_task_error()

    def _raise_task_error(self) -> None:
        """See how the last commit ended, if it has; raises what it raised."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def aclose(self) -> None:
        """Wait a moment for what is under way, then give it up."""
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=COMMIT_WAIT)
            await cancel_and_wait(task)
        await self._committer.aclose()

    # --- steps --------------------------------------------------------------------------------------------------

    async def _ensure_started(self, offsets: Offsets) -> bool:
        """Whether it is known by now how things stand with the group; raises what `_start` raises."""
        strict, first = self._settings.commit_failure == "fail", self._task is None
        if self._task is None:
            self._task = asyncio.create_task(self._start(offsets), name=f"look at group {self.group_id!r}")
        patience = None if strict else INITIAL_WAIT if first else COMMIT_WAIT
        await asyncio.wait([self._task], timeout=patience)
        self._raise_task_error()
        return self._started

    async def _start(self, offsets: Offsets) -> None:
        """See what the group has: going back from there is said, since the group's own lag would jump.

        A query without a right to use the group, or without its coordinator, fails only if its commits are asked to.
        """
        members: Members = []
        committed: Offsets = {}
        try:
            members = await self._find_members()
            if not members:
                self._initial_commits = await self._lookups.committed_with_topic_ids(offsets)
                committed = same_topic_offsets(self._initial_commits, self._lookups.topic_ids)
        except AsyncGroupError as error:
            if self._settings.commit_failure == "fail":
                raise errors.commit_failed(self.group_id, error) from error
            _log.warning("what group %r has committed is not known: %s", self.group_id, error)
        if members:
            raise errors.group_in_use(self.group_id, members)
        back = [tp for tp, offset in sorted(offsets.items()) if offset < committed.get(tp, offset)]
        if back:
            places = ", ".join(f"{tp} from {committed[tp]} to {offsets[tp]}" for tp in back)
            _log.warning(
                "group %r has committed more than this query has read; its offsets go back: %s",
                self.group_id,
                places,
            )
        self._started = True

    async def _find_members(self) -> Members:
        async def ask() -> Members:
            return await group_members(self._cluster, self.group_id)

        return await self._lookups.retries.retry_until_timeout(
            f"Finding the members of group {self.group_id!r}", ask
        )

    def _mark(self, offsets: Offsets, ids: TopicIds, *, again: bool) -> None:
        for tp in self._committer.partitions:
            if tp not in offsets:
                self._committer.drop(tp)
        for tp, offset in offsets.items():
            topic = self._cluster.view.topics.get(tp.topic)
            if topic is None:
                continue  # the topic is gone, and with it what groups have committed for it
            if ids.get(tp, topic.topic_id) != topic.topic_id:
                continue  # it is an offset of the topic that is gone, and means nothing in its namesake
            if tp in self._committer and self._committer.of(*tp).topic_id != topic.topic_id:
                self._committer.drop(tp)
            marks = self._committer.of(*tp) if tp in self._committer else self._committer.manage(tp, -1)
            if offset > marks.next_offset:
                marks.mark(offset)
            elif offset < marks.next_offset or again:
                marks.reset(offset)

    async def _commit(self) -> None:
        time = asyncio.get_running_loop().time
        try:
            await self._committer.commit()
        except CommitFailedError as error:
            self._not_before = time() + RETRY_PAUSE
            await self._failed(error)
        else:
            self._committed_at, self._failing_since = time(), None

    async def _failed(self, error: CommitFailedError) -> None:
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        in_use = any(
            isinstance(e, BrokerError) and e.code == ErrorCode.UNKNOWN_MEMBER_ID
            for e in error.errors.values()
        )
        final = in_use or not all(e.retriable for e in error.errors.values())
        if self._settings.commit_failure == "fail" and (
            final or now - self._failing_since >= FAILURE_TIMEOUT
        ):
            if in_use:
                raise errors.group_in_use(self.group_id, await self._members()) from error
            raise errors.commit_failed(self.group_id, error) from error
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            told = (
                f"the group is in use by {'; '.join(await self._members()) or 'others'}" if in_use else error
            )
            _log.warning("group %r: offsets were not committed, the query goes on: %s", self.group_id, told)

    async def _members(self) -> Members:
        try:
            return await group_members(self._cluster, self.group_id)
        except AsyncGroupError:
            return []

"""`GroupCommitter`: commit a streaming query's offsets to its group, after each batch and periodically while idle.

Spark calls `commit` one batch late, and never for the last batch; but it passes the end of the last finished batch to each
call of `latestOffset`. That offset is committed, concurrently with the lookup of the latest offsets, so it takes no extra
time.

A query is not a member of its group: brokers accept its commits while the group has no members, and otherwise refuse them
with UNKNOWN_MEMBER_ID (`ClassicGroup.validateOffsetCommit`). So the group must be used by this query only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.errors import AsyncGroupError, BrokerError, CommitFailedError, ErrorCode
from asyncgroup.group.classic.group_members import describe_members
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import GROUP_LANE, Committer
from asyncgroup.spark.source.driver.broker_lookups import BrokerLookups
from asyncgroup.spark.source.driver.recreated_topics import Commits, same_topic_offsets
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.settings import ReadSettings, TopicIds

__all__ = ["GroupCommitter", "Members", "group_members"]

_log = logging.getLogger("asyncgroup.spark")

Offsets: TypeAlias = Mapping[TopicPartition, int]

Members: TypeAlias = list[str]
"""One text per member, with member id, client id and host."""

COMMIT_WAIT: Final = 1.0
"""Maximum seconds that a trigger waits for its commit; the commit then continues during later calls."""

INITIAL_WAIT: Final = 10.0
"""Maximum seconds that the first trigger waits for the group's members and offsets with `commitFailure=warn`: a missing
coordinator must not delay the reading of records.
"""

RETRY_PAUSE: Final = 1.0
"""Seconds until the next attempt after a commit that failed with all its retries."""

WARNING_INTERVAL: Final = 60.0
"""Seconds between warnings about repeated failures."""


class GroupCommitter:
    """Commits a query's offsets for `settings.group_id`; `lookups` must stay open while this is used."""

    def __init__(self, lookups: BrokerLookups, settings: ReadSettings) -> None:
        assert settings.group_id is not None
        self._lookups = lookups
        self._settings = settings
        self.group_id = settings.group_id
        self._cluster = lookups.cluster
        self._committer = Committer(
            self._cluster,
            self.group_id,
            retry_max=settings.config.commit_retry_max,
            with_topic_ids=True,  # by these the query's next run detects recreated topics
        )
        self._initial_commits: Commits | None = None
        self._last_marked: Offsets = {}
        self._started = False  # after `_start` has succeeded
        self._committed_at = float("-inf")
        self._not_before = float("-inf")  # the loop's time before which no commit is attempted
        self._failing_since: float | None = None
        self._warned_at = float("-inf")
        self._task: asyncio.Task[None] | None = None  # the running `_start` or `_commit`

    # --- calls of the query -------------------------------------------------------------------------------------

    async def initial_commits(self, offsets: Offsets) -> Commits | None:
        """Return the group's offsets of these partitions from when the query started; None if not known (yet).

        Raises what `commit_finished` raises.
        """
        if not self._started:
            await self._ensure_started(offsets)
        return self._initial_commits

    async def commit_finished(self, offsets: Offsets, ids: TopicIds) -> None:
        """Commit `offsets`, up to which the query has finished: changed ones, or all after `commitInterval`.

        `ids` are the topic ids of the offsets, as far as known.

        Returns when the commit has succeeded or failed, at the latest after `COMMIT_WAIT` seconds. Raises a SourceError if
        the group has members when the query starts. With `commitFailure=fail` it also raises for a failed commit: at once
        if the error is not retriable, otherwise after `api_timeout` seconds of failures.
        """
        if not self._started and not await self._ensure_started(offsets):
            return
        now = asyncio.get_running_loop().time()
        again = now - self._committed_at >= self._settings.commit_interval
        if again or offsets != self._last_marked:
            self._mark(offsets, ids, again=again)
            self._last_marked = dict(offsets)
        self._raise_task_error()
        wait = 0.0  # do not wait for a commit that was started by an earlier call
        if self._committer.dirty and self._task is None and now >= self._not_before:
            self._task = start_task(self._commit(), name=f"commit of group {self.group_id!r}")
            wait = COMMIT_WAIT
        if self._task is not None:
            await asyncio.wait([self._task], timeout=wait)
            self._raise_task_error()

    def _raise_task_error(self) -> None:
        """Clear `_task` if it has finished; raise what it has raised."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def aclose(self) -> None:
        """Wait up to `COMMIT_WAIT` seconds for a running commit, then cancel it."""
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=COMMIT_WAIT)
            await cancel_and_wait(task)
        await self._committer.aclose()

    # --- steps --------------------------------------------------------------------------------------------------

    async def _ensure_started(self, offsets: Offsets) -> bool:
        """Run `_start`; return whether it has finished within the time to wait. Raises what it raises."""
        strict, first = self._settings.commit_failure == "fail", self._task is None
        if self._task is None:
            self._task = start_task(self._start(offsets), name=f"look at group {self.group_id!r}")
        wait = None if strict else INITIAL_WAIT if first else COMMIT_WAIT
        await asyncio.wait([self._task], timeout=wait)
        self._raise_task_error()
        return self._started

    async def _start(self, offsets: Offsets) -> None:
        """Get the group's members and offsets; log a warning if the query's offsets are lower, as the group's lag jumps.

        If the query is not authorized for the group, or the coordinator cannot be reached, this fails only with
        `commitFailure=fail`.
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
                raise SourceError("ASYNCGROUP_COMMIT_FAILED", groupId=self.group_id, reason=error) from error
            _log.warning("the committed offsets of group %r are not known: %s", self.group_id, error)
        if members:
            raise self._in_use(members)
        back = [tp for tp, offset in sorted(offsets.items()) if offset < committed.get(tp, offset)]
        if back:
            changes = ", ".join(f"{tp} from {committed[tp]} to {offsets[tp]}" for tp in back)
            _log.warning(
                "the committed offsets of group %r are ahead of this query and are reset: %s",
                self.group_id,
                changes,
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
                continue  # the topic was deleted, and with it the groups' offsets
            if ids.get(tp, topic.topic_id) != topic.topic_id:
                continue  # an offset of a deleted topic is meaningless for the recreated one
            if tp in self._committer and self._committer.of(*tp).topic_id != topic.topic_id:
                self._committer.drop(tp)
            marks = self._committer.of(*tp) if tp in self._committer else self._committer.manage(tp, -1)
            if offset > marks.next_offset:
                marks.mark_offset(offset)
            elif offset < marks.next_offset or again:
                marks.reset_offset(offset)

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
            final or now - self._failing_since >= self._settings.api_timeout
        ):
            if in_use:
                raise self._in_use(await self._members()) from error
            raise SourceError("ASYNCGROUP_COMMIT_FAILED", groupId=self.group_id, reason=error) from error
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            reason = (
                f"the group is in use by {'; '.join(await self._members()) or 'other members'}"
                if in_use
                else error
            )
            _log.warning(
                "group %r: offsets were not committed, the query continues: %s", self.group_id, reason
            )

    def _in_use(self, members: Members) -> SourceError:
        """Return the error for a group with members: the broker refuses commits of a query (UNKNOWN_MEMBER_ID)."""
        return SourceError("ASYNCGROUP_GROUP_IN_USE", groupId=self.group_id, members=members)

    async def _members(self) -> Members:
        try:
            return await group_members(self._cluster, self.group_id)
        except AsyncGroupError:
            return []


async def group_members(cluster: ClusterClient, group_id: str) -> Members:
    """Return the members of a group; none if it does not exist. Raises as `describe_members`."""
    return [str(member) for member in await describe_members(cluster, group_id, lane=GROUP_LANE)]

"""RetryTopicCleanup: deletes the copies in a group's retry topic that all readers have done, up to the committed offsets.

Nothing else removes them: a retention time might delete copies that still wait, whose originals are acknowledged. Without it the topic
grows without end, and all its copies would be delivered again after the group's offsets have expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.records import delete_records
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import TopicPartition

__all__ = ["INTERVAL", "RetryTopicCleanup"]

_log = logging.getLogger("asyncgroup.workqueue")

INTERVAL: Final = 30.0
"""Seconds between a commit and the deletion of the records that it covers; at most one round of requests in this time."""


class RetryTopicCleanup:
    """Deletes what is done in the partitions of the retry topic that this member has.

    `committed()` returns the committed offsets of all partitions of the member. After an error that a retry does not change,
    as without the permission to delete, and after `stop`, when the topic has copies of other groups, nothing more is deleted.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group_id: str,
        topic: str,
        committed: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._topic = topic
        self._committed = committed
        self._deleted: dict[TopicPartition, int] = {}
        """The offset that each partition was deleted up to."""
        self._is_wanted = asyncio.Event()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<RetryTopicCleanup of {self._topic!r}>"

    def note_commit(self) -> None:
        """Offsets were committed."""
        self._is_wanted.set()

    def stop(self) -> bool:
        """Delete nothing more; return whether it would have."""
        before, self._is_over = self._is_over, True
        return not before

    async def run(self) -> None:
        """Delete records until cancelled, or until the brokers refuse it."""
        try:
            while True:
                await self._is_wanted.wait()
                await asyncio.sleep(INTERVAL)
                self._is_wanted.clear()
                if self._is_over or not await self._delete():
                    return
        except Exception:  # noqa: BLE001  a bug: the queue goes on without it
            _log.exception("%r: bug", self)

    async def _delete(self) -> bool:
        """Delete what is done now; return whether to go on."""
        committed = {tp: offset for tp, offset in self._committed().items() if tp.topic == self._topic}
        for tp, offset in committed.items():
            if offset < self._deleted.get(tp, 0):  # the topic was recreated, or its log truncated
                del self._deleted[tp]
        due = {tp: offset for tp, offset in committed.items() if offset > self._deleted.get(tp, 0)}
        try:
            errors = (await delete_records(self._cluster, due)).errors
        except ClosedError:
            return False
        self._deleted |= {tp: offset for tp, offset in due.items() if tp not in errors}
        for tp, error in errors.items():
            if not error.retriable and not _may_pass(error):
                _log.warning(
                    "group %s: records of retry topic %r that are done are not deleted: %s",
                    self._group_id,
                    self._topic,
                    describe_error(error),
                )
                return False
            _log.debug("group %s: records of %s are deleted later: %s", self._group_id, tp, error)
            self._is_wanted.set()
        return True


def _may_pass(error: AsyncGroupError) -> bool:
    """Whether a later request may succeed: the log was truncated, its topic recreated, or the broker failed for once."""
    passing = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_SERVER_ERROR)
    return isinstance(error, BrokerError) and error.code in passing

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
from asyncgroup.errors import AsyncGroupError, BrokerError, ClosedError, ErrorCode
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

__all__ = ["INTERVAL", "RetryTopicCleanup", "delete_records"]

_log = logging.getLogger("asyncgroup.workqueue")

INTERVAL: Final = 30.0
"""Seconds between a commit and the deletion of the records that it covers; at most one round of requests in this time."""

TIMEOUT_MS: Final = 30_000
"""Milliseconds that a leader may wait until the followers have also deleted the records."""


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
        errors = await delete_records(self._cluster, due)
        self._deleted |= {tp: offset for tp, offset in due.items() if tp not in errors}
        for tp, error in errors.items():
            if isinstance(error, ClosedError):
                return False
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


async def delete_records(
    cluster: ClusterClient, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, AsyncGroupError]:
    """Delete the records before these offsets (KIP-107), with one request to each leader; return the errors."""
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, offset in offsets.items():
        by_leader.setdefault(cluster.view.leader(tp), {})[tp] = offset
    errors: dict[TopicPartition, AsyncGroupError] = {
        tp: BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"deleting records of {tp}")
        for tp in by_leader.pop(-1, ())
    }
    answers = await asyncio.gather(*(_ask(cluster, node, part) for node, part in by_leader.items()))
    for answer in answers:
        errors |= answer
    return errors


async def _ask(
    cluster: ClusterClient, node_id: int, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, AsyncGroupError]:
    request = m.DeleteRecordsRequest
    topics: dict[str, m.DeleteRecordsRequest.DeleteRecordsTopic] = {}
    for tp, offset in offsets.items():
        topic = topics.setdefault(tp.topic, request.DeleteRecordsTopic(tp.topic, []))
        topic.partitions.append(request.DeleteRecordsPartition(tp.partition, offset))
    timeout = max(cluster.config.request_timeout, TIMEOUT_MS / 1000 + 1)
    try:
        response = await cluster.network.request(
            node_id, request(list(topics.values()), timeout_ms=TIMEOUT_MS), timeout=timeout
        )
    except AsyncGroupError as error:
        return dict.fromkeys(offsets, error)
    codes = {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }
    return {
        tp: BrokerError(code, f"deleting records of {tp} before offset {offset}")
        for tp, offset in offsets.items()
        if (code := codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR))
    }

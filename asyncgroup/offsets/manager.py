"""Marks of many partitions, and the one who commits them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from asyncgroup.cluster import Cluster
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
)
from asyncgroup.model import TopicPartition
from asyncgroup.offsets.commit_plan import ACTIONS, BY_NAME, CommitAction, build_commit
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.offsets.partition_offsets import CommittedOffset, MemberIdentity, PartitionOffsets

__all__ = ["GROUP_LANE", "OffsetManager"]

_log = logging.getLogger("asyncgroup.offsets")

GROUP_LANE: Final = "group"
"""The lane of heartbeats and commits; joins have another, for a parked join must not hold a commit up."""

Offsets = dict[TopicPartition, CommittedOffset]
Failures = dict[TopicPartition, AsyncGroupError]


class OffsetManager:
    """Commits the marks of partitions for a group; works with and without a membership.

    `identity()` says in whose name, at the moment of each request. `on_lost(error)` is told when a broker refuses a
    commit because the membership is gone; nothing is committed from then on.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        *,
        retry_max: int = 3,
        identity: Callable[[], MemberIdentity] = MemberIdentity,
        on_lost: Callable[[BrokerError], None] | None = None,
    ) -> None:
        self._cluster, self.group_id = cluster, group_id
        self._retry_max, self._identity, self._on_lost = retry_max, identity, on_lost
        self._partitions: dict[TopicPartition, PartitionOffsets] = {}
        self._turn = asyncio.Lock()
        self._lost: AsyncGroupError | None = None

    def __repr__(self) -> str:
        dirty = sum(offsets.dirty for offsets in self._partitions.values())
        return f"<OffsetManager {self.group_id!r}: {len(self._partitions)} partitions, {dirty} to commit>"

    async def fetch(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Committed offsets, those without one left out. Raises BrokerError, TransportError."""
        return await fetch_offsets(self._cluster, self.group_id, partitions, lane=GROUP_LANE)

    def manage(self, tp: TopicPartition, next_offset: int, metadata: str = "") -> PartitionOffsets:
        """Take marks for a partition from now on, beginning at `next_offset`. Raises ConfigError if it is managed."""
        if tp in self._partitions:
            raise ConfigError("partition", str(tp), "a partition that is not managed yet")
        offsets = self._partitions[tp] = PartitionOffsets(next_offset, metadata)
        return offsets

    def drop(self, tp: TopicPartition) -> None:
        """Forget a partition and its marks."""
        self._partitions.pop(tp, None)

    def of(self, topic: str, partition: int) -> PartitionOffsets:
        """The marks of a partition; raises ConfigError for one that is not managed (or no longer)."""
        offsets = self._partitions.get(TopicPartition(topic, partition))
        if offsets is None:
            owned = ", ".join(map(str, sorted(self._partitions))) or "none"
            raise ConfigError("partition", f"{topic}-{partition}", f"one of the partitions owned: {owned}")
        return offsets

    async def commit(self) -> None:
        """Commit every mark that is new, one request at a time; newer marks of a waiting call go with it.

        Raises CommitFailedError with the partitions that failed; the others are committed.
        """
        async with self._turn:
            failed = await self._commit()
        if failed:
            raise CommitFailedError(self.group_id, failed)

    def _due(self) -> Offsets:
        return {
            tp: CommittedOffset(offsets.next_offset, offsets.metadata)
            for tp, offsets in self._partitions.items()
            if offsets.dirty
        }

    async def _commit(self) -> Failures:
        backoff = self._cluster.backoff()
        failed: Failures = {}
        due = self._due()
        while due:
            if self._lost is not None:
                return failed | dict.fromkeys(due, self._lost)
            again = await self._send(due, failed)
            if not again or self._lost is not None or backoff.failures >= self._retry_max:
                return failed | again
            await asyncio.sleep(backoff.next())
            # marks may have moved, and partitions may have gone, during the pause
            due = {tp: committed for tp, committed in self._due().items() if tp in again}
        return failed

    async def _send(self, due: Offsets, failed: Failures) -> Failures:
        """One request; returns what may be tried again, and why it did not work this time."""
        request = build_commit(self.group_id, self._identity(), due)
        again: Failures = {}
        try:
            response = await self._cluster.coordinators.request(
                self.group_id, request, lane=GROUP_LANE, highest=BY_NAME
            )
        except AsyncGroupError as error:  # a BrokerError here says that there is no coordinator to send it to
            (again if error.retriable else failed).update(dict.fromkeys(due, error))
        else:
            codes = {
                TopicPartition(topic.name, part.partition_index): part.error_code
                for topic in response.topics
                for part in topic.partitions
            }
            self._sort(due, codes, failed, again)
        errors = {tp: error for tp, error in (failed | again).items() if tp in due}
        self._cluster.hooks.emit("on_commit", self.group_id, due, errors or None)
        return again

    def _sort(
        self, due: Offsets, codes: Mapping[TopicPartition, int], failed: Failures, again: Failures
    ) -> None:
        for tp, committed in due.items():
            code = codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
            action = ACTIONS.get(code, CommitAction.FAIL)
            error = BrokerError(code, f"commit of {tp} at {committed.offset} by group {self.group_id!r}")
            if action is CommitAction.CLEAN:
                if (offsets := self._partitions.get(tp)) is not None:
                    offsets.committed(committed.offset, committed.metadata)
            elif action is CommitAction.FAIL:
                failed[tp] = error
            elif action is CommitAction.LOST:
                failed[tp] = error
                self._lose(error)
            else:
                again[tp] = error
                if action is CommitAction.MOVED:
                    self._cluster.coordinators.forget(self.group_id)

    def _lose(self, error: BrokerError) -> None:
        if self._lost is None:
            self._lost = error
            if self._on_lost is not None:
                self._on_lost(error)

    def give_up(self, error: AsyncGroupError) -> None:
        """The membership is gone: commit nothing more."""
        self._lost = self._lost or error

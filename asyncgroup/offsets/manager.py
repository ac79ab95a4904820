"""OffsetManager: commit and fetch offsets without a group membership, as sarama's `OffsetManager` (`offset_manager.go`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Self

from asyncgroup.checks import check_group_id, check_partitions
from asyncgroup.cluster import Cluster, as_cluster, start_tasks
from asyncgroup.cluster.bootstrap import BootstrapServers
from asyncgroup.config import ConsumerConfig
from asyncgroup.errors import ClosedError, CommitFailedError, ConfigError
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.lifecycle import BackgroundTasks, start_task, wait_shielded
from asyncgroup.log_events import commit_failed_fields, log_fields
from asyncgroup.model import Record, TopicPartition
from asyncgroup.named_arguments import ClientArguments
from asyncgroup.offsets.committer import GROUP_LANE, Committer
from asyncgroup.offsets.fetch_offsets import fetch_offsets
from asyncgroup.offsets.partition_offsets import CommittedOffset, PartitionMarks
from asyncgroup.topic_partition import Partitions

__all__ = ["OffsetManager", "PartitionOffsets"]

_log = logging.getLogger("asyncgroup.offsets")


class OffsetManager(ClientArguments):
    """Reads and commits the offsets of a group without joining it; the group must have no members.

        async with OffsetManager("localhost:9092", "reports") as offsets:
            orders = await offsets.manage("orders", 0)
            begin = max(orders.next_offset, 0)            # -1: nothing is committed yet
            ...
            orders.mark_offset(begin + 100)               # the next offset to read
            await offsets.commit()

    With `auto_commit` (the default) new marks are committed every `auto_commit_interval` seconds, and a last time at close,
    in at most `commit_retry_max` + 1 attempts and `close_timeout` seconds; without it only `commit()` commits. Automatic
    commits that fail are logged and reported to the hook `on_commit`, and retried at the next interval. A mark that was
    refused for good (its topic was deleted, its metadata is too long) is reported once and then skipped until it changes.

    An existing Cluster may be given instead of addresses; it then stays open. Raises ConfigError for a bad group id or
    configuration; entering raises NoBrokersError if no bootstrap address answers. A group with members refuses these
    commits with UNKNOWN_MEMBER_ID.
    """

    _CONFIG = "ConsumerConfig"

    def __init__(
        self,
        bootstrap_servers: BootstrapServers | Cluster,
        group_id: str,
        config: ConsumerConfig | None = None,
        *,
        hooks: Iterable[object] = (),
    ) -> None:
        self.group_id = check_group_id(group_id)
        self.config = ConsumerConfig.of(config)
        self.cluster, self._owns_cluster = as_cluster(bootstrap_servers, self.config, hooks)
        self._client = self.cluster._inner
        self._tasks = BackgroundTasks(f"OffsetManager of group {group_id!r}")
        self._committer = Committer(
            self._client,
            group_id,
            retry_max=self.config.commit_retry_max,
            retention=self.config.offset_retention,
        )
        self._managed: dict[TopicPartition, PartitionOffsets] = {}

    def __repr__(self) -> str:
        state = "open" if self._tasks.is_open else "closed"
        return f"<OffsetManager {state}: {self._committer!r}>"

    # --- life ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await start_tasks(self._tasks, self.cluster if self._owns_cluster else None)
        if self.config.auto_commit:
            self._tasks.spawn(self._auto_commit)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Commit new marks if `auto_commit` is on, and close; safe to call twice.

        A failed commit is logged and reported to the hooks, but not raised: call `commit()` before to get the error.
        """
        await wait_shielded(start_task(self._close()))

    async def _close(self) -> None:
        was_open = self._tasks.is_open
        try:
            # first, so that no automatic commit follows the last one
            await self._tasks.stop()
            if was_open and self.config.auto_commit:
                await self._flush()
        finally:
            await self._committer.aclose()
            for tp in self._committer.partitions:
                self._forget(tp)
            if self._owns_cluster:
                await self.cluster.aclose()

    async def _auto_commit(self) -> None:
        while True:
            await asyncio.sleep(self.config.auto_commit_interval)
            await self._commit_quietly()

    async def _commit_quietly(self, *, last: bool = False) -> None:
        committer = self._committer
        try:
            await (committer.commit_last() if last else committer.commit(retry_rejected=False))
        except CommitFailedError as error:
            _log.warning("%s", error, extra=commit_failed_fields(error))

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(self.config.close_timeout):
                await self._commit_quietly(last=True)
        except TimeoutError:
            fields = log_fields("commit_failed", group=self.group_id, error=TimeoutError())
            _log.warning("group %s: the last commit took too long", self.group_id, extra=fields)

    def _check_open(self) -> None:
        if not self._tasks.is_open:
            raise ClosedError(
                f"the OffsetManager of group {self.group_id!r} is not open: use `async with OffsetManager(…)`"
            )

    # --- partitions ---------------------------------------------------------------------------------------------

    async def manage(self, topic: str, partition: int) -> PartitionOffsets:
        """Start managing a partition's marks, from the group's committed offset on.

        Raises ConfigError for a partition that is managed already, BrokerError for one that does not exist,
        TransportError, ClosedError.
        """
        tp = TopicPartition(topic, partition)
        return (await self.manage_all([tp]))[tp]

    async def manage_all(self, partitions: Partitions) -> Mapping[TopicPartition, PartitionOffsets]:
        """As `manage` for one or several partitions, with one OffsetFetch request; if it raises, none of them is managed."""
        wanted = check_partitions(partitions)  # each once
        self._check_free(wanted)
        topics = sorted({tp.topic for tp in wanted})
        with self._client.tracking(topics, creates=False):
            await self._client.find_partitions(wanted)
            committed = await fetch_offsets(
                self._client, self.group_id, wanted, lane=GROUP_LANE, require_stable=True
            )
            self._check_free(wanted)  # a concurrent call may have been faster
            nothing = CommittedOffset(-1)
            managed = {
                tp: PartitionOffsets(self._committer.manage(tp, *committed.get(tp, nothing))) for tp in wanted
            }
            self._managed |= managed
            # within the block: a refresh in between would drop the topics
            self._client.track((tp.topic for tp in wanted), creates=False)
            return managed

    def _check_free(self, wanted: list[TopicPartition]) -> None:
        self._check_open()
        for tp in wanted:
            if tp in self._committer:
                raise ConfigError("partition", str(tp), "a partition that is not managed yet")

    def of(self, topic: str, partition: int) -> PartitionOffsets:
        """Return the marks of a managed partition; raise ConfigError if it is not managed."""
        self._committer.of(topic, partition)
        return self._managed[TopicPartition(topic, partition)]

    async def release(self, topic: str, partition: int) -> None:
        """Stop managing a partition; with `auto_commit` its mark is committed first.

        Raises ConfigError if the partition is not managed, CommitFailedError if its last mark could not be committed (it
        is released nevertheless), ClosedError.
        """
        self._check_open()
        tp = TopicPartition(topic, partition)
        marks = self._committer.of(topic, partition)
        try:
            if self.config.auto_commit and marks.dirty:
                await self._committer.commit()
        except CommitFailedError as error:
            if tp in error.errors:
                raise CommitFailedError(self.group_id, {tp: error.errors[tp]}) from error
        finally:
            # it may have been released, and managed again, during the commit
            if tp in self._committer and self._committer.of(topic, partition) is marks:
                self._forget(tp)

    def _forget(self, tp: TopicPartition) -> None:
        self._committer.drop(tp)
        self._managed.pop(tp, None)
        self._client.untrack([tp.topic], creates=False)

    # --- offsets ------------------------------------------------------------------------------------------------

    async def fetch(
        self, partitions: Partitions, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets, without managing the partitions; those without an offset are left out.

        With `require_stable` waits at most a minute for open transactions that commit offsets of the group (KIP-447). Needs
        only an open Cluster. Raises BrokerError, TransportError, ClosedError.
        """
        wanted = check_partitions(partitions)
        return await fetch_offsets(
            self._client, self.group_id, wanted, lane=GROUP_LANE, require_stable=require_stable
        )

    async def commit(self) -> None:
        """Commit every new mark now, in at most `commit_retry_max` + 1 attempts.

        Raises CommitFailedError with the partitions that failed, the others are committed; ClosedError. A canceled caller
        does not cancel the request in flight.
        """
        self._check_open()
        await self._committer.commit()


class PartitionOffsets:
    """Marks of one partition, from `OffsetManager.manage`: `mark` moves only forwards, `reset` only backwards."""

    __slots__ = ("_marks",)

    def __init__(self, marks: PartitionMarks) -> None:
        self._marks = marks

    def __repr__(self) -> str:
        state = " rejected" if self._marks.rejected else " dirty" if self._marks.dirty else ""
        return f"<PartitionOffsets {self.next_offset}{state}>"

    @property
    def next_offset(self) -> int:
        """The next offset to read; -1 while nothing is committed or marked."""
        return self._marks.next_offset

    @property
    def metadata(self) -> str:
        """The text committed with `next_offset`."""
        return self._marks.metadata

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the record before `next_offset`; -1 if unknown."""
        return self._marks.leader_epoch

    @property
    def value(self) -> CommittedOffset:
        """The offset, metadata and epoch to commit."""
        return self._marks.value

    def mark_offset(self, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
        """Mark everything before `offset` as processed; ignored unless it is beyond the current mark.

        `leader_epoch` is that of the record before `offset`; without it the commit has no epoch, not that of an older mark.
        Raises ConfigError if the offset or epoch is not valid, or the metadata is not a string or too long.
        """
        self._marks.mark_offset(offset, metadata, leader_epoch)

    def mark_record(self, record: Record, metadata: str = "") -> None:
        """Mark a record and all before it as processed. Raises ConfigError for a value that is not a Record, and for bad metadata."""
        if not isinstance(record, Record):
            raise ConfigError("record", record, "a Record")
        self._marks.mark_record(record, metadata)

    def reset_offset(self, offset: int, metadata: str = "", leader_epoch: int = -1) -> None:
        """Move the mark back to `offset`, so that the next member reads again from there; ignored if it is beyond the mark.

        Raises ConfigError as `mark_offset`.
        """
        self._marks.reset_offset(offset, metadata, leader_epoch)


add_foreign_names(PartitionOffsets, {"mark": "mark_offset(offset)", "reset": "reset_offset(offset)"})

"""`WorkerCluster`: a cluster's connections and caches, kept between tasks by a Python worker of an executor."""

from __future__ import annotations

import asyncio
import pickle
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import is_retriable_error
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import TopicPartition
from asyncgroup.secret import secrets_in_pickles
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.executor.range_fetcher import fetching_config
from asyncgroup.spark.source.executor.range_progress import RangeProgress, Sizes
from asyncgroup.spark.source.executor.range_reader import RangeReader
from asyncgroup.spark.source.options.settings import ReadSettings, TopicIds
from asyncgroup.spark.worker_process import notice_closed_connections
from asyncgroup.wire.messages import NO_UUID

__all__ = ["FetchedAhead", "WorkerCluster"]

MAX_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of all fetched data that is kept for later ranges."""

MAX_AHEAD_AGE: Final = 60.0
"""Seconds for which it is kept: after an unclean leader election, the same offsets may have other records."""

MAX_SIZES: Final = 10_000
"""Maximum number of partitions whose record sizes are remembered."""

MAX_IDLE_TOPICS: Final = 100
"""Maximum number of topics whose metadata is kept after their tasks have ended; a task may have more."""


class _Entry(NamedTuple):
    offset: int
    partition: TopicPartitionState
    at: float


class FetchedAhead:
    """Cache of records fetched after the end of a range, for ranges that begin there; limited in size. Pure state."""

    def __init__(self) -> None:
        self._entries: OrderedDict[TopicPartition, _Entry] = OrderedDict()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<FetchedAhead of {len(self._entries)} partitions: {self._bytes} bytes>"

    def put(self, progress: RangeProgress, now: float) -> None:
        """Keep the buffered records after the end of a finished range."""
        buffer = progress.partition.buffer
        # another range cannot continue what was read in part, or ends in bytes that are not a batch
        if not progress.is_done or not buffer.bytes or buffer.framing_error is not None or buffer.decoded:
            return
        self._drop(progress.tp)
        buffer.queue.copy_batches()  # out of the responses that they came in, so that those can be freed
        self._entries[progress.tp] = _Entry(progress.end, progress.partition, now)
        self._bytes += buffer.bytes
        # the oldest first: its range has not come for longest
        while self._bytes > MAX_AHEAD_BYTES:
            self._drop(next(iter(self._entries)))

    def pop(
        self, tp: TopicPartition, offset: int, now: float, topic_id: UUID = NO_UUID
    ) -> TopicPartitionState | None:
        """Remove a partition; return it if its records begin at `offset` and belong to the same topic.

        Topic ids are compared if both are known: the topic may have been recreated.
        """
        left = self._drop(tp)
        if left is None or left.offset != offset or now - left.at >= MAX_AHEAD_AGE:
            return None
        known = left.partition.fetch_source.topic_id
        return left.partition if known == topic_id or NO_UUID in (known, topic_id) else None

    def _drop(self, tp: TopicPartition) -> _Entry | None:
        left = self._entries.pop(tp, None)
        if left is not None:
            self._bytes -= left.partition.buffer.bytes
        return left


class WorkerCluster:
    """One cluster with one configuration, opened by the first task that needs it."""

    def __init__(self, settings: ReadSettings) -> None:
        self._servers = settings.bootstrap_servers
        self._settings = settings
        self._pickled_settings = _pickled_settings(settings)
        self._config = fetching_config(settings.config, settings.fetch_bytes)
        self._cluster = ClusterClient(self._servers, self._config)
        self._opening = asyncio.Lock()
        self._fetched_ahead = FetchedAhead()
        self._sizes: OrderedDict[TopicPartition, Sizes] = OrderedDict()
        self._topics: OrderedDict[str, None] = OrderedDict()
        self.users = 0
        """Number of tasks that read from it (in Spark one at a time)."""
        self.last_used = float("-inf")
        """The loop's time."""
        self.is_broken = False
        """Whether to close it when its last user has ended."""

    def __repr__(self) -> str:
        return f"<WorkerCluster {self._servers}: {self.users} users, {self._fetched_ahead!r}>"

    def matches(self, settings: ReadSettings) -> bool:
        """Return whether its settings are the same as far as connections and fetches are concerned."""
        given = self._settings
        if (settings.bootstrap_servers, settings.fetch_bytes) != (given.bootstrap_servers, given.fetch_bytes):
            return False
        return settings.config == given.config or (
            self._pickled_settings is not None and self._pickled_settings == _pickled_settings(settings)
        )

    def acquire(self, now: float) -> None:
        """Record that a task uses it, until `release`."""
        self.users += 1
        self.last_used = now

    async def open(self, timeout: float) -> None:
        """Open the cluster if necessary, with retries for `timeout` seconds.

        Raises SourceError if no broker answers, and errors that are not retriable, such as AuthenticationError.
        """
        async with self._opening:
            # no loop has run since the last task: brokers may have closed idle connections
            await notice_closed_connections()
            retry = self._cluster.retry(timeout=timeout, cuts_pause=True)
            while not self._cluster.is_open:
                try:
                    await self._cluster.__aenter__()
                except AsyncGroupError as error:
                    if not is_retriable_error(error):
                        raise
                    if not retry.failed():
                        raise SourceError(
                            "ASYNCGROUP_BROKERS_UNREACHABLE",
                            what="Reading",
                            servers=self._servers,
                            reason=error,
                        ) from error
                    await retry.wait()
                    self._cluster = ClusterClient(self._servers, self._config)
                    # a new client knows none of the topics of earlier tasks
                    for topic in self._topics:
                        self._cluster.track([topic])

    def reader(
        self, settings: ReadSettings, ranges: Iterable[OffsetRange], topic_ids: TopicIds | None = None
    ) -> RangeReader:
        """Return a reader of ranges, which uses records that were fetched before; pass it to `release` at the end.

        `topic_ids` are the topic ids of the partitions, as far as known.
        """
        now, ids = self.last_used, topic_ids or {}
        progresses = []
        for wanted in ranges:
            tp = TopicPartition(wanted.topic, wanted.partition)
            topic_id = ids.get(tp, NO_UUID)
            progress = RangeProgress(
                wanted,
                self._config,
                self._sizes.get(tp),
                topic_id,
                self._fetched_ahead.pop(tp, wanted.start, now, topic_id),
                poll_timeout=settings.poll_timeout,
                fail_on_data_loss=settings.fail_on_data_loss,
            )
            progresses.append(progress)
        self._track({progress.tp.topic for progress in progresses})
        return RangeReader(
            self._cluster,
            self._config,
            progresses,
            include_headers=settings.include_headers,
            servers=self._servers,
        )

    async def release(self, reader: RangeReader | None) -> None:
        """Close a task's reader, if it has one; keep record sizes and records that it has fetched ahead."""
        self.users -= 1
        if reader is not None:
            await self._close_reader(reader)
        if not self.users:
            self._forget_topics()

    async def _close_reader(self, reader: RangeReader) -> None:
        await reader.aclose()
        self.last_used = asyncio.get_running_loop().time()
        for progress in reader.progresses:
            # a first guess for the next range of the partition
            if progress.budget.sizes is not None:
                self._sizes[progress.tp] = progress.budget.sizes
                self._sizes.move_to_end(progress.tp)
            self._fetched_ahead.put(progress, self.last_used)
        while len(self._sizes) > MAX_SIZES:
            self._sizes.popitem(last=False)

    def _track(self, topics: Iterable[str]) -> None:
        """Track topics in the metadata, in addition to those of earlier tasks: workers alternate between them."""
        for topic in topics:
            if topic in self._topics:
                self._topics.move_to_end(topic)
            else:
                self._topics[topic] = None
                self._cluster.track([topic])

    def _forget_topics(self) -> None:
        while len(self._topics) > MAX_IDLE_TOPICS:
            self._cluster.untrack([self._topics.popitem(last=False)[0]])

    async def aclose(self) -> None:
        """Close all connections."""
        await self._cluster.aclose()


def _pickled_settings(settings: ReadSettings) -> bytes | None:
    """Return the settings pickled, to compare those of tasks, each of which unpickles its own copy; None if impossible."""
    try:
        with secrets_in_pickles():  # the result does not leave this process
            return pickle.dumps((settings.bootstrap_servers, settings.config, settings.fetch_bytes))
    except Exception:  # noqa: BLE001  the configuration may hold a function that cannot be pickled
        return None

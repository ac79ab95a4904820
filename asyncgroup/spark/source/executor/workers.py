"""Read ranges in an executor's Python worker; keep the event loop and the clusters for the next tasks.

Spark reuses its Python workers for many tasks, one at a time, and module globals survive in them. The event loop runs only
while a task waits: no thread competes with the decoding for the interpreter, and at the same time the kernel receives the
response of the next fetch.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asyncgroup.lifecycle import start_task
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.executor.range_reader import RangeReader
from asyncgroup.spark.source.executor.worker_cluster import WorkerCluster
from asyncgroup.spark.source.options.settings import ReadSettings, TopicIds
from asyncgroup.spark.worker_process import freeze_heap

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["close", "read_ranges"]

T = TypeVar("T")

MAX_CLUSTERS: Final = 8
"""Maximum number of unused clusters (or configurations) whose connections are kept."""

IDLE_TIMEOUT: Final = 300.0
"""Seconds after which an unused cluster is closed, at the next task of any query: firewalls and load balancers drop idle
connections silently, and a request would never get a response.
"""


def read_ranges(
    settings: ReadSettings, ranges: Sequence[OffsetRange], topic_ids: TopicIds | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield all records of the ranges, with the columns of `frame_schema`; in offset order within each range.

    An executor's `read(partition)` yields the same. With `topic_ids`, nothing is read from a recreated topic in place of
    the deleted one. Connections, metadata and records fetched after the end of a range are kept in this process for later
    calls. Leader changes, lost connections and other retriable errors are retried, for up to `settings.poll_timeout`
    seconds without progress. The generator may be closed early.

    Raises SourceError: `KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE` if the log does not have a range (with
    `settings.fail_on_data_loss`; otherwise a warning is logged), `ASYNCGROUP_NO_PROGRESS`,
    `ASYNCGROUP_BROKERS_UNREACHABLE`. Raises BrokerError, AuthenticationError and CorruptRecordsError if the error is not
    retriable.
    """
    wanted = _merge_adjacent(ranges)
    if not wanted:
        return
    state = _worker_state()
    cluster = state.cluster(settings)
    reader: RangeReader | None = None
    try:
        state.run(cluster.open(settings.poll_timeout))
        reader = cluster.reader(settings, wanted, topic_ids)
        while not reader.is_done:
            state.run(reader.advance())
            yield from reader.read()
        yield from reader.flush()
    except GeneratorExit:
        raise
    except BaseException:
        cluster.is_broken = True  # its state after a failed task is unknown: the next task opens a new one
        raise
    finally:
        state.release(cluster, reader)
        freeze_heap()


def close() -> None:
    """Close all connections that this process keeps for reading, and its loop. Later calls open new ones."""
    global _current
    state, _current = _current, None
    if state is not None and state.pid == os.getpid():
        state.close()


def _merge_adjacent(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges that are not empty; adjacent ones of a partition as one, as a request can name a partition once."""
    merged: list[OffsetRange] = []
    for one in ranges:
        if one.start >= one.end:
            continue
        if merged and merged[-1][:2] == one[:2] and merged[-1].end == one.start:
            merged[-1] = merged[-1]._replace(end=one.end)
        else:
            merged.append(one)
    return merged


class _WorkerState:
    """The loop and the clusters of this process. A lock ensures that one thread runs the loop; only tests have several."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()
        self._clusters: list[WorkerCluster] = []
        self._late_release: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until `work` is done."""
        with self._lock:
            return self._loop.run_until_complete(work)

    def release(self, cluster: WorkerCluster, reader: RangeReader | None) -> None:
        """Release a task's reader, at the end of the task or when its generator is closed; close a broken cluster."""
        if self.pid != os.getpid() or self._loop.is_closed():
            return  # in a forked child, or after `close`: the connections are not ours or closed
        with self._lock:
            if self._loop.is_running():
                # the garbage collector may close a generator at any point, also while the loop runs
                self._late_release = start_task(self._release(cluster, reader))
            else:
                self._loop.run_until_complete(self._release(cluster, reader))

    async def _release(self, cluster: WorkerCluster, reader: RangeReader | None) -> None:
        await cluster.release(reader)
        if cluster.is_broken:
            if cluster in self._clusters:
                self._clusters.remove(cluster)
            if not cluster.users:
                await cluster.aclose()

    def cluster(self, settings: ReadSettings) -> WorkerCluster:
        """Return the cluster of these settings, existing or new; close clusters that are idle for too long or too many.

        Call `release` at the end.
        """
        with self._lock:
            now = self._loop.time()
            unused = [one for one in self._clusters if not one.users]
            for one in unused:
                if one.last_used < now - IDLE_TIMEOUT:
                    self._close(one)
            found = next((one for one in self._clusters if one.matches(settings)), None)
            if found is None:
                found = WorkerCluster(settings)
            else:
                self._clusters.remove(found)
            self._clusters.append(found)  # ordered by last use
            found.acquire(now)
            unused = [one for one in self._clusters if not one.users]
            for one in unused[: max(0, len(self._clusters) - MAX_CLUSTERS)]:
                self._close(one)
            return found

    def _close(self, cluster: WorkerCluster) -> None:
        self._clusters.remove(cluster)
        self.run(cluster.aclose())

    def close(self) -> None:
        """Close all clusters and the loop."""
        with self._lock:
            if self._late_release is not None:
                self.run(asyncio.wait_for(self._late_release, None))
            for cluster in self._clusters:
                self.run(cluster.aclose())
            self._clusters.clear()
            self._loop.close()


_current: _WorkerState | None = None
_inherited: Final[list[_WorkerState]] = []
"""States inherited from a parent process by a fork: kept, since closing them would affect the parent's connections."""

_making = threading.Lock()


def _worker_state() -> _WorkerState:
    global _current
    with _making:
        if _current is not None and _current.pid != os.getpid():
            _inherited.append(_current)
            _current = None
        if _current is None:
            _current = _WorkerState()
            atexit.register(close)
        return _current

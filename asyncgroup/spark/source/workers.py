"""What an executor's Python worker keeps from task to task: one event loop, clusters, and what was fetched too much.

Spark uses its Python workers again for batch after batch and query after query, one task at a time, and a module's
globals live on in them. The loop runs only while a task waits for something: no thread competes with the decoding for
the interpreter, and meanwhile the kernel takes in the answer that was asked for ahead.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asyncgroup.spark.arrow import ArrowBatches
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.range_reader import RangeReader
from asyncgroup.spark.source.settings import ReadSettings, TopicIds
from asyncgroup.spark.source.worker_cluster import WorkerCluster
from asyncgroup.spark.worker_process import freeze_heap

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["close", "read_ranges"]

T = TypeVar("T")

MAX_CLUSTERS: Final = 8
"""Clusters (or settings for them) that a process keeps connections to."""

IDLE_TIMEOUT: Final = 300.0
"""After which an unused cluster is closed, when the next task comes, of whatever query: firewalls and load balancers forget
idle connections without a word to either end, and a request would wait for its answer in vain.
"""


def read_ranges(
    settings: ReadSettings, ranges: Sequence[OffsetRange], topic_ids: TopicIds | None = None
) -> Iterator[pa.RecordBatch]:
    """Every record of the ranges that is in the log, with the columns of `frame_schema`, in each range's order.

    What an executor's `read(partition)` yields. `topic_ids` says of which topics the ranges are: of one that was deleted
    nothing is read, whatever a namesake holds at those offsets. Connections, metadata and what was fetched beyond a range's end are
    kept in this process for later calls. Leader moves, lost connections and other errors that heal are tried again,
    for up to `settings.poll_timeout` seconds without progress. May be closed early.

    Raises SourceError: `KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE` where the log does not hold a range (with
    `settings.fail_on_data_loss`; a warning otherwise), `ASYNCGROUP_NO_PROGRESS`, `ASYNCGROUP_BROKERS_UNREACHABLE`.
    BrokerError, AuthenticationError and CorruptRecordsError where trying again is no use.
    """
    wanted = _merge_adjacent(ranges)
    if not wanted:
        return
    state = _worker_state()
    cluster = state.cluster(settings)
    reader: RangeReader | None = None
    batches = ArrowBatches(include_headers=settings.include_headers)
    try:
        state.run(cluster.open(settings.poll_timeout))
        reader = cluster.reader(settings, wanted, topic_ids)
        while not reader.is_done:
            state.run(reader.advance())
            yield from reader.read(batches)
            if batches.is_worth_flushing:
                yield from reader.flush(batches)
        yield from reader.flush(batches)
    except GeneratorExit:
        raise
    except BaseException:
        cluster.is_broken = True  # begin anew: nobody knows in which state a failed task left it
        raise
    finally:
        state.release(cluster, reader)
        freeze_heap()


def close() -> None:
    """Close every connection that this process keeps for reading, and its loop. Later calls begin anew."""
    global _current
    state, _current = _current, None
    if state is not None and state.pid == os.getpid():
        state.close()


def _merge_adjacent(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """The ranges that are not empty; neighbours of one partition as one, since a request can ask for only one."""
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
    """The loop and the clusters of this process. A lock lets only one thread run the loop: Spark has one, tests more."""

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
        """A task has ended, or was left: its reader goes, and its cluster if that is broken."""
        if self.pid != os.getpid() or self._loop.is_closed():
            return  # left in a child process, or after `close`: nothing here is ours any more
        with self._lock:
            if self._loop.is_running():
                # the garbage collector closes a generator wherever it happens to run
                self._late_release = self._loop.create_task(self._release(cluster, reader))
            else:
                self._loop.run_until_complete(self._release(cluster, reader))

    async def _release(self, cluster: WorkerCluster, reader: RangeReader | None) -> None:
        cluster.users -= 1
        if reader is not None:
            await cluster.release(reader)
        if cluster.is_broken:
            if cluster in self._clusters:
                self._clusters.remove(cluster)
            if not cluster.users:
                await cluster.aclose()

    def cluster(self, settings: ReadSettings) -> WorkerCluster:
        """The cluster of these settings, known or new; those unused for long, or too many, are closed.

        Given back by `release`.
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
            self._clusters.append(found)  # the last is the one used last
            found.mark_used(now)
            found.users += 1
            unused = [one for one in self._clusters if not one.users]
            for one in unused[: max(0, len(self._clusters) - MAX_CLUSTERS)]:
                self._close(one)
            return found

    def _close(self, cluster: WorkerCluster) -> None:
        self._clusters.remove(cluster)
        self.run(cluster.aclose())

    def close(self) -> None:
        """Close all of it."""
        with self._lock:
            if self._late_release is not None:
                self.run(asyncio.wait_for(self._late_release, None))
            for cluster in self._clusters:
                self.run(cluster.aclose())
            self._clusters.clear()
            self._loop.close()


_current: _WorkerState | None = None
_inherited: Final[list[_WorkerState]] = []
"""Of a parent process: left alone, since to close a loop or a connection here would disturb the parent's."""

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

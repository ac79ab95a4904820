"""`spark.readStream.format("asyncgroup")`: Spark's calls, from JSON to offsets and back."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.offsets_json import dump, parse
from asyncgroup.spark.source.settings import ReadSettings, TopicIds
from asyncgroup.spark.tracebacks import batches_without_traceback, without_traceback

if TYPE_CHECKING:
    import pyarrow

    from asyncgroup.spark.source.progress import StreamProgress

__all__ = ["AsyncGroupStreamReader", "TaskRanges"]

NO_LIMIT: Final = 2**63 - 1
"""As many rows as there may be, where `ReadAllAvailable` would say that the trigger is Trigger.Once."""

_SIGTERM_STATUS: Final = 128 + signal.SIGTERM


class TaskRanges(InputPartition):
    """What one task reads; `topic_ids` says of which topics, as far as that is known."""

    def __init__(self, ranges: Sequence[OffsetRange], topic_ids: TopicIds | None = None) -> None:
        super().__init__(tuple(ranges))
        ids, places = topic_ids or {}, {TopicPartition(one.topic, one.partition) for one in self.ranges}
        self.topic_ids = {tp: ids[tp] for tp in places if tp in ids}

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """Ranges of offsets, one after the other."""
        return tuple(self.value or ())


class AsyncGroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's reader: planned in a process of its own beside the driver, read in the executors.

    Spark makes one in its planner, too, and pickles that for the executors. So nothing is opened before it is needed.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._progress: StreamProgress | None = None
        self._terminated = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_progress": None, "_terminated": False}

    def __repr__(self) -> str:
        return f"<AsyncGroupStreamReader {self._settings.strategy}>"

    # --- in the driver's process --------------------------------------------------------------------------------

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts."""
        return dump(self._driver_progress.initial_offsets())

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query reads what there is now, and ends."""
        self._driver_progress.prepare_available_now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of Spark's own limits; those of the options are applied by ourselves, as Python's API knows one only."""
        return ReadMaxRows(self._settings.max_offsets_per_trigger or NO_LIMIT)

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch ends that starts at `start`, which is what the query has finished."""
        offsets = parse(start)
        end = self._driver_progress.next_end(offsets, limited=not isinstance(limit, ReadAllAvailable))
        # Spark compares the JSON: that of its own Kafka source may have another order
        return start if end == offsets else dump(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The logs' ends, for the query's progress."""
        return dump(self._driver_progress.latest) or None

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a batch read."""
        tasks = self._driver_progress.tasks(parse(start), parse(end))
        return [TaskRanges(ranges, self._driver_progress.topic_ids) for ranges in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: what was finished is known from `latestOffset`, earlier than from here.

        Spark says neither that the last batch of Trigger.Once is done; its next run commits that.
        """

    def stop(self) -> None:
        """Close the connections. Ends the process, if that is what Spark has asked for."""
        if self._progress is not None:
            self._progress.stop()
        if self._terminated:
            # pyspark would tell Spark of the exit, who listens no more, and then leave a traceback in the log
            logging.shutdown()
            os._exit(_SIGTERM_STATUS)

    @property
    def _driver_progress(self) -> StreamProgress:
        if self._progress is None:
            from asyncgroup.spark.source.progress import StreamProgress  # executors have no use for it

            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._terminate)
            self._settings.warn()
            self._progress = StreamProgress(self._settings)
        return self._progress

    def _terminate(self, *_: object) -> None:
        """The way of SIGTERM, by which Spark stops a query: out of whatever is done now, and through `stop`."""
        if self._terminated:
            return
        self._terminated = True
        if self._progress is None or not self._progress.interrupt():
            sys.exit(_SIGTERM_STATUS)

    # --- in the executors ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The records of a task."""
        from asyncgroup.spark.source.workers import read_ranges

        assert isinstance(partition, TaskRanges)
        return batches_without_traceback(read_ranges(self._settings, partition.ranges, partition.topic_ids))

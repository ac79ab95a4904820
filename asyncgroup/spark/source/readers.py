"""The readers that Spark calls: of streaming queries, which converts Spark's JSON of offsets, and of batch queries.

Spark calls a reader in a process beside the driver, where it plans batches, and a pickled copy in the executors, where it
reads them. So what only one of them needs is imported on first use.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from asyncgroup.model import TopicPartition
from asyncgroup.spark.option_words import SOURCE_WORDS
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source.options.offsets_json import dump, parse
from asyncgroup.spark.source.options.settings import ReadSettings, TopicIds
from asyncgroup.spark.worker_process import strip_batch_tracebacks, strip_traceback

if TYPE_CHECKING:
    import pyarrow

    from asyncgroup.spark.source.driver.progress import StreamProgress

__all__ = ["AsyncGroupReader", "AsyncGroupStreamReader", "TaskRanges"]

NO_LIMIT: Final = 2**63 - 1
"""The row limit that stands for no limit, as `ReadAllAvailable` identifies Trigger.Once."""

_SIGTERM_STATUS: Final = 128 + signal.SIGTERM


class TaskRanges(InputPartition):
    """The ranges that one task reads, with the known topic ids of their partitions."""

    def __init__(self, ranges: Sequence[OffsetRange], topic_ids: TopicIds | None = None) -> None:
        super().__init__(tuple(ranges))
        ids = topic_ids or {}
        partitions = {TopicPartition(part.topic, part.partition) for part in self.ranges}
        self.topic_ids = {tp: ids[tp] for tp in partitions if tp in ids}

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges, in the order in which they are read."""
        return tuple(self.value or ())


class AsyncGroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query's reader. It plans batches in a Python process beside the driver, and reads them in executors.

    Spark also creates one in its planner and pickles it for the executors, so connections are opened on first use only.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._progress: StreamProgress | None = None
        self._terminated = False
        self._stopping = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_progress": None, "_terminated": False, "_stopping": False}

    def __repr__(self) -> str:
        return f"<AsyncGroupStreamReader {self._settings.strategy}>"

    # --- in the driver's process --------------------------------------------------------------------------------

    @strip_traceback(SOURCE_WORDS)
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts."""
        return dump(self._driver_progress.initial_offsets())

    @strip_traceback(SOURCE_WORDS)
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the present ends of the logs, up to which a query with Trigger.AvailableNow reads."""
        self._driver_progress.prepare_available_now()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit, as Python's API allows one only; `TriggerLimits` applies all limits of the options."""
        return ReadMaxRows(self._settings.max_offsets_per_trigger or NO_LIMIT)

    @strip_traceback(SOURCE_WORDS)
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the batch that starts at `start`, up to which the query has finished."""
        offsets = parse(start)
        end = self._driver_progress.next_end(offsets, limited=not isinstance(limit, ReadAllAvailable))
        # Spark compares the JSON texts: that of a checkpoint written by its Kafka source may have another order
        return start if end == offsets else dump(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs, for the query's progress."""
        return dump(self._driver_progress.latest) or None

    @strip_traceback(SOURCE_WORDS)
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a batch's tasks."""
        tasks = self._driver_progress.tasks(parse(start), parse(end))
        return [TaskRanges(ranges, self._driver_progress.topic_ids) for ranges in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` gets the finished offsets earlier.

        Neither of them is called after the only batch of Trigger.Once; the query's next run commits its offsets.
        """

    def stop(self) -> None:
        """Close the connections. Exit the process if Spark has sent SIGTERM."""
        self._stopping = True
        if self._progress is not None:
            self._progress.stop()
        if self._terminated:
            # a normal exit would make pyspark report to Spark, which does not listen any more, and log a traceback
            logging.shutdown()
            os._exit(_SIGTERM_STATUS)

    @property
    def _driver_progress(self) -> StreamProgress:
        if self._progress is None:
            from asyncgroup.spark.source.driver.progress import StreamProgress  # not needed on executors

            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, self._terminate)
            self._settings.warn()
            self._progress = StreamProgress(self._settings)
        return self._progress

    def _terminate(self, *_: object) -> None:
        """Handle SIGTERM, by which Spark stops a query: interrupt the running call; then `stop` is called.

        While `stop` runs it goes on: Spark also closes the socket, so `stop` may have begun, and an exception raised
        in its event loop could leave a task that it waits for.
        """
        if self._terminated:
            return
        self._terminated = True
        if self._stopping:
            return
        if self._progress is None or not self._progress.interrupt():
            sys.exit(_SIGTERM_STATUS)

    # --- in the executors ---------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of a task."""
        from asyncgroup.spark.source.executor.workers import read_ranges

        assert isinstance(partition, TaskRanges)
        return strip_batch_tracebacks(
            read_ranges(self._settings, partition.ranges, partition.topic_ids), SOURCE_WORDS
        )


class AsyncGroupReader(DataSourceReader):
    """A batch query's reader. The brokers are asked for offsets once, in `partitions`, when the query is planned."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings

    def __repr__(self) -> str:
        return f"<AsyncGroupReader {self._settings.strategy}>"

    @strip_traceback(SOURCE_WORDS)
    def partitions(self) -> list[InputPartition]:
        """Return the ranges of each task."""
        from asyncgroup.spark.source.driver.broker_client import BrokerClient
        from asyncgroup.spark.source.driver.initial_offsets import find_batch_ranges
        from asyncgroup.spark.source.driver.planner import split_into_tasks

        self._settings.warn()
        with BrokerClient(self._settings) as client:
            ranges, topic_ids = client.call(lambda lookups: find_batch_ranges(self._settings, lookups))
        return [TaskRanges(part, topic_ids) for part in split_into_tasks(ranges, self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of a task."""
        from asyncgroup.spark.source.executor.workers import read_ranges

        if not isinstance(partition, TaskRanges):
            return iter(())  # if there are no partitions, Spark passes one without a value
        return strip_batch_tracebacks(
            read_ranges(self._settings, partition.ranges, partition.topic_ids), SOURCE_WORDS
        )

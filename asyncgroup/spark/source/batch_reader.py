"""The reader of batch queries, `spark.read.format("asyncgroup")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from asyncgroup.model import TopicPartition
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.broker_client import BrokerClient
from asyncgroup.spark.source.broker_lookups import BrokerLookups
from asyncgroup.spark.source.initial_offsets import resolve_offsets
from asyncgroup.spark.source.planner import split_into_tasks
from asyncgroup.spark.source.settings import ReadSettings, TopicIds
from asyncgroup.spark.source.stream_reader import TaskRanges
from asyncgroup.spark.tracebacks import strip_batch_tracebacks, strip_traceback

if TYPE_CHECKING:
    import pyarrow

__all__ = ["AsyncGroupReader"]


class AsyncGroupReader(DataSourceReader):
    """A batch query's reader. The brokers are asked for offsets once, in `partitions`, when the query is planned."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings

    def __repr__(self) -> str:
        return f"<AsyncGroupReader {self._settings.strategy}>"

    @strip_traceback
    def partitions(self) -> list[InputPartition]:
        """Return the ranges of each task."""
        self._settings.warn()
        with BrokerClient(self._settings) as client:
            ranges, topic_ids = client.call(self._find_ranges)
        return [TaskRanges(part, topic_ids) for part in split_into_tasks(ranges, self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records of a task."""
        from asyncgroup.spark.source.workers import read_ranges

        if not isinstance(partition, TaskRanges):
            return iter(())  # if there are no partitions, Spark passes one without a value
        return strip_batch_tracebacks(read_ranges(self._settings, partition.ranges, partition.topic_ids))

    async def _find_ranges(self, lookups: BrokerLookups) -> tuple[list[OffsetRange], TopicIds]:
        settings = self._settings
        start = await resolve_offsets(
            settings.starting, lookups, position="start", group_id=settings.group_id
        )
        # if a topic is recreated from here on, start and end belong to different logs, and tasks refuse to read the range
        topic_ids = lookups.topic_ids
        end = await resolve_offsets(settings.ending, lookups, position="end", group_id=settings.group_id)
        return ranges_between(start, end), topic_ids


def ranges_between(start: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> list[OffsetRange]:
    """Return the range of each partition; raise SourceError if one ends before it starts, or lacks a start or end."""
    if start.keys() != end.keys():
        raise errors.mismatched_start_and_end(start, end)
    for tp, first in sorted(start.items()):
        if first > end[tp]:
            raise errors.resolved_start_greater_than_end(tp, first, end[tp])
    return [OffsetRange(tp.topic, tp.partition, start[tp], end[tp]) for tp in sorted(start)]

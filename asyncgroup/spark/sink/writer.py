"""The writers of format "asyncgroup", which Spark calls on the driver and on executors.

The data source's `writer` and `streamWriter` call `make_writer(options, schema, stream=…, overwrite=…)`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, overload

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from asyncgroup.errors import ConfigError
from asyncgroup.producer import Producer
from asyncgroup.spark.sink.columns import check_columns, outgoing_rows
from asyncgroup.spark.sink.delivery import AtLeastOnce, DeliveryGuarantee, TaskReceipt
from asyncgroup.spark.sink.producer_cache import OpenProducer, WrittenRange, producer_cache
from asyncgroup.spark.sink.write_settings import WriteSettings, write_settings
from asyncgroup.spark.tracebacks import strip_traceback
from asyncgroup.spark.worker_process import freeze_heap

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "StreamWriter", "TaskCommitMessage", "make_writer"]


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The result of a task, all of whose records are acknowledged."""

    ranges: tuple[WrittenRange, ...]
    """One for each partition."""
    rows: int
    """The number of rows written."""
    receipt: TaskReceipt = field(default_factory=dict)


@overload
def make_writer(
    options: Mapping[str, str], schema: StructType, *, stream: Literal[True], overwrite: bool = False
) -> StreamWriter: ...
@overload
def make_writer(
    options: Mapping[str, str], schema: StructType, *, stream: Literal[False], overwrite: bool = False
) -> BatchWriter: ...
def make_writer(
    options: Mapping[str, str], schema: StructType, *, stream: bool, overwrite: bool = False
) -> StreamWriter | BatchWriter:
    """Return a writer for rows of this schema; raise ConfigError naming the option, the column or the save mode.

    `overwrite` comes from Spark's save mode or output mode. A topic cannot be overwritten, so it is an error in a batch
    query; in a stream it means the output mode "complete", whose batches are appended, as in Spark's own sink.
    """
    if overwrite and not stream:
        raise ConfigError("save mode", "overwrite", "append: a topic's records cannot be replaced")
    settings = write_settings(options)
    check_columns(schema, settings.topic)
    return StreamWriter(settings, AtLeastOnce()) if stream else BatchWriter(settings, AtLeastOnce())


class _Writer:
    """The common part of both writers. Pickled for the executors, so it holds only settings."""

    def __init__(self, settings: WriteSettings, guarantee: DeliveryGuarantee) -> None:
        self._settings = settings
        self._guarantee = guarantee

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._settings.topic or 'topics by column'}>"

    @strip_traceback
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; return when all are acknowledged. Runs on an executor.

        Raises ConfigError for a row that is not a valid record, DeliveryFailedError for records that were not delivered.
        """
        try:
            return producer_cache.run(self._settings, functools.partial(self._write, iterator))
        finally:
            freeze_heap()

    async def _write(
        self, batches: Iterator[pyarrow.RecordBatch], open_producer: OpenProducer
    ) -> TaskCommitMessage:
        producer, acks = open_producer
        await self._guarantee.begin(producer)
        rows = 0
        loop = asyncio.get_running_loop()
        # a thread receives the next batch from Spark while this one is sent
        upcoming = loop.run_in_executor(None, next, batches, None)
        try:
            while (batch := await upcoming) is not None and not acks.failed:
                upcoming = loop.run_in_executor(None, next, batches, None)
                await _send(producer, batch, self._settings.topic)
                rows += batch.num_rows
        finally:
            await asyncio.gather(upcoming, return_exceptions=True)
        receipt = await self._guarantee.finish(producer)
        return TaskCommitMessage(acks.pop_ranges(), rows, receipt)


async def _send(producer: Producer, batch: pyarrow.RecordBatch, topic: str | None) -> None:
    for row in outgoing_rows(batch, topic):
        await producer.enqueue(
            row.topic, row.value, key=row.key, headers=row.headers, partition=row.partition
        )


def _receipts(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReceipt]:
    return [message.receipt for message in messages if isinstance(message, TaskCommitMessage)]


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of `df.write.format("asyncgroup").mode("append").save()`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit a batch query, on the driver: all tasks have finished."""
        self._guarantee.commit(_receipts(messages), None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort a batch query, on the driver: a task has finally failed."""
        self._guarantee.abort(_receipts(messages), None)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("asyncgroup")`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Commit a batch of a stream, on the driver: all its tasks have finished."""
        self._guarantee.commit(_receipts(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort a batch of a stream, on the driver: one of its tasks has finally failed."""
        self._guarantee.abort(_receipts(messages), batchId)

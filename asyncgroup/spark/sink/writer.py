"""The writers of format "asyncgroup", which Spark calls on the driver and on executors.

The data source's `writer` and `streamWriter` call `make_writer(options, schema, stream=…, overwrite=…)`. Delivery is at
least once, as with Spark's own sink: records are visible as soon as they are written, a task or batch that is retried writes
its records again, and those of an aborted batch remain. With the option `transactional.id.prefix` it is exactly once, by the
writers of `transactions`.

The columns are those of Spark's Kafka sink (`KafkaWriter` and `KafkaWriteTask` of Spark 4.2): `value` (required), `key`:
string or binary; `topic`: string; `partition`: int; `headers`: array<struct<key string, value binary>>. Other columns are
ignored, including `timestamp`: a record's timestamp is the time at which it is written.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from asyncgroup.errors import ConfigError, InvalidRecordError
from asyncgroup.model import Header
from asyncgroup.producer.arguments import RecordFields
from asyncgroup.spark.option_words import SINK_WORDS
from asyncgroup.spark.sink.key_partitions import key_partitions
from asyncgroup.spark.sink.producer_cache import OpenProducer, WrittenRange, producer_cache
from asyncgroup.spark.sink.write_settings import WriteSettings, write_settings
from asyncgroup.spark.worker_process import freeze_heap, strip_traceback

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from asyncgroup.producer import Producer
    from asyncgroup.spark.sink.transactions.writers import TransactionalBatchWriter, TransactionalStreamWriter

__all__ = [
    "BatchWriter",
    "StreamWriter",
    "TaskCommitMessage",
    "check_columns",
    "make_writer",
    "outgoing_rows",
]

STRING: Final = "string"
BINARY: Final = "binary"
HEADERS: Final = "array<struct<key:string,value:binary>>"

TYPES: Final[dict[str, tuple[str, ...]]] = {
    "topic": (STRING,),
    "key": (STRING, BINARY),
    "value": (STRING, BINARY),
    "headers": (HEADERS,),
    "partition": ("int",),
}
"""The types allowed for each column, as named by Spark's `simpleString`."""

TOPIC_HINT: Final = "the option topic sets one for all rows"


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The result of a task, all of whose records are acknowledged."""

    ranges: tuple[WrittenRange, ...]
    """One for each partition."""
    rows: int
    """The number of rows written."""


@overload
def make_writer(
    options: Mapping[str, str], schema: StructType, *, stream: Literal[True], overwrite: bool = False
) -> StreamWriter | TransactionalStreamWriter: ...
@overload
def make_writer(
    options: Mapping[str, str], schema: StructType, *, stream: Literal[False], overwrite: bool = False
) -> BatchWriter | TransactionalBatchWriter: ...
def make_writer(
    options: Mapping[str, str], schema: StructType, *, stream: bool, overwrite: bool = False
) -> StreamWriter | BatchWriter | TransactionalStreamWriter | TransactionalBatchWriter:
    """Return a writer for rows of this schema; raise ConfigError naming the option, the column or the save mode.

    `overwrite` comes from Spark's save mode or output mode. A topic cannot be overwritten, so it is an error in a batch
    query; in a stream it means the output mode "complete", whose batches are appended, as in Spark's own sink.
    """
    if overwrite and not stream:
        raise ConfigError("save mode", "overwrite", "append: a topic's records cannot be replaced")
    settings = write_settings(options)
    settings.warn()
    check_columns(schema, settings.topic)
    if settings.transactional_id_prefix is not None:
        from asyncgroup.spark.sink.transactions import writers  # not needed otherwise

        writer = writers.TransactionalStreamWriter if stream else writers.TransactionalBatchWriter
        return writer(settings, _Writer(settings))
    return StreamWriter(settings) if stream else BatchWriter(settings)


class _Writer:
    """The common part of both writers. Pickled for the executors, so it holds only settings."""

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._settings.topic or 'topics by column'}>"

    @strip_traceback(SINK_WORDS)
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; return when all are acknowledged. Runs on an executor.

        Raises InvalidRecordError for a row that is not a valid record, DeliveryFailedError for records that were not delivered.
        """
        try:
            return producer_cache.run(self._settings, functools.partial(self.write_rows, iterator))
        finally:
            freeze_heap()

    async def write_rows(
        self, batches: Iterator[pyarrow.RecordBatch], open_producer: OpenProducer
    ) -> TaskCommitMessage:
        """Write the rows of a task by an open producer; return when all are acknowledged."""
        producer, acks = open_producer.producer, open_producer.acks
        rows = 0
        loop = asyncio.get_running_loop()
        # a thread receives the next batch from Spark while this one is sent
        upcoming = loop.run_in_executor(None, next, batches, None)
        try:
            while (batch := await upcoming) is not None and not acks.failed:
                upcoming = loop.run_in_executor(None, next, batches, None)
                rows_of_batch = outgoing_rows(batch, self._settings.topic, self._partition_count(producer))
                await producer.enqueue_all(rows_of_batch)
                rows += batch.num_rows
        finally:
            await asyncio.gather(upcoming, return_exceptions=True)
        await producer.flush()
        return TaskCommitMessage(acks.pop_ranges(), rows)

    def _partition_count(self, producer: Producer) -> int | None:
        """Return the topic's number of partitions if keys determine them by the default rule; None if it is not known yet."""
        if self._settings.topic is None or self._settings.config.partitioner != "default":
            return None
        topic = producer.cluster.view.topics.get(self._settings.topic)
        return None if topic is None or topic.error_code else len(topic.partitions) or None


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of `df.write.format("asyncgroup").mode("append").save()`."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("asyncgroup")`."""


# --- rows -------------------------------------------------------------------------------------------------------------


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError naming the first column that is missing or has a type that cannot be written.

    The rules are those of `KafkaWriter.validateQuery`; column names are case-sensitive. `topic` is the option.
    """
    columns = {field.name: field.dataType.simpleString() for field in reversed(schema.fields)}
    if topic is None and "topic" not in columns:
        raise ConfigError(f"no topic to write to: there is no column 'topic', and {TOPIC_HINT}")
    if "value" not in columns:
        raise ConfigError(
            f"there is no column 'value' with the values to write; columns: {schema.fieldNames()}"
        )
    for name, allowed in TYPES.items():
        ignored = name == "topic" and topic is not None
        if name in columns and not ignored and columns[name] not in allowed:
            raise ConfigError(
                f"column {name!r} has the type {columns[name]}; it must be {' or '.join(allowed)}"
            )


def outgoing_rows(
    batch: pyarrow.RecordBatch, topic: str | None, partition_count: int | None = None
) -> Iterator[RecordFields]:
    """Return the rows of an Arrow batch as records; raise InvalidRecordError at a row whose topic, or one of whose headers, is null.

    With `partition_count`, the topic's number of partitions, rows without a partition get that of their key.
    """
    columns: dict[str, Any] = dict(zip(reversed(batch.schema.names), reversed(batch.columns), strict=True))
    values = _binary(columns["value"]).to_pylist()
    key_column = _binary(columns["key"]) if "key" in columns else None
    keys: Any = repeat(None) if key_column is None else key_column.to_pylist()
    headers: Any = map(_headers, columns["headers"].to_pylist()) if "headers" in columns else repeat(())
    partitions: Any = repeat(None)
    if "partition" in columns:
        partitions = columns["partition"].to_pylist()
    elif key_column is not None and partition_count is not None:
        partitions = key_partitions(key_column, partition_count)
    topics: Any = map(_not_null, columns["topic"].to_pylist()) if topic is None else repeat(topic)
    timestamps = repeat(None)  # the time at which it is written
    return zip(
        topics, values, keys, headers, partitions, timestamps, strict=False
    )  # not strict: repeat() is endless


def _not_null(topic: str | None) -> str:
    if topic is None:
        raise InvalidRecordError("topic", None, f"text, but a row's topic is null; {TOPIC_HINT}")
    return topic


def _binary(column: pyarrow.Array) -> pyarrow.Array:
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return column.cast(pa.binary())  # Arrow strings are UTF-8 already: no copy
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _headers(headers: list[dict[str, Any] | None] | None) -> Sequence[Header]:
    if not headers:
        return ()
    if None in headers:
        raise InvalidRecordError(
            "headers", None, "a struct of a key and a value each, but a row has a null header"
        )
    return [(header["key"], header["value"]) for header in headers if header is not None]

"""Records as Spark gets them: the schema of Spark's Kafka source, and Arrow batches of a size that suits Spark.

Small batches cost Spark a call each; batches that are too large do not fit the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from asyncgroup.columns import RecordColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["MAX_ROWS", "ArrowBatches", "frame_schema", "message_schema"]

MAX_ROWS: Final = 10_000
"""Maximum rows of an Arrow batch: Spark's default (`spark.sql.execution.arrow.maxRecordsPerBatch`)."""

TARGET_ROWS: Final = 8_000
"""Rows at which an Arrow batch is complete: another record batch could push it over `MAX_ROWS`."""

FLUSH_ROWS: Final = 4_000
"""Rows that are passed to Spark before waiting for the next fetch response, so that the JVM has work during the wait.

Queries took a tenth longer when rows were always held back for a full batch. Below this number of rows the cost of each
batch to Spark outweighs that.
"""

TARGET_BYTES: Final = 16 * 1024 * 1024
"""Bytes at which an Arrow batch is complete, with any number of rows: bounds memory with large records."""


def frame_schema(*, include_headers: bool = False) -> StructType:
    """Return the schema of Spark's Kafka source (`KafkaRecordToRowConverter`); all columns are nullable."""
    from pyspark.sql import types as t

    fields = [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("timestampType", t.IntegerType()),
    ]
    if include_headers:
        header = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
        fields.append(t.StructField("headers", t.ArrayType(header)))
    return t.StructType(fields)


def message_schema(*, include_headers: bool = False) -> StructType:
    """Return the schema of messages of Pulsar, see `message_arrow_schema`."""
    from pyspark.sql import types as t

    common = [field for field in frame_schema(include_headers=include_headers) if field.name != "offset"]
    own = [
        t.StructField("messageId", t.StringType()),
        t.StructField("eventTime", t.TimestampType()),
        t.StructField("orderingKey", t.BinaryType()),
    ]
    return t.StructType([*common, *own])


class ArrowBatches:
    """Collects columns and turns them into Arrow batches of about `TARGET_ROWS` rows or `TARGET_BYTES` bytes."""

    def __init__(self, *, include_headers: bool = False) -> None:
        self._include_headers = include_headers
        self.columns = RecordColumns(include_headers=include_headers)

    def __repr__(self) -> str:
        return f"<ArrowBatches: {len(self.columns)} rows collected>"

    @property
    def is_full(self) -> bool:
        """Whether the collected rows are enough for a batch."""
        return len(self.columns) >= TARGET_ROWS or self.columns.size >= TARGET_BYTES

    @property
    def is_worth_flushing(self) -> bool:
        """Whether the collected rows should be passed to Spark before waiting for more."""
        return len(self.columns) >= FLUSH_ROWS or self.columns.size >= TARGET_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the collected rows, in several batches if they are more than `MAX_ROWS`."""
        columns, self.columns = self.columns, RecordColumns(include_headers=self._include_headers)
        if not columns:
            return
        made = columns.to_arrow()
        pieces = -(-made.num_rows // MAX_ROWS)
        rows = -(-made.num_rows // pieces)
        for start in range(0, made.num_rows, rows):
            yield made.slice(start, rows)

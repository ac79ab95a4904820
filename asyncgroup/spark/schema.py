"""The DataFrame schema shared by the source and the bridge: that of Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["frame_schema"]


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

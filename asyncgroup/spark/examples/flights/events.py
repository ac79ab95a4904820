"""JSON to columns, a whole Arrow batch at a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyspark.sql import DataFrame, functions as F, types as t  # noqa: N812  the name that Spark's users know

__all__ = ["EVENT_SCHEMA", "decode", "flights", "heartbeat"]

EVENT_SCHEMA: Final = t.StructType(
    [
        t.StructField("row", t.IntegerType()),
        t.StructField("carrier", t.StringType()),
        t.StructField("tailnum", t.StringType()),
        t.StructField("origin", t.StringType()),
        t.StructField("dep_delay", t.IntegerType()),
        t.StructField("scheduled", t.TimestampType()),
    ]
)
"""Columns of a flight. `dep_delay` is minutes, null for a cancelled flight; `scheduled` is the event time: when the
flight should have left. A heartbeat has nothing but `scheduled`; what cannot be read has nothing at all."""

JSON_SCHEMA: Final = pa.schema(
    {
        "row": pa.int32(),
        "carrier": pa.string(),
        "tailnum": pa.string(),
        "origin": pa.string(),
        "dep_delay": pa.int32(),
        "time_hour": pa.timestamp("us", tz="UTC"),
        "minute": pa.int32(),
    }
)
"""What is taken of the JSON objects; they may hold more."""


def flights(records: DataFrame) -> DataFrame:
    """The flights in the column `value` of a topic's records. Needs no order, streams and batches alike."""
    # the function is sent by name: executors import it from their own asyncgroup
    decoded = F.arrow_udf(_decode_values, EVENT_SCHEMA)  # type: ignore[attr-defined]  # pyspark's annotations lack it
    column = decoded(F.col("value"))
    return records.select(column.alias("flight")).select("flight.*")


def heartbeat(seconds: int) -> bytes:
    """A record's value that is no flight and only says how late it is, in seconds since 1970 (whole minutes count).

    A watermark moves with events alone: without one after the last flight, the last windows never close.
    """
    hour, rest = divmod(seconds, 3600)
    time_hour = datetime.fromtimestamp(3600 * hour, UTC).isoformat()
    return json.dumps({"time_hour": time_hour, "minute": rest // 60}).encode()


def _decode_values(values: pa.Array) -> pa.Array:
    return decode(values)


def decode(values: pa.Array) -> pa.StructArray:
    """JSON objects (binary) as an array of EVENT's columns; one pass of Arrow's own parser, in C++, over all of them.

    That parser gives up at the first value that isn't right. Then the halves are tried each by itself, and so on, until
    the bad ones stand alone and become nulls: one of them costs a batch a few more passes, but nobody else's row.
    """
    table = _parse(values)
    minutes = pc.multiply(table["minute"].cast(pa.int64()), 60_000_000).cast(pa.duration("us"))
    columns = {name: table[name] for name in ("row", "carrier", "tailnum", "origin", "dep_delay")}
    columns["scheduled"] = pc.add(table["time_hour"], minutes)
    return pa.table(columns).to_struct_array().combine_chunks()


def _parse(values: pa.Array) -> pa.Table:
    try:
        return _parse_all(values)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        half = len(values) // 2
        if not half:
            return pa.table([pa.nulls(1, field.type) for field in JSON_SCHEMA], schema=JSON_SCHEMA)
        return pa.concat_tables([_parse(values[:half]), _parse(values[half:])])


def _parse_all(values: pa.Array) -> pa.Table:
    """All values, a row each; raises ArrowInvalid if there is one of which this cannot be said."""
    # the parser finds objects, not lines. One that begins with a brace is one object at least; if there are as many
    # objects as values in the end, then none was two
    is_object = pc.fill_null(pc.starts_with(values, b"{"), False)
    lines = pc.if_else(is_object, values, pa.scalar(b"{}", values.type))
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"\n")[0].as_buffer()
    if not len(values):
        return JSON_SCHEMA.empty_table()
    table = arrow_json.read_json(
        pa.BufferReader(text),
        arrow_json.ReadOptions(use_threads=False, block_size=len(text)),
        arrow_json.ParseOptions(explicit_schema=JSON_SCHEMA, unexpected_field_behavior="ignore"),
    )
    table.validate(full=True)  # strings that are not UTF-8
    if len(table) != len(values):
        raise pa.ArrowInvalid(f"{len(table)} objects in {len(values)} values")
    return table

"""Decode JSON values to columns, one Arrow batch at a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyspark.sql import DataFrame, functions as F, types as t  # noqa: N812  the name that Spark's users know

__all__ = ["EVENT_SCHEMA", "decode_flights", "flights", "heartbeat"]

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
"""Columns of a flight. `dep_delay` is in minutes, null for a cancelled flight; `scheduled`, the scheduled departure, is the
event time. A heartbeat has only `scheduled`; for an invalid value all columns are null."""

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
"""The fields that are read from the JSON objects; other fields are ignored."""


def flights(records: DataFrame) -> DataFrame:
    """Return the flights in the column `value` of a topic's records, in a stream or a batch."""
    # the function is pickled by name: executors import it from their own installation of asyncgroup
    decoded = F.arrow_udf(_decode_values, EVENT_SCHEMA)  # type: ignore[attr-defined]  # pyspark's annotations lack it
    column = decoded(F.col("value"))
    return records.select(column.alias("flight")).select("flight.*")


def heartbeat(seconds: int) -> bytes:
    """Return a record value that is not a flight and only has an event time, in seconds since 1970 (only whole minutes count).

    Only events advance a watermark: without a heartbeat after the last flight, the last windows never close.
    """
    hour, rest = divmod(seconds, 3600)
    time_hour = datetime.fromtimestamp(3600 * hour, UTC).isoformat()
    return json.dumps({"time_hour": time_hour, "minute": rest // 60}).encode()


def _decode_values(values: pa.Array) -> pa.Array:
    return decode_flights(values)


def decode_flights(values: pa.Array) -> pa.StructArray:
    """Decode JSON objects (binary) to an array with the columns of EVENT_SCHEMA, in one pass of Arrow's parser.

    The parser fails at the first invalid value. Then each half is parsed separately, and so on, until the invalid values
    are isolated and become nulls: each costs a few more passes, but affects no other row.
    """
    table = _parse(values)
    minutes = pc.multiply(table["minute"].cast(pa.int64()), 60_000_000).cast(pa.duration("us"))
    columns = {name: table[name] for name in ("row", "carrier", "tailnum", "origin", "dep_delay")}
    columns["scheduled"] = pc.add(table["time_hour"], minutes)
    # Table.to_struct_array() of older pyarrow (18 to 20 at least) refuses a table without rows
    return pa.StructArray.from_arrays(
        [each.combine_chunks() for each in columns.values()], names=list(columns)
    )


def _parse(values: pa.Array) -> pa.Table:
    try:
        return _parse_all(values)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        half = len(values) // 2
        if not half:
            return pa.table([pa.nulls(1, field.type) for field in JSON_SCHEMA], schema=JSON_SCHEMA)
        return pa.concat_tables([_parse(values[:half]), _parse(values[half:])])


def _parse_all(values: pa.Array) -> pa.Table:
    """Parse all values, one row each; raise ArrowInvalid if one of them is not exactly one object."""
    # The parser reads objects, not lines. A value that begins with a brace is at least one object; if the number of
    # objects equals the number of values, each value is exactly one object.
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
    table.validate(full=True)  # raises for strings that are not UTF-8
    if len(table) != len(values):
        raise pa.ArrowInvalid(f"{len(table)} objects in {len(values)} values")
    return table

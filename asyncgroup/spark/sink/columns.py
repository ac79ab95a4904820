"""The columns that can be written to topics, as in Spark's Kafka sink, and the conversion of rows to records.

`value` (required), `key`: string or binary; `topic`: string; `partition`: int; `headers`:
array<struct<key string, value binary>>. Other columns are ignored, including `timestamp`: a record's timestamp is the time
at which it is written (`KafkaWriter` and `KafkaWriteTask` of Spark 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncgroup.errors import ConfigError
from asyncgroup.model import Header

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

__all__ = ["OutgoingRow", "check_columns", "outgoing_rows"]

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


class OutgoingRow(NamedTuple):
    """A record to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    partition: int | None
    """None: the producer's partitioner chooses."""


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


def outgoing_rows(batch: pyarrow.RecordBatch, topic: str | None) -> Iterator[OutgoingRow]:
    """Yield the rows of an Arrow batch; raise ConfigError at a row whose topic, or one of whose headers, is null."""
    columns: dict[str, Any] = dict(zip(reversed(batch.schema.names), reversed(batch.columns), strict=True))
    keys = _bytes(columns["key"]) if "key" in columns else repeat(None)
    values = _bytes(columns["value"])
    partitions = columns["partition"].to_pylist() if "partition" in columns else repeat(None)
    headers: Any = map(_headers, columns["headers"].to_pylist()) if "headers" in columns else repeat(())
    topics = columns["topic"].to_pylist() if topic is None else repeat(topic)
    rows = zip(topics, keys, values, headers, partitions, strict=False)  # not strict: repeat() is endless
    for row in rows:
        if row[0] is None:
            raise ConfigError(f"a row's topic is null; {TOPIC_HINT}")
        yield OutgoingRow._make(row)


def _bytes(column: pyarrow.Array) -> list[bytes | None]:
    import pyarrow as pa

    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())  # Arrow strings are UTF-8 already: no copy
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _headers(headers: list[dict[str, Any] | None] | None) -> Sequence[Header]:
    if not headers:
        return ()
    if None in headers:
        raise ConfigError("a row has a null header; each header must be a struct of a key and a value")
    return [(header["key"], header["value"]) for header in headers if header is not None]

"""Columnar records for Arrow: lists of keys, values and timestamps instead of one object for each record.

The columns are those of Spark's Kafka source (`KafkaRecordToRowConverter.scala`). Values that repeat (topic, partition,
timestamp type) are stored once for each run of records. pyarrow is imported when `to_arrow` is called: code that reads
single records does not need it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from asyncgroup.errors import CorruptRecordsError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Columnar",
    "MalformedTimestamp",
    "RecordColumns",
    "RecordRun",
    "arrow_schema",
    "message_arrow_schema",
]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_ARROW_LIMIT: Final = "an Arrow binary column holds at most 2 GiB"


class MalformedTimestamp(CorruptRecordsError):
    """A record's timestamp does not fit the 64-bit microseconds of Arrow and Spark.

    `topic`, `partition` and `offset` name the record, `timestamp` is in milliseconds.
    """

    def __init__(self, topic: str, partition: int, offset: int, timestamp: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        place = f"{topic}-{partition} at offset {offset}"
        super().__init__(
            f"{place}: timestamp {timestamp} ms is out of range: it overflows 64-bit microseconds"
        )


class RecordRun:
    """Consecutive records of one partition with the same timestamp type.

    `offsets` is a range if no offset is missing, else a list.
    """

    __slots__ = ("offsets", "partition", "timestamp_type", "topic")

    def __init__(self, topic: str, partition: int, timestamp_type: int, offsets: range | list[int]) -> None:
        self.topic = topic
        self.partition = partition
        self.timestamp_type = timestamp_type
        self.offsets = offsets

    def __repr__(self) -> str:
        return f"<RecordRun {self.topic}-{self.partition}: {self.offsets}>"

    def try_extend(self, topic: str, partition: int, timestamp_type: int, offsets: range | list[int]) -> bool:
        """Append records to the run and return True, or return False if they need a new run.

        A range is only extended by the range that follows it directly, and a list only by a list: converting one kind
        into the other would cost more than a new run.
        """
        if (partition, timestamp_type, topic) != (self.partition, self.timestamp_type, self.topic):
            return False
        mine = self.offsets
        if isinstance(mine, range):
            if not isinstance(offsets, range) or mine.stop != offsets.start:
                return False
            self.offsets = range(mine.start, offsets.stop)
            return True
        if isinstance(offsets, range):
            return False
        # in place: the list belongs to the run
        mine += offsets
        return True


@runtime_checkable
class Columnar(Protocol):
    """A sequence of records that can append itself to columns."""

    def add_to(self, columns: RecordColumns) -> None:
        """Append the records to `columns`."""


class RecordColumns:
    """Columns of records of one or several partitions, in the order in which they were added.

    To add records, append to `keys`, `values` and `timestamps` (ms, -1 for none), and to `headers` unless it is None;
    then call `add_run` for the same records.
    """

    __slots__ = ("headers", "keys", "runs", "size", "timestamps", "values")

    def __init__(self, *, include_headers: bool = False) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers] | None = [] if include_headers else None
        self.runs: list[RecordRun] = []
        self.size = 0
        """Bytes of the records, an upper bound: a record batch that was read in part counts as a whole."""

    def __len__(self) -> int:
        return len(self.timestamps)

    def __repr__(self) -> str:
        return f"<RecordColumns: {len(self)} records in {len(self.runs)} runs>"

    def add_run(self, topic: str, partition: int, timestamp_type: int, offsets: range | list[int]) -> None:
        """Describe the records that were appended since the last call; without offsets this does nothing."""
        # an empty run would have no place in the columns of constants
        if not offsets or (self.runs and self.runs[-1].try_extend(topic, partition, timestamp_type, offsets)):
            return
        self.runs.append(RecordRun(topic, partition, timestamp_type, offsets))

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` records; the dropped ones must not have been passed to `add_run`."""
        for column in (self.keys, self.values, self.timestamps, self.headers):
            if column is not None:
                del column[length:]

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as a `pyarrow.RecordBatch` of `arrow_schema`. Needs pyarrow (extra `spark`).

        Raises UsageError if keys, values or headers exceed 2 GiB, and MalformedTimestamp.
        """
        import pyarrow as pa

        count = len(self)
        columns = [
            _binary(self.keys),
            _binary(self.values),
            self._constant(lambda run: run.topic, pa.string()),
            self._constant(lambda run: run.partition, pa.int32()),
            self._offsets(),
            self._times(),
            self._constant(lambda run: run.timestamp_type, pa.int32()),
        ]
        if self.headers is not None:
            # most topics have no headers: nulls take no time to build
            columns.append(_headers(self.headers) if any(self.headers) else pa.nulls(count, _headers_type()))
        schema = arrow_schema(include_headers=self.headers is not None)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _constant(self, value_of: Callable[[RecordRun], object], kind: pa.DataType) -> pa.Array:
        """Return a column whose value is the same for all records of a run."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = [
            (value, sum(len(run.offsets) for run in runs)) for value, runs in groupby(self.runs, value_of)
        ]
        # the common case: all records of one partition
        if len(found) == 1:
            return pa.repeat(pa.scalar(found[0][0], kind), found[0][1])
        ends, end = [], 0
        for _, count in found:
            end += count
            ends.append(end)
        # a value and its end for each run, expanded in C
        values = pa.array([value for value, _ in found], kind)
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values))

    def _offsets(self) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        def column(offsets: range | list[int]) -> pa.Array:
            if isinstance(offsets, list):
                return pa.array(offsets, pa.int64())
            # a sum over ones is the range, without a Python int for each offset
            ones = pa.repeat(pa.scalar(1, pa.int64()), len(offsets))
            return pc.cumulative_sum(ones, start=offsets.start - 1)

        found = [column(run.offsets) for run in self.runs]
        return found[0] if len(found) == 1 else pa.concat_arrays(found or [pa.array([], pa.int64())])

    def _times(self) -> pa.Array:
        import pyarrow as pa

        try:
            # as Spark does: milliseconds become microseconds, and -1 (no timestamp) stays -1 ms
            return pa.array(self.timestamps, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
        except pa.ArrowInvalid as error:
            raise self._malformed() from error

    def _malformed(self) -> MalformedTimestamp:
        places = ((run.topic, run.partition, offset) for run in self.runs for offset in run.offsets)
        return next(
            MalformedTimestamp(*place, time)
            for place, time in zip(places, self.timestamps, strict=True)
            if not -(2**63) <= time * 1000 < 2**63
        )


def _binary(values: list[bytes | None]) -> pa.Array:
    import pyarrow as pa

    return _whole(pa.array(values, pa.binary()))


def _whole(column: Any) -> pa.Array:
    """Return the column if it is one array; pyarrow splits data that would overflow its 32-bit offsets."""
    import pyarrow as pa

    # a RecordBatch takes arrays only; chunks would need a Table
    if isinstance(column, pa.ChunkedArray):
        raise UsageError(f"{column.nbytes} bytes of records: {_ARROW_LIMIT}; use smaller batches")
    return column


def _headers(headers: list[Headers]) -> pa.Array:
    """Return the list column of headers, built from flat arrays: a dict for each header would dominate the run time."""
    import pyarrow as pa

    starts: list[int | None] = []
    keys: list[str] = []
    values: list[bytes | None] = []
    for found in headers:
        # None makes the list null, as Spark has records without headers
        starts.append(len(keys) if found else None)
        for key, value in found:
            keys.append(key)
            values.append(value)
    # a list array has one more offset than lists
    starts.append(len(keys))
    kind = _headers_type()
    struct = kind.value_type
    flat = [_whole(pa.array(keys, pa.string())), _whole(pa.array(values, pa.binary()))]
    rows = pa.StructArray.from_arrays(flat, fields=[struct.field(0), struct.field(1)])
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), rows, type=kind)


@functools.cache
def _headers_type() -> pa.ListType:
    import pyarrow as pa

    struct = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.list_(pa.field("element", struct))


@functools.cache
def arrow_schema(*, include_headers: bool = False) -> pa.Schema:
    """Return the Arrow schema of Spark's Kafka source, as Spark itself derives it from `frame_schema`."""
    import pyarrow as pa

    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, ("headers", _headers_type())] if include_headers else fields)


@functools.cache
def message_arrow_schema(*, include_headers: bool = False) -> pa.Schema:
    """Return the Arrow schema of messages of Pulsar: these have no offset, but an id, an event time and an ordering key."""
    import pyarrow as pa

    common = [field for field in arrow_schema(include_headers=include_headers) if field.name != "offset"]
    own = [
        pa.field("messageId", pa.string()),
        pa.field("eventTime", pa.timestamp("us", tz="UTC")),
        pa.field("orderingKey", pa.binary()),
    ]
    return pa.schema([*common, *own])

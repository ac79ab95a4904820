"""Records column by column, on their way into Arrow: no object for a record, nothing per row for what repeats.

The columns are those of Spark's Kafka source (`KafkaRecordToRowConverter.scala`). pyarrow is imported late: whoever
reads record by record need not have it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from asyncgroup.errors import CorruptRecordsError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Columnar", "Columns", "MalformedTimestamp", "Run", "arrow_schema"]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

LONGEST: Final = "Arrow's binary columns hold 2 GiB at the most"


class MalformedTimestamp(CorruptRecordsError):
    """A record whose `timestamp` (ms) Arrow's and Spark's microseconds cannot tell; `topic`, `partition`, `offset`."""

    def __init__(self, topic: str, partition: int, offset: int, timestamp: int) -> None:
        self.topic, self.partition, self.offset, self.timestamp = topic, partition, offset, timestamp
        place = f"{topic}-{partition} at offset {offset}"
        super().__init__(f"{place}: a timestamp of {timestamp} ms is beyond any time")


class Run:
    """Records that follow one another and have these in common; `offsets` is a range where none is missing."""

    __slots__ = ("offsets", "partition", "timestamp_type", "topic")

    def __init__(self, topic: str, partition: int, timestamp_type: int, offsets: range | list[int]) -> None:
        self.topic, self.partition, self.timestamp_type = topic, partition, timestamp_type
        self.offsets = offsets

    def __repr__(self) -> str:
        return f"<Run {self.topic}-{self.partition}: {self.offsets}>"

    def takes(self, topic: str, partition: int, timestamp_type: int, offsets: range | list[int]) -> bool:
        """Make these records part of the run, if they are like it and that costs no more than a run of their own."""
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
        mine += offsets
        return True


@runtime_checkable
class Columnar(Protocol):
    """Records that can be had as columns."""

    def add_to(self, columns: Columns) -> None:
        """Append the records to `columns`."""


class Columns:
    """Columns of records, of one partition or several, in the order in which they were added.

    Whoever fills them appends to `keys`, `values` and `timestamps` (ms, -1 for none), to `headers` unless that is
    None, and then tells of the same records by `add_run`.
    """

    __slots__ = ("headers", "keys", "runs", "size", "timestamps", "values")

    def __init__(self, *, include_headers: bool = False) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers] | None = [] if include_headers else None
        self.runs: list[Run] = []
        self.size = 0
        """Bytes that the records take, or somewhat more: of a batch that was read in part all are counted."""

    def __len__(self) -> int:
        return len(self.timestamps)

    def __repr__(self) -> str:
        return f"<Columns: {len(self)} records in {len(self.runs)} runs>"

    def add_run(self, topic: str, partition: int, timestamp_type: int, offsets: range | list[int]) -> None:
        """What the records appended since the last call have in common, and their offsets; none is no run."""
        if not offsets or (self.runs and self.runs[-1].takes(topic, partition, timestamp_type, offsets)):
            return
        self.runs.append(Run(topic, partition, timestamp_type, offsets))

    def cut(self, length: int) -> None:
        """Forget what was appended behind the first `length` records and no run tells of yet."""
        for column in (self.keys, self.values, self.timestamps, self.headers):
            if column is not None:
                del column[length:]

    def to_arrow(self) -> pa.RecordBatch:
        """The records as a `pyarrow.RecordBatch` of `arrow_schema`. Needs pyarrow (extra `spark`).

        Raises UsageError for more than one can hold (2 GiB of keys, values or headers), MalformedTimestamp.
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
            columns.append(_headers(self.headers) if any(self.headers) else pa.nulls(count, _headers_type()))
        schema = arrow_schema(include_headers=self.headers is not None)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _constant(self, value_of: Callable[[Run], object], kind: pa.DataType) -> pa.Array:
        """A column whose value changes from run to run at the most."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = [
            (value, sum(len(run.offsets) for run in runs)) for value, runs in groupby(self.runs, value_of)
        ]
        if len(found) == 1:
            return pa.repeat(pa.scalar(found[0][0], kind), found[0][1])
        ends, end = [], 0
        for _, count in found:
            end += count
            ends.append(end)
        values = pa.array([value for value, _ in found], kind)
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values))

    def _offsets(self) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        def column(offsets: range | list[int]) -> pa.Array:
            if isinstance(offsets, list):
                return pa.array(offsets, pa.int64())
            ones = pa.repeat(pa.scalar(1, pa.int64()), len(offsets))
            return pc.cumulative_sum(ones, start=offsets.start - 1)

        found = [column(run.offsets) for run in self.runs]
        return found[0] if len(found) == 1 else pa.concat_arrays(found or [pa.array([], pa.int64())])

    def _times(self) -> pa.Array:
        import pyarrow as pa

        try:
            # as Spark does it: milliseconds become microseconds, -1 (no time) stays -1 ms
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
    """A column in one piece; pyarrow makes several of what would overflow its 32-bit offsets."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        raise UsageError(f"{column.nbytes} bytes of records: {LONGEST}; take fewer at a time")
    return column


def _headers(headers: list[Headers]) -> pa.Array:
    """A list column, built flat: a dict for each header would take longer than all the rest."""
    import pyarrow as pa

    starts: list[int | None] = []
    keys: list[str] = []
    values: list[bytes | None] = []
    for found in headers:
        starts.append(len(keys) if found else None)
        for key, value in found:
            keys.append(key)
            values.append(value)
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
    """The Arrow schema of Spark's Kafka source, as Spark itself makes it of `frame_schema`."""
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

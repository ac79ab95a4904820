"""Values used by all packages: TopicPartition, Record, Batch, RecordMetadata, and the clock of record timestamps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

from asyncgroup.topic_partition import TopicPartition, by_topic

if TYPE_CHECKING:
    import pyarrow

    from asyncgroup.columns import RecordColumns

__all__ = [
    "Batch",
    "BatchResult",
    "ChunkedRecord",
    "CommittedOffset",
    "DetailedRecordMetadata",
    "GroupOffsets",
    "Header",
    "MillisClock",
    "Record",
    "RecordMetadata",
    "TopicPartition",
    "add_records",
    "by_topic",
    "clock_of_loop",
    "now_ms",
    "wall_clock",
]

Header: TypeAlias = tuple[str, bytes | None]
"""A record header: key and value."""

MillisClock: TypeAlias = Callable[[], int]
"""Returns the time of day in ms since 1970, as in record timestamps."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def wall_clock() -> int:
    """Return the system's time of day in ms, for timestamps only, as in Java: no wait depends on it."""
    return time.time_ns() // 1_000_000


def clock_of_loop() -> MillisClock:
    """Return the clock of the running event loop if it has one, as in virtual time, else `wall_clock`."""
    import asyncio  # values need no event loop

    clock: MillisClock = getattr(asyncio.get_running_loop(), "wall_clock", wall_clock)
    return clock


def now_ms() -> int:
    """Return the time of day in ms by `clock_of_loop`."""
    return clock_of_loop()()


class CommittedOffset(NamedTuple):
    """The committed offset of a partition."""

    offset: int
    """The next offset to read."""
    metadata: str = ""
    """A free text of the user."""
    leader_epoch: int = -1
    """The leader epoch of the last record before `offset`; -1 if unknown (KIP-320)."""


NextOffsets: TypeAlias = (
    Mapping[TopicPartition, CommittedOffset]
    | Mapping[TopicPartition, int]
    | Mapping[tuple[str, int], CommittedOffset]
    | Mapping[tuple[str, int], int]
)
"""Next offsets to read by partition."""


@dataclass(frozen=True, slots=True, init=False)
class GroupOffsets:
    """Offsets of a consumer group, and the member that commits them (KIP-447): the argument of `Producer.send_offsets`.

        GroupOffsets("billing", {TopicPartition("orders", 0): CommittedOffset(6)})
        GroupOffsets("billing", {("orders", 0): 6})

    `offsets` are the next offsets to read, kept as in the first line; `session.group_offsets(batch)` returns those of a batch. `member_id`,
    `generation_id` (the member epoch under KIP-848) and `group_instance_id` let the group coordinator refuse a member that
    lost its partitions; with their defaults nothing is checked.
    """

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]
    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None

    def __init__(
        self,
        group_id: str,
        offsets: NextOffsets,
        member_id: str = "",
        generation_id: int = -1,
        group_instance_id: str | None = None,
    ) -> None:
        """Any values are taken here; `Producer.send_offsets` refuses wrong ones."""
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "group_id", group_id)
        set_field(self, "offsets", _next_offsets(offsets))
        set_field(self, "member_id", member_id)
        set_field(self, "generation_id", generation_id)
        set_field(self, "group_instance_id", group_instance_id)


def _next_offsets(offsets: Any) -> Any:
    """Return next offsets as CommittedOffset by TopicPartition. Other values are left to the check of the producer."""
    if not isinstance(offsets, Mapping):
        return offsets
    return {
        TopicPartition(*key) if isinstance(key, tuple) and len(key) == 2 else key: (
            CommittedOffset(value) if type(value) is int else value
        )
        for key, value in offsets.items()
    }


class RecordMetadata(NamedTuple):
    """Topic, partition and offset of a produced record, and its timestamp in ms as the broker will return it."""

    topic: str
    partition: int
    offset: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """`offset`; of a value that was written in chunks, the offset of its first chunk, and `offset` is that of the last."""
        return self.offset

    @property
    def sequence_id(self) -> int | None:
        """The record's number in its producer's own count (`initial_sequence_id`), or None without one."""
        return None


class DetailedRecordMetadata(RecordMetadata):
    """The metadata of a record that was written in chunks, or has a sequence id. It equals the plain metadata."""

    _first_offset: int
    _sequence_id: int | None

    @classmethod
    def of(
        cls, metadata: RecordMetadata, *, first_offset: int | None = None, sequence_id: int | None = None
    ) -> DetailedRecordMetadata:
        """Return `metadata` with another first offset or sequence id; None keeps the one that it has."""
        # a tuple of the same four values, which equals the plain metadata and unpacks like it
        detailed = cls(*metadata)
        detailed._first_offset = metadata.first_offset if first_offset is None else first_offset
        detailed._sequence_id = metadata.sequence_id if sequence_id is None else sequence_id
        return detailed

    def __repr__(self) -> str:
        # by the public name: users know no other class
        fields = [f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)]
        fields += [f"first_offset={self._first_offset}", f"sequence_id={self._sequence_id}"]
        return f"RecordMetadata({', '.join(fields)})"

    @property
    def first_offset(self) -> int:
        """The offset of its first chunk."""
        return self._first_offset

    @property
    def sequence_id(self) -> int | None:
        """The number in its producer's own count, or None without one."""
        return self._sequence_id


class BatchResult(NamedTuple):
    """A producer's batch that was acknowledged, or has failed and will not be retried."""

    topic: str
    partition: int
    records: int
    """The number of its records."""
    size: int
    """Bytes of the batch, uncompressed."""
    wire_size: int
    """Bytes of the batch in a Produce request, as compressed; 0 if it was never sent."""
    latency: float
    """Seconds from the append of its first record to the acknowledgement or failure."""
    attempts: int
    """The number of Produce requests that it was sent in."""
    base_offset: int
    """Offset of its first record; -1 if it has failed, and with acks=0."""
    error: Exception | None
    """Why it has failed, or None."""


class Record:
    """A record as it was read from a partition.

    `timestamp` is in ms since 1970 (-1: none), `timestamp_type` is 0 for CreateTime and 1 for LogAppendTime, `key` and
    `value` are bytes or None, `leader_epoch` is that of the record batch (-1: unknown).
    """

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        timestamp_type: int = 0,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[Header] = (),
        leader_epoch: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.leader_epoch = leader_epoch

    @property
    def time(self) -> datetime:
        """Timestamp as an aware datetime in UTC."""
        return _EPOCH + timedelta(milliseconds=self.timestamp)

    @property
    def first_offset(self) -> int:
        """`offset`; of a value that was put together from chunks, the offset of its first chunk."""
        return self.offset

    def _fields(self) -> tuple[object, ...]:
        # headers may be a list or a tuple, which are not equal; of a subclass only these fields count
        return (*(getattr(self, name) for name in Record.__slots__ if name != "headers"), tuple(self.headers))

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        # the place alone: a value may be large, and few records have the same place
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return f"<Record {self.topic}-{self.partition}@{self.offset} key={self.key!r:.40} value={self.value!r:.60}>"


class ChunkedRecord(Record):
    """A record put together from the chunks of its value: the last chunk, with the whole value."""

    __slots__ = ("_first_offset",)

    def __init__(self, last: Record, first_offset: int, value: bytes, headers: Sequence[Header]) -> None:
        super().__init__(
            last.topic,
            last.partition,
            last.offset,
            last.timestamp,
            last.timestamp_type,
            last.key,
            value,
            headers,
            last.leader_epoch,
        )
        self._first_offset = first_offset

    @property
    def first_offset(self) -> int:
        """The offset of the first chunk."""
        return self._first_offset


class Batch(Sequence[Record]):
    """Records of one partition in offset order, from `first_offset` to `last_offset`; never empty.

    `leader_epoch` is that of the last record (-1: unknown).

    Iterating over a fetched batch creates its Record objects one by one, each loop again; an index creates all of them
    and keeps them. Both may raise CorruptRecordsError for invalid content in a record batch whose checksum is correct.

    `to_arrow()` converts them to a `pyarrow.RecordBatch` with the columns of Spark's Kafka source.
    """

    __slots__ = ("_records", "first_offset", "last_offset", "leader_epoch", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        offsets: tuple[int, int] | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._records = records
        # given for fetched records, which an index would create
        self.first_offset, self.last_offset = offsets or (records[0].offset, records[-1].offset)
        self.leader_epoch = records[-1].leader_epoch if leader_epoch is None else leader_epoch

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        offsets = f"{self.first_offset}..{self.last_offset}"
        return f"<Batch {self.topic}-{self.partition} {offsets} {len(self)} records>"

    def to_arrow(self, include_headers: bool = False) -> pyarrow.RecordBatch:
        """Return the records with columns key, value, topic, partition, offset, timestamp (µs, UTC) and timestampType.

        With `include_headers` a list column `headers` of (key, value) follows. Needs pyarrow (extra `spark`). Raises
        UsageError for more than 2 GiB of keys, values or headers, and CorruptRecordsError for invalid content in a
        record batch whose checksum is correct, and for a timestamp that overflows 64-bit microseconds.
        """
        from asyncgroup.columns import Columnar, RecordColumns

        columns = RecordColumns(include_headers=include_headers)
        if isinstance(self._records, Columnar):  # fetched: no Record objects are created
            self._records.add_to(columns)
        else:
            add_records(self._records, columns)
        return columns.to_arrow()


def add_records(records: Iterable[Record], columns: RecordColumns) -> None:
    """Append Record objects to columns."""
    for (topic, partition, kind), group in groupby(records, _RUN):
        # four passes over a list are faster than one loop with four appends
        found = list(group)
        columns.keys += [record.key for record in found]
        columns.values += [record.value for record in found]
        columns.timestamps += [record.timestamp for record in found]
        columns.size += sum(len(record.key or b"") + len(record.value or b"") for record in found)
        if columns.headers is not None:
            columns.headers += [record.headers for record in found]
        columns.add_run(topic, partition, kind, [record.offset for record in found])


_RUN = attrgetter("topic", "partition", "timestamp_type")

"""A producer batch: records of one partition that are sent together, and the futures of their callers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from asyncgroup.errors import AsyncGroupError
from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.producer.batches.results import ResultReceiver
from asyncgroup.wire.batch_view import BatchView, with_producer
from asyncgroup.wire.records import BatchBuilder, decode_batch

__all__ = [
    "BATCH_OVERHEAD",
    "HEADER_OVERHEAD",
    "RECORD_OVERHEAD",
    "BatchFormat",
    "ErrorFactory",
    "ProducerBatch",
    "record_size",
]

ErrorFactory = Callable[[], Exception]
"""Returns a new error at each call: every waiting caller raises its own, with its own traceback."""


RECORD_OVERHEAD: Final = 21
"""Most bytes of a record besides key, value and headers (`DefaultRecord.MAX_RECORD_OVERHEAD`)."""
HEADER_OVERHEAD: Final = 10
"""Most bytes of a record header besides its key and value: two varint lengths of up to five bytes."""
BATCH_OVERHEAD: Final = 61
"""Size of a record batch's header in bytes."""

COMPRESS_OFF_LOOP: Final = 16 * 1024
"""Uncompressed bytes from which on a batch is compressed on a thread; a smaller one is done before a thread has begun."""

_NO_HEADERS: Final[list[Header]] = []
"""The headers of all records without any; never modified."""


_NO_ERRORS: Final[Mapping[int, ErrorFactory]] = {}

_new_tuple: Final[Any] = tuple.__new__
"""Creates a named tuple without a call of the class's `__new__`, for each record that is awaited."""


def record_size(value: bytes | None, key: bytes | None, headers: Sequence[Header]) -> int:
    """Return the most bytes that a record takes in a batch, uncompressed; buffer memory is counted in these."""
    size = RECORD_OVERHEAD
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    for name, content in headers:
        size += HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


class BatchFormat(NamedTuple):
    """What the batches of a producer have in common."""

    codec: str
    size_limit: int
    """Bytes, uncompressed; a single record may be larger."""
    level: int | None = None
    """Compression level; None for the codec's default."""
    transactional: bool = False
    most_records: int = sys.maxsize


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch:
    """A record batch that is being filled, queued, or in flight. Plain state, moved along by the accumulator."""

    tp: TopicPartition
    _format: BatchFormat
    created_at: float
    """Loop time of the first record; `linger` counts from here."""
    deadline: float
    """Loop time at which the delivery timeout expires."""
    closed: bool = False
    """Whether it accepts no more records."""
    last_error: Exception | None = None
    """Why the last attempt failed."""
    attempts: int = 0
    """The number of Produce requests that it was sent in."""
    count: int = 0
    """The number of records."""
    # Lists side by side instead of one of tuples: with 1,000 callers the tuples would be as many objects for the garbage
    # collector as their futures, and its full collections, of 20 ms and more, would come twice as often.
    futures: list[ResultReceiver] = field(default_factory=list)
    """The future of each record whose caller waits, until it is acknowledged; `enqueue` adds none."""
    _indexes: list[int] = field(default_factory=list)  # of their records in the batch
    _timestamps: list[int] = field(default_factory=list)  # of their records, in ms
    reserved: int = 0
    """Bytes of buffer memory that its records hold."""
    base_offset: int = -1
    """Offset of its first record; -1 until acknowledged, and with acks=0."""
    compressing: bool | None = None
    """True while it waits for `compress` or runs there, then False; None if it is not compressed on a thread."""
    done: bool = False
    """Whether it is acknowledged, or has failed and is not retried."""
    in_flight: bool = False
    is_awaited: bool = False
    """Whether a caller waits for one of its records, so that it does not linger longer than necessary."""
    may_be_written: bool = False
    """Whether the result of an attempt is unknown: the batch may be in the log."""
    ordinal: int = -1
    """Its place among the batches of its partition that were sent."""
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    """The sequence number of its first record; -1, as the producer id and its epoch, without idempotence."""
    _error: AsyncGroupError | None = None  # why it could not be compressed
    _data: bytes | memoryview | None = None  # once encoded
    _builder: BatchBuilder = field(init=False)
    _append: Callable[..., object] = field(init=False)
    _most_records: int = field(init=False)

    def __post_init__(self) -> None:
        codec, size_limit, level, transactional, self._most_records = self._format
        self._builder = BatchBuilder(codec, size_limit, level=level, transactional=transactional)
        self._append = self._builder.append_unchecked

    def __repr__(self) -> str:
        state = "done" if self.done else "closed" if self.closed else "open"
        return f"<ProducerBatch {self.tp} {self.count} records, {self.size} bytes, {state}>"

    @property
    def size(self) -> int:
        """Size in bytes: uncompressed while it is being filled, on the wire once it is encoded."""
        return len(self._data) if self._data is not None else self._builder.size

    @property
    def wire_size(self) -> int:
        """Size in bytes as encoded for a Produce request; 0 before that."""
        return len(self._data) if self._data is not None else 0

    @property
    def plain_size(self) -> int:
        """Size in bytes, uncompressed."""
        return self._builder.size

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        timestamp: int,
        size: int,
        future: ResultReceiver | None,
    ) -> bool:
        """Append a record with `size` bytes of buffer memory; False if it is closed or has no room for it.

        The first record always fits. The batch closes when it has `most_records` of its format.
        """
        if self.closed:
            return False
        index = self.count
        if not headers:
            encoded = self._append(index, timestamp, key, value, _NO_HEADERS)
        else:
            encoded = self._append_with_headers(index, value, key, headers, timestamp)
        if encoded is None:
            return False
        self.count = index = index + 1
        if index >= self._most_records:
            self.closed = True
        self.reserved += size
        if future is not None:
            self.futures.append(future)
            self._indexes.append(index - 1)
            self._timestamps.append(timestamp)
        return True

    def _append_with_headers(
        self, index: int, value: bytes | None, key: bytes | None, headers: Sequence[Header], timestamp: int
    ) -> object:
        try:
            return self._append(
                index, timestamp, key, value, headers if type(headers) is list else list(headers)
            )
        except TypeError:  # the compiled code accepts only tuples of exactly str and bytes
            plain = [(str(name), None if content is None else bytes(content)) for name, content in headers]
            return self._append(index, timestamp, key, value, plain)

    def number(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Set the producer id, its epoch, and the sequence number of the first record."""
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, sequence
        if self._data is not None:
            self._data = with_producer(self._data, producer_id, epoch, sequence)

    def compress(self) -> None:
        """Compress the records; `encoded` raises an error of it. The batch is closed, and `compressing`. Runs on a thread."""
        try:
            self._builder.compress()
        except AsyncGroupError as error:
            self._error = error
        finally:
            self.compressing = False

    def encoded(self) -> bytes | memoryview:
        """Close the batch and return the bytes to send; they are not modified afterwards."""
        self.closed = True
        if self._error is not None:
            raise self._error
        if self._data is None:
            self._data = memoryview(self._builder.build_buffer(self.producer_id, self.epoch, self.sequence))
        return self._data

    def split(self) -> list[ProducerBatch]:
        """Return two batches of about the same size with its records and their futures; it must have two records."""
        records = decode_batch(*self.tp, BatchView(self.encoded()), check_crc=False)
        sizes = [record_size(record.value, record.key, record.headers) for record in records]
        middle = next(
            n for n in range(1, len(sizes)) if n == len(sizes) - 1 or sum(sizes[: n + 1]) > sum(sizes) / 2
        )
        futures = dict(zip(self._indexes, self.futures, strict=True))
        no_limits = self._format._replace(size_limit=sys.maxsize, most_records=sys.maxsize)
        parts = []
        for indexes in (range(middle), range(middle, len(sizes))):
            part = ProducerBatch(self.tp, no_limits, self.created_at, self.deadline)
            for index in indexes:
                record, size = records[index], sizes[index]
                part.append(
                    record.value, record.key, record.headers, record.timestamp, size, futures.get(index)
                )
            part.closed, part.last_error, part.attempts = True, self.last_error, self.attempts
            parts.append(part)
        return parts

    def complete(self, base_offset: int, append_time: int = -1) -> None:
        """Resolve the futures: the first record has offset `base_offset` (-1 with acks=0: offsets are unknown).

        `append_time` is the broker's timestamp in ms for a topic with LogAppendTime, else -1.
        """
        self.done = True
        self.base_offset = base_offset
        topic, partition = self.tp
        futures, self.futures = self.futures[::-1], []  # each is freed when its caller has gone on
        for index, timestamp in zip(self._indexes, self._timestamps, strict=True):
            future = futures.pop()
            if not future.done():
                offset = base_offset + index if base_offset >= 0 else -1
                stamp = timestamp if append_time < 0 else append_time
                future.set_result(_new_tuple(RecordMetadata, (topic, partition, offset, stamp)))

    def fail(self, make_error: ErrorFactory, by_index: Mapping[int, ErrorFactory] = _NO_ERRORS) -> None:
        """Fail the futures, each with a separate error; the records in `by_index` have other errors than the rest."""
        self.done = True
        for index, future in zip(self._indexes, self.futures, strict=True):
            if not future.done():
                future.set_exception(by_index.get(index, make_error)())

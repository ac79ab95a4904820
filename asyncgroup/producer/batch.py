"""Records of one partition that travel together, and the promises made for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.model import Header, RecordMetadata, TopicPartition
from asyncgroup.wire.records import BatchBuilder

__all__ = ["BATCH_OVERHEAD", "RECORD_OVERHEAD", "ErrorFactory", "ProducerBatch", "record_size"]

ErrorFactory = Callable[[], Exception]
"""Makes the error of a failed batch, a new one for each record that waits: each is raised with its own traceback."""

RECORD_OVERHEAD: Final = 21
"""Most bytes that a record takes besides key, value and headers (`DefaultRecord.MAX_RECORD_OVERHEAD`)."""
_HEADER_OVERHEAD: Final = 10
BATCH_OVERHEAD: Final = 61
"""Bytes of a record batch's header."""


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    """Bytes that a record takes at most inside a batch, uncompressed; what the producer's buffer counts."""
    size = RECORD_OVERHEAD
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


class ProducerBatch:
    """A record batch being filled, waiting, or under way. Plain state; its accumulator moves it along.

    `created_at` and `deadline` are the loop's times of its first record and of its delivery timeout; `reserved` is
    what its records take of the producer's buffer; `attempts` counts the requests it went out with and `last_error`
    is why the last one failed; `base_offset` is where its records stand, once that is known.
    """

    __slots__ = (
        "_builder",
        "_data",
        "attempts",
        "base_offset",
        "closed",
        "created_at",
        "deadline",
        "done",
        "futures",
        "last_error",
        "reserved",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, codec: str, size_limit: int, created_at: float, deadline: float
    ) -> None:
        self.tp = tp
        self.created_at, self.deadline = created_at, deadline
        self._builder = BatchBuilder(codec, size_limit)
        self._data: bytes | None = None
        self.futures: list[tuple[int, int, asyncio.Future[RecordMetadata]]] = []
        self.reserved = 0
        self.attempts = 0
        self.base_offset = -1
        self.last_error: Exception | None = None
        self.closed = False
        self.done = False

    def __repr__(self) -> str:
        state = "done" if self.done else "closed" if self.closed else "open"
        return f"<ProducerBatch {self.tp} {self.count} records, {self.size} bytes, {state}>"

    @property
    def count(self) -> int:
        """Records in the batch."""
        return self._builder.count

    @property
    def size(self) -> int:
        """Bytes of the batch: uncompressed while it is filled, those on the wire once it was encoded."""
        return len(self._data) if self._data is not None else self._builder.size

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        size: int,
        future: asyncio.Future[RecordMetadata] | None,
    ) -> bool:
        """Add a record, `size` bytes of the buffer; False if there is no room for it (the first always fits)."""
        if not self._builder.append(timestamp, key, value, headers):
            return False
        self.reserved += size
        if future is not None:
            self.futures.append((self._builder.count - 1, timestamp, future))
        return True

    def encoded(self) -> bytes:
        """The bytes to send; the batch takes no more records. Raises UnsupportedVersionError for a missing codec."""
        self.closed = True
        if self._data is None:
            self._data = self._builder.build()
        return self._data

    def complete(self, base_offset: int, append_time: int = -1) -> None:
        """Keep the promises: the records stand from `base_offset` on (-1: the broker was not asked, acks=0).

        `append_time` is the broker's own timestamp in ms where the topic uses it, else -1.
        """
        self.done = True
        self.base_offset = base_offset
        topic, partition = self.tp
        for index, timestamp, future in self.futures:
            if not future.done():
                offset = base_offset + index if base_offset >= 0 else -1
                stamp = timestamp if append_time < 0 else append_time
                future.set_result(RecordMetadata(topic, partition, offset, stamp))

    def fail(self, make_error: ErrorFactory) -> None:
        """Break the promises."""
        self.done = True
        for _, _, future in self.futures:
            if not future.done():
                future.set_exception(make_error())

"""Chunking: split a large value over several records of one partition, as Pulsar's producer does (PIP-37).

- Every chunk has the key, timestamp and headers of the record, and before these the headers of `wire/chunks.py`.
- The partition is chosen once, when the first chunk is routed. Chunks are written in order; other records may be between them.
- A chunk is a record like any other: it has its own room in the buffer, its own batch and its own delivery timeout.
- If a chunk fails, the value fails with its error, and no further ones are written. Consumers never deliver an incomplete value.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from asyncgroup.config import ProducerConfig
from asyncgroup.errors import BrokerError, ErrorCode, InvalidRecordError, QueueFull
from asyncgroup.interceptor import ProducerRecord
from asyncgroup.lifecycle import add_note, copy_error
from asyncgroup.model import DetailedRecordMetadata, Header, RecordMetadata, TopicPartition
from asyncgroup.producer.arguments import copy_headers
from asyncgroup.producer.batches.batch import BATCH_OVERHEAD, record_size
from asyncgroup.producer.batches.results import ResultReceiver, is_silent, report_start
from asyncgroup.producer.records.pipeline import RecordPipeline
from asyncgroup.producer.records.route import Placement
from asyncgroup.wire.chunks import ChunkInfo, split_value

__all__ = ["ChunkWriter", "ChunkedDelivery", "OnLost", "largest_record"]

LEAST_ROOM: Final = 0.5
"""Share of a chunk that its part of the value must be able to take; else the headers would be written very many times."""

MAX_GROWTH: Final = 1 / 512
"""Share of its size by which compression may enlarge a batch of random bytes, as every codec adds headers to its blocks.

Brokers compare the compressed size with `max.message.bytes`, by default almost the same as `max_request_size`.
"""

OnLost = Callable[[TopicPartition, int, Exception], None]
"""Called with partition, number of records (1) and error of a record that failed and for which no caller waits."""


class _Chunk(NamedTuple):
    value: bytes
    headers: Sequence[Header]
    size: int


def largest_record(config: ProducerConfig) -> int:
    """Return the bytes (by `record_size`) of the largest record that is not split; without `chunking`, that is allowed."""
    largest = config.max_request_size - BATCH_OVERHEAD
    if config.chunking and config.compression_type != "none":
        largest -= int(largest * MAX_GROWTH)
    return min(largest, config.max_chunk_size or largest)


class ChunkWriter:
    """Splits large records, and writes the chunks."""

    def __init__(self, pipeline: RecordPipeline) -> None:
        self._pipeline = pipeline
        self._config = pipeline.config
        self._memory = pipeline.memory
        self.max_size = largest_record(pipeline.config)
        """Bytes (by `record_size`) of the largest record that is not split, and of the largest chunk."""
        self._name = ""  # random, set at the first value
        self._values = 0

    def __repr__(self) -> str:
        return f"<ChunkWriter: {self._values} values split into chunks of up to {self.max_size} bytes>"

    async def write(self, record: ProducerRecord, size: int, receiver: ResultReceiver | None) -> None:
        """Write a record of `size` bytes in chunks, each when there is memory for it; stop when one has failed.

        `receiver` gets the result; without a caller that waits, a failure is counted for `flush`.
        """
        delivery, chunks = self._begin(record, size, receiver)
        try:
            for chunk in chunks:
                if not self._memory.try_reserve(chunk.size):
                    await self._pipeline.wait_for_memory(chunk.size)
                if delivery.has_failed:
                    self._memory.release(chunk.size)
                    break
                self._put(chunk, delivery)
        except BaseException:
            delivery.abandon()
            raise

    def write_nowait(self, record: ProducerRecord, size: int, receiver: ResultReceiver | None) -> None:
        """Write a record in chunks as `write` if there is memory for all of them; raise QueueFull otherwise."""
        delivery, chunks = self._begin(record, size, receiver)
        left = deque(chunks)
        total, count = sum(chunk.size for chunk in left), len(left)
        if not self._memory.try_reserve(total, count):
            reason = self._memory.shortage(total, count)
            raise QueueFull(f"no room for {total} bytes in {count} chunks: {reason}")
        try:
            while left:
                # `_put` frees the memory of this chunk if it raises
                self._put(left.popleft(), delivery)
        except BaseException:
            self._memory.release(sum(chunk.size for chunk in left), len(left))
            delivery.abandon()
            raise

    def _begin(
        self, record: ProducerRecord, size: int, receiver: ResultReceiver | None
    ) -> tuple[ChunkedDelivery, Iterator[_Chunk]]:
        """Return the delivery of a record, with a timestamp and a separate list of headers, and its chunks."""
        timestamp = self._pipeline.clock() if record.timestamp is None else record.timestamp
        record = record._replace(timestamp=timestamp, headers=copy_headers(record.headers))
        count, chunks = self._split(record, size)
        on_lost = self._pipeline.deliveries.add_lost
        return ChunkedDelivery(record, size, count, receiver, on_lost), chunks

    def _put(self, chunk: _Chunk, delivery: ChunkedDelivery) -> None:
        """Append a chunk for which memory is reserved; frees it if it raises."""
        topic, _, key, _, _, timestamp = delivery.record
        try:
            self._pipeline.check_accepting()
            future = delivery.next_future()
            self._pipeline.router.put(
                topic,
                chunk.value,
                key,
                chunk.headers,
                None,
                timestamp or 0,
                chunk.size,
                future,
                delivery.placement,
            )
        except BaseException:
            self._memory.release(chunk.size)
            raise
        self._pipeline.wake()

    # --- split --------------------------------------------------------------------------------------------------

    def _split(self, record: ProducerRecord, size: int) -> tuple[int, Iterator[_Chunk]]:
        """Return the number of chunks of a record of `size` bytes, and the chunks. Raises InvalidRecordError if it is too large."""
        if not self._config.chunking:
            limit = self._config.max_request_size
            allowed = f"a record of at most max_request_size={limit} (chunking=True splits values)"
            raise InvalidRecordError("size", size, allowed)
        value = record.value or b""
        length = len(value)
        widest = ChunkInfo("f" * 16 + f"-{2**63}", length, length, length).headers()
        room = self.max_size - record_size(b"", record.key, [*widest, *record.headers])
        if room < self.max_size * LEAST_ROOM:
            allowed = (
                f"a record that can be split: of the {self.max_size} bytes of a chunk its key and headers leave {max(room, 0)}, "
                "at least half is needed"
            )
            raise InvalidRecordError("size", size, allowed)
        return -(-length // room), self._chunks(record, value, room)

    def _chunks(self, record: ProducerRecord, value: bytes, room: int) -> Iterator[_Chunk]:
        for info, part in split_value(self._next_uuid(), value, room):
            headers = [*info.headers(), *record.headers]
            yield _Chunk(part, headers, record_size(part, record.key, headers))

    def _next_uuid(self) -> str:
        """Return the id of a new value: as in Pulsar the producer's name, here a random one, and a number."""
        self._name = self._name or f"{self._pipeline.random.getrandbits(64):016x}"
        self._values += 1
        return f"{self._name}-{self._values}"


class ChunkedDelivery:
    """The result of one value of `size` bytes, when all chunks are acknowledged, or when the first has failed.

    `receiver` gets the result; None if no caller waits.
    """

    def __init__(
        self, record: ProducerRecord, size: int, count: int, receiver: ResultReceiver | None, on_lost: OnLost
    ) -> None:
        self._receiver = receiver
        self._size = size
        self.placement = Placement(record.partition)
        self._failed = False
        self._is_reported = False  # or no caller is interested
        self._futures: deque[asyncio.Future[RecordMetadata]] = (
            deque()
        )  # of the chunks that are not acknowledged
        self.record = record
        self._on_lost = on_lost
        self._metadata: list[RecordMetadata | None] = [None] * count
        self._given = 0
        self._open = count

    def __repr__(self) -> str:
        return f"<ChunkedDelivery: {self._open} of {len(self._metadata)} chunks not acknowledged>"

    @property
    def has_failed(self) -> bool:
        """Whether a chunk has failed: no other one has to be written."""
        while not self._failed and self._futures and self._futures[0].done():
            future = self._futures.popleft()
            self._failed = not future.cancelled() and future.exception() is not None
        return self._failed

    def next_future(self) -> asyncio.Future[RecordMetadata]:
        """Return the future of the next chunk."""
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._on_chunk_done, self._given))
        if self._given == 0:
            report_start(self._receiver)
        self._futures.append(future)
        self._given += 1
        return future

    def abandon(self) -> None:
        """The caller was cancelled or gets an error: ignore the results of the chunks that were written."""
        self._is_reported = True
        self._receiver = None

    def _on_chunk_done(self, index: int, future: asyncio.Future[RecordMetadata]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._fail(index, error)
            return
        self._metadata[index] = future.result()
        self._open -= 1
        first, last = self._metadata[0], self._metadata[-1]
        if self._open or first is None or last is None or self._receiver is None or self._receiver.done():
            return
        self._receiver.set_result(DetailedRecordMetadata.of(last, first_offset=first.offset))

    def _fail(self, index: int, error: BaseException) -> None:
        self._failed = True
        if self._is_reported or not isinstance(error, Exception):
            return
        self._is_reported = True
        error = copy_error(error)
        add_note(error, f"chunk {index + 1} of {len(self._metadata)} of a record of {self._size} bytes")
        if isinstance(error, BrokerError) and error.code == ErrorCode.MESSAGE_TOO_LARGE:
            add_note(error, "set max_chunk_size below max.message.bytes of the topic")
        if is_silent(self._receiver):
            partition = -1 if self.placement.partition is None else self.placement.partition
            self._on_lost(TopicPartition(self.record.topic, partition), 1, error)
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_exception(error)

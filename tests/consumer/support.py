"""Test support: build record batches as in a broker's log (with gaps and markers), and feed a partition consumer."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ConsumeInterceptor
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_view import assign_offsets
from asyncgroup.wire.records import CODECS

TP = TopicPartition("orders", 3)
CONTROL = 0x20


def batch(
    base: int,
    offsets: Iterable[int] | None = None,
    *,
    count: int = 1,
    last: int | None = None,
    control: bool = False,
    codec: str = "none",
    value: bytes = b"v",
    epoch: int = 0,
) -> bytes:
    """Build a batch of magic 2 with records at `offsets` (default: `count` of them from `base` on).

    `last` is the batch's last offset if compaction has removed the records at its end.
    """
    held = list(range(base, base + count) if offsets is None else offsets)
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], 0, -1, -1, -1, 1 << 30)
    for offset in held or [base]:
        assert (
            builder.append(offset - base, 1_700_000_000_000 + offset, b"%06d" % offset, value, []) is not None
        )
    data = bytearray(builder.build())
    if not held:  # compaction keeps an empty batch for the producer's sequence numbers
        data = data[:57] + struct.pack(">i", 0)
        struct.pack_into(">i", data, 8, len(data) - 12)
    if control:
        (attributes,) = struct.unpack_from(">h", data, 21)
        struct.pack_into(">h", data, 21, attributes | CONTROL)
    if last is not None:
        struct.pack_into(">i", data, 23, last - base)
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    assign_offsets(data, base, epoch)
    return bytes(data)


def corrupt(data: bytes) -> bytes:
    """Return the batch with its last byte inverted, so that its CRC is wrong."""
    return data[:-1] + bytes([data[-1] ^ 0xFF])


def with_bad_content(base: int, count: int) -> bytes:
    """Build a batch with a right checksum whose records cannot be decoded."""
    data = bytearray(batch(base, count=count))
    data[61:] = b"\xff" * (len(data) - 61)
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    return bytes(data)


def legacy(offsets: Sequence[int], *, magic: int = 1, compressed: bool = False) -> bytes:
    """Build a message set of magic 0 or 1; a compressed one is a single message with the last offset in its header."""
    if not compressed:
        return b"".join(_message(offset, magic, 0, b"v") for offset in offsets)
    shown = [offset - offsets[0] for offset in offsets] if magic == 1 else offsets
    inner = b"".join(_message(offset, magic, 0, b"v") for offset in shown)
    return _message(offsets[-1], magic, 1, gzip.compress(inner, mtime=0))


def _message(offset: int, magic: int, attributes: int, value: bytes) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", 1_600_000_000_000)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    body = struct.pack(">I", crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


class Seen:
    """A hook object that records stalls and their ends."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def on_stalled(self, *place: object) -> None:
        self.events.append(("stalled", *place))

    def on_resumed(self, *place: object) -> None:
        self.events.append(("resumed", *place))


def make_consumer(
    offset: int = 0,
    *,
    share: int = 1 << 30,
    ask: int = 1 << 20,
    config: ConsumerConfig | None = None,
    hooks: Iterable[object] = (),
    interceptors: Iterable[ConsumeInterceptor] = (),
    wake: Callable[[], None] | None = None,
) -> PartitionConsumer:
    """Return a consumer of `orders-3` that may hold `share` bytes; `wake` replaces the callback to its fetcher."""
    budget = Budget(share, ask)
    budget.partition_count = 1
    consumer = PartitionConsumer(TP, offset, config or ConsumerConfig(), budget, Hooks(hooks), interceptors)
    if wake is not None:
        consumer._inner.fetcher = StubFetcher(wake=wake)
    return consumer


class StubFetcher:
    """A PartitionFetcher that calls what is given, and does nothing else."""

    def __init__(
        self,
        wake: Callable[[], object] = lambda: None,
        report: Callable[[Exception], object] = lambda _error: None,
    ) -> None:
        self.on_records: Callable[[], object] = lambda: None
        self._wake, self._report = wake, report

    def on_change(self, partition: TopicPartitionState) -> None:
        pass

    def wake(self, partition: TopicPartitionState) -> None:
        self._wake()

    def look_up_seek(self, partition: TopicPartitionState) -> None:
        pass

    def on_handled_error(self, partition: TopicPartitionState, error: Exception) -> None:
        self._report(error)


def report_to(consumer: PartitionConsumer, report: Callable[[Exception], object]) -> None:
    """Have the errors that the client recovers from reported to a function."""
    consumer._inner.fetcher = StubFetcher(report=report)


def feed(
    consumer: PartitionConsumer | TopicPartitionState, *batches: bytes, high_watermark: int | None = None
) -> None:
    """Pass batches to the consumer as a broker's response."""
    data = b"".join(batches)
    partition = consumer if isinstance(consumer, TopicPartitionState) else consumer._inner
    partition.fetched(
        FetchedRecords(data, 1 << 40 if high_watermark is None else high_watermark, 0, zero_copy=True)
    )


def pop(buffer: RecordBuffer) -> Record | None:
    """Take the next record of the decoded batch as the iterators do; None if it has no more."""
    if not buffer.decoded:
        return None
    record = buffer.decoded.pop()
    if not buffer.decoded:
        buffer.release()
    return record

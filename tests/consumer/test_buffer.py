"""RecordBuffer against a model of a log: after any steps each record is delivered once, in order."""

from __future__ import annotations

import random
import struct
from typing import NamedTuple

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgroup.consumer.batch_queue import LARGE_BYTES, MAX_EXPANSION
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record
from asyncgroup.wire import batch_run, records
from asyncgroup.wire.decompression import decompress_into, decompress_within
from tests.consumer.support import TP, batch, corrupt, legacy, pop
from tests.memory_use import memory_under
from tests.profiles import examples


class Entry(NamedTuple):
    """A batch of the model's log: its bytes, the offsets of its records, its base offset and the offset after it."""

    data: bytes
    offsets: tuple[int, ...]
    base: int
    end: int


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """A log: message sets (magic 0 and 1), then batches, with compaction gaps inside, between and at the end of batches."""
    entries: list[Entry] = []
    offset = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 3))):
        offsets = tuple(range(offset, offset + draw(st.integers(1, 4))))
        magic = draw(st.sampled_from([0, 1]))
        entries.append(
            Entry(legacy(offsets, magic=magic, compressed=True), offsets, offset, offsets[-1] + 1)
            if draw(st.booleans())
            else Entry(legacy(offsets[:1], magic=magic), offsets[:1], offset, offset + 1)
        )
        offset = entries[-1].end
    for _ in range(draw(st.integers(0, 8))):
        base, span = offset + draw(st.integers(0, 3)), draw(st.integers(1, 6))
        control = draw(st.integers(0, 4)) == 0
        held = draw(st.sets(st.integers(base, base + span - 1)))
        if control:
            held = {base}
        data = batch(base, sorted(held), last=base + span - 1, control=control)
        entries.append(Entry(data, () if control else tuple(sorted(held)), base, base + span))
        offset = base + span
    return entries


class BufferAndLog(RuleBasedStateMachine):
    """Fetches, single and batch reads and seeks in any order, compared with the log."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.buffer = RecordBuffer(TP, 0, check_crcs=True)
        self.cursor = 0

    @initialize(log=logs(), offset=st.integers(0, 20))
    def begin(self, log: list[Entry], offset: int) -> None:
        self.log = log
        self.buffer = RecordBuffer(TP, offset, check_crcs=True)
        self.cursor = offset

    @property
    def waiting(self) -> list[int]:
        """The offsets that were fetched and not delivered yet."""
        end = self.buffer.fetch_offset
        return [o for entry in self.log if entry.end <= end for o in entry.offsets if o >= self.cursor]

    def handed_out(self, records: list[Record]) -> None:
        offsets = [record.offset for record in records]
        assert offsets == self.waiting[: len(offsets)]
        assert all((record.topic, record.partition) == TP for record in records)
        if offsets:
            self.cursor = offsets[-1] + 1

    # -- steps -----------------------------------------------------------------------------------------------------

    @rule(batches=st.integers(0, 4), again=st.integers(0, 2), cut=st.integers(0, 60), zero_copy=st.booleans())
    def fetch(self, batches: int, again: int, cut: int, zero_copy: bool) -> None:
        """A response that begins at the batch with the fetch offset (or earlier) and ends with an incomplete batch."""
        first = next((i for i, e in enumerate(self.log) if e.end > self.buffer.fetch_offset), len(self.log))
        first = max(0, first - again)
        whole = self.log[first : first + again + batches]
        rest = (
            self.log[first + again + batches].data[:cut] if len(self.log) > first + again + batches else b""
        )
        rest = b"" if rest and len(rest) == len(self.log[first + again + batches].data) else rest
        before = self.buffer.fetch_offset
        self.buffer.add(b"".join(e.data for e in whole) + rest, zero_copy=zero_copy)
        assert self.buffer.fetch_offset == max([before, *(e.end for e in whole)])

    @rule()
    def pop(self) -> None:
        before = self.buffer.progress
        record = pop(self.buffer)
        if record is not None:
            self.handed_out([record])
        assert (self.buffer.progress != before) == (record is not None)

    @precondition(lambda self: not self.buffer.decoded)
    @rule()
    def advance(self) -> None:
        had_more = bool(self.buffer)
        assert self.buffer.advance() == had_more

    @rule(max_records=st.integers(1, 9), max_bytes=st.sampled_from([1, 100, 150, 400, 10_000]))
    def pop_records(self, max_records: int, max_bytes: int) -> None:
        before, waited, held = self.buffer.progress, self.waiting, self.buffer.bytes
        records = self.buffer.pop_records(max_records, max_bytes)
        self.handed_out(records)
        assert len(records) <= max_records
        assert bool(records) == bool(waited), "at least one if any is buffered"
        if records:
            assert self.buffer.progress != before
        if max_bytes >= held:
            assert len(records) == min(max_records, len(waited))

    @rule(offset=st.integers(0, 40))
    def seek(self, offset: int) -> None:
        before = self.buffer.progress
        self.buffer.seek(offset)
        self.cursor = offset
        assert self.buffer.progress != before
        assert (self.buffer.position, self.buffer.fetch_offset) == (offset, offset)

    # -- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def position_lies_between_the_last_record_and_the_next(self) -> None:
        position = self.buffer.position
        assert self.cursor <= position <= self.buffer.fetch_offset
        if self.waiting:
            assert position <= self.waiting[0]
        if self.buffer.decoded:
            assert position == self.waiting[0]
        if not self.buffer:
            assert position == self.buffer.fetch_offset

    @invariant()
    def all_buffered_records_are_counted(self) -> None:
        assert self.buffer.records >= len(self.buffer.decoded)
        assert self.buffer.bytes >= 0
        if not self.buffer:
            assert (self.buffer.bytes, self.buffer.records, self.waiting) == (0, 0, [])
        else:
            assert self.buffer.bytes > 0
        if self.waiting:
            assert self.buffer

    def teardown(self) -> None:
        """Read to the end: all records are delivered, and the buffer is empty."""
        waiting, found = self.waiting, []
        while True:
            while (record := pop(self.buffer)) is not None:
                found.append(record.offset)
            if not self.buffer.advance():
                break
        assert found == waiting
        assert (self.buffer.bytes, self.buffer.records) == (0, 0)
        assert self.buffer.position == self.buffer.fetch_offset


TestBufferAndLog = BufferAndLog.TestCase
TestBufferAndLog.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def buffer() -> RecordBuffer:
    """An empty buffer that checks checksums."""
    return RecordBuffer(TP, 0, check_crcs=True)


def test_a_batch_read_by_pop_records_frees_its_bytes(buffer: RecordBuffer) -> None:
    """Found by review: a batch read up to its last record by `pop_records` kept its bytes, and a small share stayed full."""
    buffer.add(batch(0, count=5), zero_copy=True)
    assert [r.offset for r in buffer.pop_records(5, 1 << 20)] == [0, 1, 2, 3, 4]
    assert not buffer
    assert (buffer.bytes, buffer.records) == (0, 0)


def test_the_bytes_of_a_batch_count_until_its_last_record(buffer: RecordBuffer) -> None:
    data = batch(0, count=3)
    buffer.add(data, zero_copy=True)
    assert buffer.advance()
    counted = []
    while pop(buffer) is not None:
        counted.append(buffer.bytes)
    assert counted == [len(data), len(data), 0]


def test_a_seek_into_a_batch_skips_the_records_before() -> None:
    buffer = RecordBuffer(TP, 7, check_crcs=True)
    buffer.add(batch(0, count=10), zero_copy=False)
    assert buffer.position == 7
    assert [r.offset for r in buffer.pop_records(100, 1 << 20)] == [7, 8, 9]


def test_the_position_in_a_compressed_message_set_is_not_its_last_offset() -> None:
    """Its header has only the last offset, which is not the reader's position."""
    buffer = RecordBuffer(TP, 2, check_crcs=True)
    buffer.add(legacy([0, 1, 2, 3, 4], compressed=True), zero_copy=True)
    assert buffer.position == 2
    assert [r.offset for r in buffer.pop_records(9, 1 << 20)] == [2, 3, 4]


def test_a_response_is_copied_unless_zero_copy() -> None:
    shared = bytearray(batch(0, count=2))
    copied, owned = (RecordBuffer(TP, 0, check_crcs=True) for _ in range(2))
    copied.add(shared, zero_copy=False)
    owned.add(shared, zero_copy=True)
    shared[:] = bytes(len(shared))
    assert [r.offset for r in copied.pop_records(9, 1 << 20)] == [0, 1]
    with pytest.raises(CorruptRecordsError):
        owned.pop_records(9, 1 << 20)


@pytest.mark.parametrize("by", ["pop", "pop_records"])
def test_batches_that_overlap_hand_each_record_out_once(buffer: RecordBuffer, by: str) -> None:
    data = batch(0, count=5)
    buffer.add(data, zero_copy=True)
    buffer.add(data, zero_copy=True)
    assert buffer.bytes == len(data), "a batch that was fetched before is not kept"
    buffer.add(batch(3, count=5), zero_copy=True)
    found = [record.offset for record in buffer.pop_records(100, 1 << 20)] if by == "pop_records" else []
    while by == "pop" and (buffer.decoded or buffer.advance()):
        found += [record.offset for record in [pop(buffer)] if record is not None]
    assert found == list(range(8))
    assert (buffer.bytes, buffer.position) == (0, 8)


def test_a_corrupt_batch_stays_in_the_buffer_after_the_good_ones(buffer: RecordBuffer) -> None:
    good, bad, after = batch(0, count=2), corrupt(batch(2, count=2)), batch(4, count=1)
    buffer.add(good + bad + after, zero_copy=True)
    assert [r.offset for r in buffer.pop_records(100, 1 << 20)] == [0, 1]
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="orders-3 at offset 2"):
            buffer.pop_records(100, 1 << 20)
        with pytest.raises(CorruptRecordsError):
            buffer.advance()
    assert (buffer.position, buffer.bytes) == (2, len(bad) + len(after))
    buffer.seek(4)
    buffer.add(after, zero_copy=True)
    assert [r.offset for r in buffer.pop_records(100, 1 << 20)] == [4]


@pytest.mark.parametrize("codec", [*range(1, 5), 7], ids=lambda codec: f"codec {codec}")
@pytest.mark.parametrize("by", ["pop", "pop_records"])
def test_a_batch_without_records_is_skipped_with_any_codec(buffer: RecordBuffer, codec: int, by: str) -> None:
    """Compaction leaves such a header for the producer's sequence numbers, in some brokers with the codec's bits."""
    data = bytearray(batch(0, [], last=4))
    data[22] |= codec
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    buffer.add(bytes(data) + batch(5), zero_copy=True)
    found = [record.offset for record in buffer.pop_records(100, 1 << 20)] if by == "pop_records" else []
    while by == "pop" and (buffer.decoded or buffer.advance()):
        found += [record.offset for record in [pop(buffer)] if record is not None]
    assert (found, buffer.bytes) == ([5], 0)


def test_without_check_crcs_a_changed_value_is_not_detected() -> None:
    buffer = RecordBuffer(TP, 0, check_crcs=False)
    data = bytearray(batch(0, count=1, value=b"abc"))
    data[-2] ^= 0xFF  # the value's last byte; the record's headers follow
    buffer.add(data, zero_copy=True)
    assert len(buffer.pop_records(9, 1 << 20)) == 1


@pytest.mark.parametrize(("where", "kind"), [(23, "last offset delta"), (57, "record count")])
def test_impossible_counts_are_an_error(where: int, kind: str) -> None:
    """A batch that ends before it begins would count as fetched before, and be fetched again without end."""
    data = bytearray(batch(5, count=2))
    struct.pack_into(">i", data, where, -3)
    buffer = RecordBuffer(TP, 5, check_crcs=True)
    buffer.add(batch(3, count=2) + bytes(data), zero_copy=True)
    assert "at offset 5" in str(buffer.framing_error)
    assert buffer.fetch_offset == 5, kind


def test_bytes_without_batches_are_an_error_after_the_good_batches(buffer: RecordBuffer) -> None:
    nonsense = struct.pack(">qiib", 2, 40, 0, 9) + bytes(60)
    buffer.add(batch(0, count=2) + nonsense, zero_copy=True)
    assert buffer.fetch_offset == 2
    assert [r.offset for r in buffer.pop_records(9, 1 << 20)] == [0, 1]
    with pytest.raises(CorruptRecordsError, match="orders-3: batch at offset 2"):
        buffer.pop_records(9, 1 << 20)
    assert not buffer, (
        "raised once; then it is fetched again, as the bytes may have been damaged on the network"
    )


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), limit=st.integers(1, 2000))
@settings(max_examples=examples(60), deadline=None)
def test_pop_records_stops_at_max_bytes_by_whole_batches(sizes: list[int], limit: int) -> None:
    buffer, base, lengths = RecordBuffer(TP, 0, check_crcs=True), 0, []
    for size in sizes:
        lengths.append(len(batch(base, count=size)))
        buffer.add(batch(base, count=size), zero_copy=True)
        base += size
    fitting = 1
    while fitting < len(sizes) and sum(lengths[: fitting + 1]) <= limit:
        fitting += 1
    assert len(buffer.pop_records(10_000, limit)) == sum(sizes[:fitting])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_that_decompress_to_much_are_handed_out_in_parts(codec: str) -> None:
    """A few wire bytes neither fill the memory nor keep the event loop busy for long; nothing is lost."""
    buffer, count = RecordBuffer(TP, 0, check_crcs=True), 40
    buffer.add(
        b"".join(batch(n, codec=codec, value=bytes(LARGE_BYTES - 100)) for n in range(count)), zero_copy=True
    )
    max_bytes, found = 1 << 20, []
    while buffer:
        # The ninth batch reaches 16 MiB. gzip data takes twice its decompressed size while it is decompressed, and an eighth
        # more after that, as a bytearray that was appended to.
        with memory_under((MAX_EXPANSION * max_bytes + 2 * LARGE_BYTES) * 9 / 8):
            taken = buffer.pop_records(10_000, max_bytes)
        found.append([record.offset for record in taken])
    assert [offset for part in found for offset in part] == list(range(count))
    assert [len(part) for part in found] == [9, 9, 9, 9, 4]


@pytest.mark.parametrize("size", [1, 17_000], ids=["in a run", "single"])
def test_no_batch_is_decompressed_twice(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    calls = []

    def counted(codec: int, data: memoryview, *rest: object) -> object:
        calls.append(len(data))
        return (decompress_into if isinstance(rest[0], memoryview) else decompress_within)(codec, data, *rest)

    monkeypatch.setattr(records, "decompress_within", counted)
    monkeypatch.setattr(batch_run, "decompress_into", counted)
    buffer = RecordBuffer(TP, 0, check_crcs=True)
    value = random.Random(1).randbytes(size)  # a batch of more than 16 KiB is in no run
    buffer.add(b"".join(batch(10 * n, count=10, codec="zstd", value=value) for n in range(5)), zero_copy=True)
    assert buffer.large_front is None
    assert buffer.large_front is None
    taken = buffer.pop_records(15, 1 << 20)  # a batch undecoded, a part of the next one
    for _ in range(2):
        assert [record.offset for record in taken] == list(range(15))
    assert buffer.large_front is None
    buffer.decoded.clear()
    buffer.release()
    taken = buffer.pop_records(15, 1 << 20)
    for _ in range(2):
        assert [record.offset for record in taken] == list(range(20, 35))
    assert [record.offset for record in buffer.pop_records(100, 1 << 20)] == list(range(35, 50))
    assert len(calls) == 5


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_bytes_that_are_malformed_stay_in_the_buffer(buffer: RecordBuffer, codec: str) -> None:
    """The checksum is right; the error is raised at every read, after the records before these bytes."""
    data = bytearray(batch(2, count=3, codec=codec))
    data[61:] = b"\xff" * (len(data) - 61)
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    buffer.add(batch(0, count=2, codec=codec) + bytes(data), zero_copy=True)
    assert [record.offset for record in buffer.pop_records(100, 1 << 20)] == [0, 1]
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="orders-3 at offset 2"):
            buffer.pop_records(100, 1 << 20)
    assert buffer.position == 2


def test_repr_shows_the_position(buffer: RecordBuffer) -> None:
    buffer.add(batch(0, count=2), zero_copy=True)
    assert repr(buffer) == f"<RecordBuffer orders-3: 2 records, {buffer.bytes} bytes, at 0>"

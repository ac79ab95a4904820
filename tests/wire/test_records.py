"""Record batches: round trips, batches written by Kafka, truncated, damaged and malicious ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.errors import AsyncGroupError, ConfigError, CorruptRecordsError, UnsupportedVersionError
from asyncgroup.model import Record
from asyncgroup.wire import compiled
from asyncgroup.wire.batch_run import find_batches
from asyncgroup.wire.batch_view import (
    BatchView,
    assign_offsets,
    batch_at,
    iter_batches,
    stamped,
)
from asyncgroup.wire.records import CODECS, BatchBuilder, decode_batch
from tests.memory_use import memory_under
from tests.profiles import examples
from tests.wire.batches import (
    ATTRIBUTES,
    COUNT,
    LEGACY_MAGIC,
    log_append,
    records_of,
    with_attributes,
    with_number,
    with_valid_crc,
)
from tests.wire.golden_records import GOLDEN

TIME = 1_700_000_000_000
TIMES = st.just(-1) | st.integers(0, 1 << 45)
DATA = st.none() | st.binary(max_size=20) | st.just(b"x" * 1000)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)


def complete_bytes(data: bytes) -> int:
    return find_batches(data, check_crcs=True)[1]


def records_with(times: st.SearchStrategy[int]) -> st.SearchStrategy[list]:
    return st.lists(st.tuples(times, DATA, DATA, HEADERS), min_size=1, max_size=12)


RECORDS = records_with(st.just(-1)) | records_with(TIMES).filter(lambda records: records[0][0] != -1)


def built(codec="none", records=((TIME, b"k", b"v" * 100, ()),), **state) -> bytes:
    builder = BatchBuilder(codec, **state)
    for record in records:
        assert builder.append(*record)
    return builder.build()


def view_of(data) -> BatchView:
    """Return the batch at the beginning of `data`."""
    batch = batch_at(data)
    assert batch is not None
    return batch


def decoded(batch, **how) -> list[Record]:
    return decode_batch("t", 3, view_of(batch), **how)


@given(st.sampled_from(list(CODECS)), RECORDS)
def test_round_trip(codec, records):
    batch = built(codec, records)
    assert decoded(batch) == [
        Record("t", 3, offset, timestamp, 0, key, value, headers, -1)
        for offset, (timestamp, key, value, headers) in enumerate(records)
    ]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: f"magic{g.magic}-{g.codec}-{g.timestamp_type}")
def test_batches_written_by_kafka(golden):
    times = [TIME, TIME + 1, TIME + 2]
    if golden.magic == 0:
        times = [-1] * 3
    elif golden.timestamp_type == 1:
        times = [TIME + 999] * 3
    headers = [("h", b"x"), ("n", None)] if golden.magic == 2 else ()
    content = [(100, b"k0", b"value-0"), (102, None, b"value-1"), (104, b"k2", None)]
    assert records_of(golden.data) == [
        Record("t", 3, offset, timestamp, golden.timestamp_type, key, value, headers, -1)
        for (offset, key, value), timestamp in zip(content, times, strict=True)
    ]
    found = list(iter_batches(golden.data))
    assert {(h.magic, h.codec, h.timestamp_type) for h in found} == {
        (golden.magic, CODECS[golden.codec], golden.timestamp_type)
    }
    assert found[-1].next_offset == 105


class TestTimestamps:
    @given(TIMES, TIMES)
    def test_log_append_time_is_taken_from_the_batch(self, created, appended):
        batch = log_append(built(records=[(created, None, b"v", ())] * 3), appended)
        assert [(r.timestamp, r.timestamp_type) for r in decoded(batch)] == [(appended, 1)] * 3
        assert view_of(batch).timestamp_type == 1

    def test_a_first_record_without_timestamp_excludes_records_with_one(self):
        builder = BatchBuilder()
        assert builder.append(-1, None, b"v")
        assert not builder.append(TIME, None, b"v")
        assert builder.append(-1, None, b"w")
        assert [r.timestamp for r in decoded(builder.build())] == [-1, -1]

    def test_records_without_a_timestamp_after_one_with_a_timestamp(self):
        batch = built(records=[(TIME, None, b"v", ()), (-1, None, b"v", ()), (TIME - 5, None, b"v", ())])
        assert [r.timestamp for r in decoded(batch)] == [TIME, -1, TIME - 5]
        assert view_of(batch).max_timestamp == TIME


class TestHeaders:
    def test_all_fields(self):
        batch = built(
            "gzip", [(TIME, None, b"v" * 90, ()), (TIME + 5, None, b"w", ())], transactional=True,
            producer_id=77, producer_epoch=6, base_sequence=50,
        )  # fmt: skip
        header = view_of(batch)
        assert (header.data, header.size, header.base_offset) == (batch, len(batch), 0)
        assert (header.leader_epoch, header.magic, header.attributes) == (-1, 2, 0x11)
        assert header.crc == compiled.crc32c(batch[ATTRIBUTES:])
        assert (header.last_offset_delta, header.base_timestamp, header.max_timestamp) == (1, TIME, TIME + 5)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 6, 50)
        assert (header.record_count, header.is_dense, header.delete_horizon) == (2, True, None)
        assert repr(header) == f"<BatchView 0 to 1, {len(batch)} bytes, magic 2>"
        assert (header.last_offset, header.next_offset, header.codec) == (1, 2, 1)
        assert (header.is_transactional, header.is_control, header.timestamp_type) == (True, False, 0)

    def test_assign_offsets_keeps_the_crc_valid(self):
        batch = bytearray(built(records=[(TIME, None, b"v", ())] * 3))
        assign_offsets(batch, 1000, 7)
        header = view_of(batch)
        assert (header.base_offset, header.leader_epoch, header.last_offset) == (1000, 7, 1002)
        assert header.crc_is_valid()
        assert b"".join(stamped(built(records=[(TIME, None, b"v", ())] * 3), 1000, 7)) == batch
        assert [(r.offset, r.leader_epoch) for r in decoded(batch)] == [(1000, 7), (1001, 7), (1002, 7)]

    def test_assign_offsets_inside_a_buffer(self):
        one = built()
        buffer = bytearray(one + one)
        assign_offsets(buffer, 5, 1, len(one))
        assert [batch.base_offset for batch in iter_batches(buffer)] == [0, 5]

    def test_an_incomplete_last_batch_is_ignored(self):
        """A broker truncates its response at the requested size (KIP-74)."""
        one = built()
        for size in range(len(one)):
            assert [bytes(batch.data) for batch in iter_batches(one + one[:size])] == [one]
            assert complete_bytes(one + one[:size]) == len(one)
        assert [bytes(batch.data) for batch in iter_batches(one + one)] == [one, one]
        assert complete_bytes(one + one) == 2 * len(one)

    def test_a_view_without_records_and_a_copy(self):
        one = built(producer_id=3, base_sequence=8)
        for view in (view_of(memoryview(one + one)).header_only(), view_of(memoryview(one + one)).copy()):
            assert (view.size, view.producer_id, view.base_sequence) == (len(one), 3, 8)
            assert isinstance(view.data, bytes)
        assert bytes(view.data) == one
        with pytest.raises(CorruptRecordsError, match="the buffer has 61 bytes"):
            decode_batch("t", 3, view_of(one).header_only())

    def test_the_buffer_itself_is_the_data_if_it_is_one_batch(self):
        one = built()
        assert view_of(one).data is one
        assert view_of(one + b".").data == one

    @pytest.mark.parametrize(
        ("magic", "length"), [(2, 48), (2, 0), (2, -1), (1, 21), (0, 13), (3, 100), (255, 100)]
    )
    def test_invalid_lengths_and_magics(self, magic, length):
        data = struct.pack(">qiiB", 7, length, 0, magic) + b"\x00" * 100
        with pytest.raises(CorruptRecordsError, match=f"offset 7: invalid length {length} or magic {magic}"):
            batch_at(data)

    @given(st.binary(max_size=100))
    def test_random_bytes(self, data):
        try:
            batches = list(iter_batches(data))
        except CorruptRecordsError:
            return
        assert all(len(batch.data) == batch.size for batch in batches)
        assert sum(batch.size for batch in batches) == complete_bytes(data) <= len(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(b".." + data)[2:]])
@pytest.mark.parametrize("golden", GOLDEN[2::3], ids=lambda g: f"magic{g.magic}-{g.codec}")
def test_every_buffer_type(kind, golden):
    data = kind(golden.data)
    batch = next(iter_batches(data))
    records = decode_batch("t", 3, batch)
    assert records == decode_batch("t", 3, batch.copy())
    assert all(isinstance(r.value, bytes | None) and isinstance(r.key, bytes | None) for r in records)
    if golden.magic == 2:
        assert batch.crc_is_valid()


def test_no_view_of_a_bytearray_is_kept():
    batch = bytearray(built())
    assert view_of(batch).crc_is_valid()
    assert decoded(batch)
    batch += b"more"


def test_control_batches_are_decoded_like_others():
    """A marker's key is its version and type; the consumer skips the batch (KIP-98)."""
    batch = with_attributes(built(records=[(TIME, b"\x00\x00\x00\x01", b"\x00" * 6, ())]), 0x30)
    view = view_of(batch)
    assert view.is_control
    assert view.is_transactional
    assert decode_batch("t", 3, view)[0].key == b"\x00\x00\x00\x01"


class TestDamage:
    @pytest.mark.parametrize("codec", CODECS)
    def test_every_damaged_byte_is_detected_by_the_crc(self, codec):
        batch = built(codec)
        for position in range(ATTRIBUTES, len(batch)):
            damaged = bytearray(batch)
            damaged[position] ^= 0x55
            view = view_of(bytes(damaged))
            assert not view.crc_is_valid()
            with pytest.raises(
                CorruptRecordsError, match="t-3 at offset 0: the CRC of the batch does not match its bytes"
            ):
                decode_batch("t", 3, view)

    def test_the_crc_check_can_be_skipped(self):
        batch = bytearray(built(records=[(TIME, None, b"value", ())]))
        batch[-2] ^= 1
        assert decoded(bytes(batch), check_crc=False)[0].value == b"valud"

    @pytest.mark.parametrize("size", [0, 1, 20, 21, 60])
    def test_too_short_for_a_crc(self, size):
        assert batch_at(built()[:size]) is None

    @pytest.mark.parametrize("size", [61, 100])
    def test_a_size_that_differs_from_the_header(self, size):
        batch = built()
        assert batch_at(batch[:size]) is None
        with pytest.raises(CorruptRecordsError, match=f"the buffer has {size} bytes, the batch {len(batch)}"):
            decode_batch("t", 3, BatchView(batch[:size]))

    @pytest.mark.parametrize("count", [-1, 0, 2, 1 << 30])
    def test_a_wrong_count(self, count):
        with pytest.raises(CorruptRecordsError, match="t-3 at offset 0"):
            decoded(with_number(built(), ">i", COUNT, count))

    @pytest.mark.parametrize("codec", [5, 6, 7])
    def test_an_unknown_codec(self, codec):
        with pytest.raises(UnsupportedVersionError, match=r"t-3 at offset 0: .*unknown compression codec"):
            decoded(with_number(built(), ">h", ATTRIBUTES, codec))

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_uncompressed_data_with_a_codec(self, codec):
        """Each compression library raises its own errors."""
        with pytest.raises(CorruptRecordsError, match="t-3 at offset 0: "):
            decoded(with_number(built(), ">h", ATTRIBUTES, codec))

    @settings(max_examples=examples(400))
    @given(
        st.sampled_from(GOLDEN),
        st.lists(
            st.tuples(
                st.integers(0, 1 << 16),
                st.binary(max_size=5)
                | st.sampled_from([b"\xff" * 9 + b"\x01", b"\xff" * 4, b"\x7f\xff\xff\xff"]),
                st.integers(0, 6),
            ),
            min_size=1,
            max_size=3,
        ),
    )
    def test_malformed_content_with_a_valid_crc(self, golden, changes):
        batch = golden.data
        batch = bytes(next(iter_batches(batch)).data)
        for place, inserted, removed in changes:
            at = LEGACY_MAGIC + place % (len(batch) - LEGACY_MAGIC)
            batch = batch[:at] + inserted + batch[at + removed :]
        batch = batch.ljust(61, b"\x00")
        try:
            view = batch_at(with_valid_crc(batch))
            if view is not None:
                decode_batch("t", 3, view)
        except AsyncGroupError:
            return

    @pytest.mark.parametrize("length", [1 << 62, (1 << 63) - 1, (1 << 63) - 50, (1 << 63) - 200])
    @pytest.mark.parametrize("part", ["key", "value", "header key", "header value"])
    def test_lengths_near_the_int64_maximum(self, length, part):
        parts = {
            "key": b"\x01",
            "value": b"\x01",
            "count": b"\x02",
            "header key": b"\x00",
            "header value": b"\x01",
        }
        parts[part] = zigzag(length)
        record = b"\x00\x00\x00" + b"".join(parts.values())
        batch = with_valid_crc(built(records=[(TIME, None, None, ())])[:61] + zigzag(len(record)) + record)
        with memory_under(1_000_000), pytest.raises(CorruptRecordsError):
            decoded(batch)


def zigzag(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


class TestBuilder:
    def test_the_limit(self):
        builder = BatchBuilder(size_limit=200)
        added = 0
        while builder.append(TIME, b"key", b"v" * 20):
            added += 1
        assert added == builder.count > 1
        assert builder.size <= 200
        assert len(decoded(builder.build())) == added

    def test_the_first_record_always_fits(self):
        builder = BatchBuilder(size_limit=100)
        assert builder.append(TIME, None, b"v" * 1000)
        assert not builder.append(TIME, None, b"")
        assert len(decoded(builder.build())) == 1

    def test_an_unknown_codec(self):
        with pytest.raises(ConfigError, match="codec='brotli' is not allowed: one of none, gzip"):
            BatchBuilder("brotli")

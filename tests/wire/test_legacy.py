"""Message sets of magic 0 and 1, which current clients no longer write."""

from __future__ import annotations

import struct
import zlib

import pytest
from aiokafka.codec import gzip_encode
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, strategies as st

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.model import Record
from asyncgroup.wire.batch_view import batch_at, iter_batches
from asyncgroup.wire.records import decode_batch
from tests.wire.batches import LEGACY_ATTRIBUTES, LEGACY_TIMESTAMP, records_of, with_number

TIME = 1_700_000_000_000
CODECS = {0: [0, 1, 2], 1: [0, 1, 2, 3]}
DATA = st.none() | st.binary(max_size=20)


def message(
    offset: int, value: bytes | None = b"v", *, magic: int = 1, attributes: int = 0, key: bytes | None = None
) -> bytes:
    body = bytes([magic, attributes]) + (struct.pack(">q", TIME) if magic == 1 else b"")
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize("magic", [0, 1])
@given(records=st.lists(st.tuples(DATA, DATA), min_size=1, max_size=8), data=st.data())
def test_message_sets_written_by_aiokafka(magic, records, data):
    codec = data.draw(st.sampled_from(CODECS[magic]))
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, (key, value) in enumerate(records):
        assert builder.append(offset, TIME + offset, key, value)
    assert records_of(bytes(builder.build())) == [
        Record("t", 3, offset, -1 if magic == 0 else TIME + offset, 0, key, value)
        for offset, (key, value) in enumerate(records)
    ]


def test_a_producers_wrapper_has_offset_zero():
    inner = message(0) + message(1) + message(2)
    assert [r.offset for r in records_of(message(0, gzip_encode(inner), attributes=1))] == [0, 1, 2]


def test_a_brokers_wrapper_has_the_offset_of_its_last_message():
    """KIP-31: inner offsets are relative to the first one."""
    inner = message(0) + message(1) + message(5)
    wrapper = message(1005, gzip_encode(inner), attributes=1)
    assert [r.offset for r in records_of(wrapper)] == [1000, 1001, 1005]
    (view,) = iter_batches(wrapper)
    assert (view.base_offset, view.last_offset, view.next_offset) == (-1, 1005, 1006)
    assert not view.is_dense


def test_inner_messages_of_magic_0_have_final_offsets():
    inner = message(70, magic=0) + message(72, magic=0)
    assert [r.offset for r in records_of(message(72, gzip_encode(inner), magic=0, attributes=1))] == [70, 72]


def test_log_append_time_is_taken_from_the_wrapper():
    wrapper = message(1, gzip_encode(message(0) + message(1)), attributes=1)
    wrapper = with_number(with_number(wrapper, ">B", LEGACY_ATTRIBUTES, 9), ">q", LEGACY_TIMESTAMP, TIME + 77)
    assert [(r.timestamp, r.timestamp_type) for r in records_of(wrapper)] == [(TIME + 77, 1)] * 2


def test_the_timestamp_type_of_a_compressed_message_is_that_of_its_wrapper():
    """As in Kafka's `LegacyRecord.timestampType`: the inner attributes count only without a wrapper."""
    wrapper = message(1, gzip_encode(message(0, attributes=8) + message(1)), attributes=1)
    assert [(r.timestamp, r.timestamp_type) for r in records_of(wrapper)] == [(TIME, 0)] * 2
    assert [(r.timestamp, r.timestamp_type) for r in records_of(message(0, attributes=8))] == [(TIME, 1)]


def test_a_wrapper_without_messages():
    assert records_of(message(5, gzip_encode(b""), attributes=1)) == []


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("key", [None, b"", b"k" * 9])
def test_the_payload_is_the_value(magic, key):
    view = batch_at(message(3, b"compressed", magic=magic, key=key, attributes=1))
    assert view is not None
    assert (view.payload, view.crc_is_valid()) == (b"compressed", True)


def test_magic_0_has_no_timestamp_type():
    (view,) = iter_batches(message(3, magic=0, attributes=8))
    assert view.timestamp_type == 0
    assert view.is_dense


def test_several_wrappers():
    data = b"".join(message(last, gzip_encode(message(0) + message(1)), attributes=1) for last in (11, 13))
    assert [r.offset for r in records_of(data + message(14)[:-1])] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (message(0, None, attributes=1), "a compressed message has no value"),
        (message(0, gzip_encode(message(0, gzip_encode(message(0)), attributes=1)), attributes=1), "contains another compressed message"),
        (message(0, gzip_encode(message(0)[:-1]), attributes=1), "invalid magic"),
        (message(0, gzip_encode(message(0) + b"rest"), attributes=1), "truncated"),
        (message(0, gzip_encode(struct.pack(">qiIBB", 0, -12, 0, 1, 0) + b"x" * 30), attributes=1), "size -12"),
        (message(0, b"no gzip", attributes=1), "gzip"),
        (with_number(message(0), ">i", 26, 100), "a key or value of 100 bytes, but"),
        (with_number(message(0), ">i", 26, -2), "a key or value of -2 bytes, but"),
        (with_number(message(0, b"value"), ">i", 30, 4), "longer than its key and value"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # gzip stores the time, and names must not change
)  # fmt: skip
def test_malformed(batch, reason):
    with pytest.raises(CorruptRecordsError, match="t-3 at offset 0: .*" + reason):
        records_of(batch)


def test_a_wrong_crc_outside_and_inside_a_wrapper():
    damaged = bytearray(message(7))
    damaged[-1] ^= 1
    for batch, reason in (
        (bytes(damaged), "t-3 at offset 7: the CRC of the batch does not match"),
        (message(7, gzip_encode(bytes(damaged)), attributes=1), "CRC of the message at offset 7"),
    ):
        with pytest.raises(CorruptRecordsError, match=reason):
            records_of(batch)
        (view,) = iter_batches(batch)
        assert len(decode_batch("t", 3, view, check_crc=False)) == 1


def test_an_unknown_codec():
    with pytest.raises(
        UnsupportedVersionError,
        match="t-3 at offset 0: compression codec 4 is not supported in magic 0 and 1",
    ):
        records_of(message(0, b"zstd", attributes=4))

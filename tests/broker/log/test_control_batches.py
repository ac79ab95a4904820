"""Encoding and decoding of transaction markers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.broker.log.control_batches import control_batch
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.wire.batch_view import BatchView, update_crc
from asyncgroup.wire.records import BatchBuilder, ControlType, read_control_type

KAFKA = bytes.fromhex(
    "000000000000000000000042ffffffff026b9cbe2f0030000000000000000000000005000000000000000500000000000000070003"
    "ffffffff000000012000000008000000000c00000000000900"
)
"""The bytes of Kafka 4.3.1's `MemoryRecords.withEndTransactionMarker` for producer 7 in epoch 3, coordinator epoch 9,
timestamp 5."""


def test_a_marker_has_the_same_bytes_as_kafkas():
    assert control_batch(ControlType.ABORT, 7, 3, coordinator_epoch=9, timestamp=5) == KAFKA


@given(
    st.sampled_from(ControlType),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**50),
)
def test_markers_round_trip(control_type, producer_id, epoch, coordinator_epoch, timestamp):
    data = control_batch(
        control_type, producer_id, epoch, coordinator_epoch=coordinator_epoch, timestamp=timestamp
    )
    header = BatchView(data)
    assert header.crc_is_valid()
    assert (header.size, header.is_control, header.is_transactional) == (len(data), True, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (producer_id, epoch, -1)
    assert (header.base_timestamp, header.record_count) == (timestamp, 1)
    assert read_control_type(header) is control_type


def made(key: bytes | None, *, records: int = 1) -> bytes:
    builder = BatchBuilder(transactional=True, producer_id=1, producer_epoch=0)
    for _ in range(records):
        builder.append(1, key, b"")
    batch = bytearray(builder.build())
    batch[22] |= 0x20
    update_crc(batch)
    return bytes(batch)


def read(data: bytes, *, check_crc: bool = True) -> ControlType | None:
    return read_control_type(BatchView(data), check_crc=check_crc)


def test_other_control_records_have_no_control_type():
    assert read(made(b"\0\0\0\2")) is None  # KRaft's leader change
    assert read(made(b"\0\7\0\1")) is ControlType.COMMIT  # a later version of the key


def test_a_compacted_marker_has_no_control_type():
    data = bytearray(control_batch(ControlType.ABORT, 1, 0))
    del data[61:]
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[57:61] = bytes(4)
    update_crc(data)
    assert read(bytes(data)) is None


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_with_an_invalid_key_is_corrupt(key):
    with pytest.raises(CorruptRecordsError, match="control batch at offset 0"):
        read(made(key))


def test_a_wrong_crc():
    data = bytearray(control_batch(ControlType.ABORT, 1, 0))
    data[20] ^= 1
    with pytest.raises(CorruptRecordsError, match="CRC"):
        read(bytes(data))
    assert read(bytes(data), check_crc=False) is ControlType.ABORT

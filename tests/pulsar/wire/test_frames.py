"""Frames with payload: their parts, with and without checksum and metadata of the broker."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.commands import CommandSend
from asyncgroup.pulsar.wire.frames import ChecksumError, decode_frame, encode_send, payload_bounds
from asyncgroup.pulsar.wire.metadata import BrokerEntryMetadata
from tests.pulsar.wire.entries import message_frame, metadata_of
from tests.pulsar.wire.strategies import drawn, messages_of

BROKER = BrokerEntryMetadata(broker_timestamp=1790000000000, index=300)


@given(messages_of(CommandSend), st.binary(max_size=200), st.binary(max_size=200))
@drawn(200)
def test_a_send_is_read_back(command: CommandSend, metadata: bytes, payload: bytes) -> None:
    first, rest = encode_send(command, metadata, payload)
    frame = first + rest
    (total,) = struct.unpack_from(">I", frame)
    assert total == len(frame) - 4
    found, end = decode_frame(frame[4:])
    assert found == command
    parts = payload_bounds(frame[4:], end)
    assert parts.broker_metadata is None
    assert frame[4:][slice(*parts.metadata)] == metadata
    assert frame[4:][parts.payload :] == payload


@pytest.mark.parametrize("broker", [None, BROKER])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("payload", [b"", b"\x0e\x01", b"payload"])
def test_the_parts_of_a_frame(broker: BrokerEntryMetadata | None, checksum: bool, payload: bytes) -> None:
    metadata = metadata_of().encode()
    frame = message_frame(metadata, payload, broker=broker, checksum=checksum)
    _, end = decode_frame(frame)
    for data in (frame, bytearray(frame)):
        parts = payload_bounds(data, end)
        assert data[slice(*parts.metadata)] == metadata
        assert data[parts.payload :] == payload
        assert (parts.broker_metadata is None) == (broker is None)
        if parts.broker_metadata is not None:
            assert BrokerEntryMetadata.decode(data, *parts.broker_metadata) == broker


def test_a_wrong_checksum() -> None:
    frame = message_frame(metadata_of(), b"payload", checksum=12345)
    _, end = decode_frame(frame)
    with pytest.raises(ChecksumError, match="the checksum of a message is wrong"):
        payload_bounds(frame, end)
    assert frame[payload_bounds(frame, end, check=False).payload :] == b"payload"


@pytest.mark.parametrize("broker", [None, BROKER])
def test_the_checksum_covers_all_that_follows_it(broker: BrokerEntryMetadata | None) -> None:
    frame = bytearray(message_frame(metadata_of(), b"payload", broker=broker))
    _, end = decode_frame(frame)
    start = frame.index(b"\x0e\x01", end) + 2
    for at in range(start, len(frame)):
        frame[at] ^= 0x40
        with pytest.raises(DecodeError):
            payload_bounds(frame, end)
        frame[at] ^= 0x40
    if broker is not None:  # the broker adds its metadata to what the producer has sent
        frame[end + 7] ^= 1
        payload_bounds(frame, end)


@pytest.mark.parametrize("broker", [None, BROKER])
@pytest.mark.parametrize("checksum", [True, False])
def test_frames_that_end_too_early(broker: BrokerEntryMetadata | None, checksum: bool) -> None:
    whole = message_frame(metadata_of(), b"", broker=broker, checksum=checksum)
    _, end = decode_frame(whole)
    for size in range(end, len(whole)):
        with pytest.raises(DecodeError):
            payload_bounds(whole[:size], end, check=False)


@pytest.mark.parametrize("size", [100, 1 << 31, (1 << 32) - 1])
def test_sizes_beyond_the_frame(size: int) -> None:
    head = struct.pack(">I", size)
    for start in (b"", b"\x0e\x02", b"\x0e\x01\x00\x00\x00\x00"):
        with pytest.raises(DecodeError, match=f"metadata of {size} bytes does not fit the rest of its frame"):
            payload_bounds(start + head + b"x" * 20, 0, check=False)


def test_a_checksum_without_bytes() -> None:
    with pytest.raises(DecodeError, match="a message ends within its checksum"):
        payload_bounds(b"\x0e\x01\x00\x00", 0)
    with pytest.raises(DecodeError, match="before the size of its metadata"):
        payload_bounds(b"\x0e\x01\x00\x00\x00\x00", 0)

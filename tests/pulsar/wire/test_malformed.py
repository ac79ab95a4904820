"""Malformed and malicious bytes: every decoder returns or raises DecodeError, fast and with little memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.commands import (
    COMMANDS,
    CommandAck,
    CommandMessage,
    CommandProducer,
    CommandWatchTopicUpdate,
    MessageIdData,
    decode_command,
    encode_command,
)
from asyncgroup.pulsar.wire.frames import decode_frame, encode_frame, payload_bounds
from asyncgroup.pulsar.wire.message import ProtoMessage
from asyncgroup.pulsar.wire.metadata import MessageMetadata, SingleMessageMetadata, payload_size_in
from tests.memory_use import memory_under
from tests.pulsar.wire.strategies import CLASSES, drawn, messages_of, raw_varint

EVERY = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)

HOSTILE = [
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # the largest varint
    b"\xff" * 12,  # a varint without end
    b"\xff\xff\xff\xff\x07",  # the largest size of protobuf
    b"\x00",  # field 0
    b"\x02\x01x",
    b"\x01........",
    b"\x0b",  # a group begins
    b"\x0c",  # and ends
    b"\x0e",  # no wire type
    b"\x0f",
    b"\x09",  # eight bytes follow
    b"\x0d",  # four
    b"\x0a\x7f",
    b"\xc3\x28\xed\xa0\x80",  # no UTF-8
]


@EVERY
def test_mutated_messages(cls: type[ProtoMessage]) -> None:
    @given(messages_of(cls), st.data())
    @drawn(60)
    def check(message: ProtoMessage, data: st.DataObject) -> None:
        encoded = message.encode()
        at = data.draw(st.integers(0, len(encoded)))
        until = data.draw(st.integers(at, min(at + 3, len(encoded))))
        new = data.draw(st.binary(max_size=4) | st.sampled_from(HOSTILE))
        with suppress(DecodeError):
            cls.decode(encoded[:at] + new + encoded[until:])

    check()


@EVERY
def test_a_message_that_was_cut_is_another_one_or_none(cls: type[ProtoMessage]) -> None:
    """A cut between two fields cannot be seen; anywhere else it is."""

    @given(messages_of(cls))
    @drawn(20)
    def check(message: ProtoMessage) -> None:
        encoded = message.encode()
        for at in range(0, len(encoded), max(1, len(encoded) // 200)):
            with suppress(DecodeError):
                assert encoded[:at].startswith(cls.decode(encoded[:at]).encode()[:at])
            # the bytes after its end are not read
            with suppress(DecodeError):
                assert cls.decode(encoded, 0, at) == cls.decode(encoded[:at])

    check()


@given(st.sampled_from(CLASSES), st.lists(st.binary(max_size=8) | st.sampled_from(HOSTILE), max_size=8))
@drawn(500)
def test_random_bytes(cls: type[ProtoMessage], parts: list[bytes]) -> None:
    with suppress(DecodeError):
        cls.decode(b"".join(parts))


REQUIRED = b"\x08\x07\x10\x08"
"""Ledger and entry of an id."""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "the data ends within a field"),
        (b"\x08\x87", "the data ends within a field"),
        (b"\x08\x87\x80\x80", "the data ends within a field"),
        (REQUIRED + b"\x3a", "the data ends within a field"),
        (REQUIRED + b"\x3a\x05\x08\x01", "field first_chunk_message_id ends after its message"),
        (REQUIRED + b"\x3a\x01\x08\x01\x10\x02", "a field ends after its message"),
        (REQUIRED + b"\x2a\x02\x80\x80", "the data ends within a field"),
        (REQUIRED + b"\x2a\x01\x80\x01", "field ack_set ends within a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "a varint is longer than ten bytes"),
        (REQUIRED + b"\x78" + b"\x80" * 10 + b"\x01", "a varint is longer than ten bytes"),
        (b"\x88" + b"\x80" * 10 + b"\x01", "a varint is longer than ten bytes"),
        (REQUIRED + b"\x7a" + b"\xff" * 9 + b"\x01", "field 15 ends"),
        (REQUIRED + b"\x7a\xff\xff\xff\xff\x07", "field 15 ends"),
        (REQUIRED + b"\x3a\xff\xff\xff\xff\x07", "first_chunk_message_id ends after its message"),
        (REQUIRED + b"\x7b\x7c", "123 is not the tag of a field: number 15, wire type 3"),
        (REQUIRED + b"\x7c", "wire type 4"),
        (REQUIRED + b"\x7e", "wire type 6"),
        (REQUIRED + b"\x7f", "wire type 7"),
        (REQUIRED + b"\x00\x00", "0 is not the tag of a field"),
        (REQUIRED + b"\x01........", "1 is not the tag of a field"),
        (REQUIRED + b"\x02\x00", "2 is not the tag of a field"),
        (REQUIRED + b"\x05....", "5 is not the tag of a field"),
        (REQUIRED + b"\x80\x00\x00", "0 is not the tag of a field"),
        (REQUIRED + raw_varint(1 << 32) + b"\x00", "is not the tag of a field"),
        (REQUIRED + b"\x79.......", "a field ends after its message"),
        (REQUIRED + b"\x7d...", "a field ends after its message"),
        (b"\x0a" * 2000, "field 1 ends 4 bytes after its message"),
    ],
)
def test_what_is_malformed_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        MessageIdData.decode(data)
    # also where other bytes follow
    with pytest.raises(DecodeError):
        MessageIdData.decode(data + b"\x01" * 20, 0, len(data))


def test_the_largest_tag() -> None:
    assert MessageIdData.decode(REQUIRED + raw_varint((1 << 29) - 1 << 3) + b"\x00").entry_id == 8


def nested(depth: int) -> bytes:
    data = REQUIRED
    for _ in range(depth):
        data = REQUIRED + b"\x3a" + raw_varint(len(data)) + data
    return data


def test_messages_that_are_nested_deeply() -> None:
    found = MessageIdData.decode(nested(5))
    for _ in range(5):
        assert found.first_chunk_message_id is not None
        found = found.first_chunk_message_id
    with pytest.raises(DecodeError, match="nested too deeply"):
        MessageIdData.decode(nested(20_000))
    with pytest.raises(DecodeError, match="nested too deeply"):
        CommandMessage.decode(b"\x08\x01\x12" + raw_varint(len(nested(20_000))) + nested(20_000))


MEGABYTES = 1_000_000


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (MessageIdData.decode, b"\x08" + b"\xff" * MEGABYTES),
        (MessageIdData.decode, REQUIRED + b"\x78" + b"\xff" * MEGABYTES),
        (MessageIdData.decode, b"\xff" * MEGABYTES),
        (MessageIdData.decode, REQUIRED + b"\x7a" * MEGABYTES),
        (MessageIdData.decode, REQUIRED + b"\x18\x05" * (MEGABYTES // 8)),
        (CommandProducer.decode, b"\x32\x04\x0a\x00\x12\x00" * (MEGABYTES // 24)),
        (CommandProducer.decode, b"\x32\x00" * MEGABYTES),
        (CommandWatchTopicUpdate.decode, b"\x12\x00" * (MEGABYTES // 8)),
        (CommandAck.decode, b"\x1a\x04" + REQUIRED + b"\x1a\x00" * MEGABYTES),
        (MessageMetadata.decode, b"\x6a\x00" * MEGABYTES),
        (lambda data: payload_size_in(data, 0, len(data)), b"\x0a\x00" * (MEGABYTES // 2)),
        (lambda data: payload_size_in(data, 0, len(data)), b"\x18" + b"\xff" * MEGABYTES),
        (lambda data: decode_command(data, 0, len(data)), b"\x08" + b"\xff" * MEGABYTES),
        (lambda data: decode_command(data, 0, len(data)), b"\x12\x00" * (MEGABYTES // 4)),
        (lambda data: decode_command(data, 0, len(data)), b"\x12" + b"\xff" * MEGABYTES),
    ],
)
def test_large_malformed_messages_take_little_time(decode: Callable[[bytes], object], data: bytes) -> None:
    start = time.process_time()
    with suppress(DecodeError):
        decode(data)
    assert time.process_time() - start < 10, "the time is not proportional to the size"


def test_memory_is_not_taken_by_a_claim() -> None:
    sizes = [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
    with memory_under(100_000):
        for cls in (MessageMetadata, SingleMessageMetadata, CommandMessage, MessageIdData):
            for number in range(1, 33):
                for size in sizes:
                    with suppress(DecodeError):
                        cls.decode(raw_varint(number << 3 | 2) + size + b"x" * 20)


# --- commands and frames ------------------------------------------------------------------------------------------------


@given(st.sampled_from([*COMMANDS.values()]).flatmap(messages_of), st.data())
@drawn(300)
def test_mutated_frames(command: ProtoMessage, data: st.DataObject) -> None:
    frame = encode_frame(command)[4:]
    assert decode_frame(frame) == (command, len(frame))
    at = data.draw(st.integers(0, len(frame)))
    until = data.draw(st.integers(at, min(at + 3, len(frame))))
    new = data.draw(st.binary(max_size=4) | st.sampled_from(HOSTILE))
    mutated = frame[:at] + new + frame[until:]
    with suppress(DecodeError):
        _, end = decode_frame(mutated)
        assert end <= len(mutated)
        payload_bounds(mutated, end)


def test_commands_of_unknown_types_are_skipped() -> None:
    for kind in (0, 1, 79, 1 << 20, (1 << 64) - 1):
        assert decode_command(b"\x08" + raw_varint(kind), 0, 1 + len(raw_varint(kind))) is None


PING = b"\x08\x12\x92\x01\x00"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "required field type is missing"),
        (b"\x92\x01\x00", "required field type is missing"),
        (b"\x08\x12", "it has type 18, but no CommandPing"),
        (b"\x08\x12\x9a\x01\x00", "it has type 18, but no CommandPing"),
        (b"\x08\x12\x90\x01\x00", "it has type 18, but no CommandPing"),
        (PING[:-1], "the data ends within a field"),
        (PING[:-1] + b"\x01", "field 18 ends 1 bytes after its message"),
        (PING + b"\x00", "0 is not the tag of a field"),
        (PING + b"\x03", "wire type 3"),
        (PING + b"\x7d..", "a field ends after it"),
        (b"\x08\x0b\x5a\x02\x08\x01", "required field message_permits is missing"),
    ],
)
def test_malformed_commands(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_command(data, 0, len(data))


def test_a_command_in_any_form() -> None:
    ping = decode_command(PING, 0, len(PING))
    forms = [
        PING[2:] + PING[:2],  # the type last
        b"\x9a\x06\x01x" + PING + b"\x9d\x06four",  # unknown fields
        b"\x08\x13" + PING,  # the last type counts
        b"\x08\x92\x00" + PING[2:],  # a type of two bytes that needs one
        PING[:2] + b"\x92\x01\x80\x00",  # a size of two bytes
        PING + b"\x9a\x01\x01x",  # another command, which the type does not name
    ]
    for data in forms:
        assert decode_command(b"--" + data + b"--", 2, 2 + len(data)) == ping


@given(
    st.sampled_from([*COMMANDS.values()]).flatmap(messages_of), st.binary(max_size=3), st.binary(max_size=3)
)
@drawn(300)
def test_commands_are_read_back(command: ProtoMessage, before: bytes, after: bytes) -> None:
    data = encode_command(command)
    assert decode_command(before + data + after, len(before), len(before) + len(data)) == command


def test_frames_whose_sizes_do_not_fit() -> None:
    for frame in (b"", b"\x00", b"\x00\x00\x00"):
        with pytest.raises(DecodeError, match="has no command"):
            decode_frame(frame)
    for size in (6, 1 << 31, (1 << 32) - 1):
        with pytest.raises(DecodeError, match=f"the command of {size} bytes does not fit its frame of 9"):
            decode_frame(struct.pack(">I", size) + PING)
    with pytest.raises(DecodeError, match="type is missing"):
        decode_frame(bytes(4))
    assert decode_frame(struct.pack(">I", 5) + PING + b"rest")[1] == 9

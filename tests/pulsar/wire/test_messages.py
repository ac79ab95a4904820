"""Messages of Pulsar's protocol: any message is read back as it was written, by protobuf's rules for readers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire import commands
from asyncgroup.pulsar.wire.commands import (
    COMMANDS,
    Command,
    CommandAck,
    CommandFlow,
    CommandSubscribe,
    MessageIdData,
)
from asyncgroup.pulsar.wire.compiling import compile_writer
from asyncgroup.pulsar.wire.fields import fields_of
from asyncgroup.pulsar.wire.message import ProtoMessage
from asyncgroup.pulsar.wire.metadata import MessageMetadata, SingleMessageMetadata
from tests.pulsar.wire.strategies import BYTES, CLASSES, drawn, messages_of, raw_varint, signed

EVERY = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def raw_field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return raw_varint(number << 3) + raw_varint(value)
    return raw_varint(number << 3 | 2) + raw_varint(len(value)) + value


UNKNOWN = st.one_of(
    st.builds(raw_field, st.integers(100, (1 << 29) - 1), st.integers(0, (1 << 64) - 1) | BYTES),
    st.builds(lambda number: raw_varint(number << 3 | 1) + b"8 bytes.", st.integers(100, 200)),
    st.builds(lambda number: raw_varint(number << 3 | 5) + b"four", st.integers(100, 200)),
)
"""Encoded fields that no message has."""


def pieces(data: bytes) -> list[bytes]:
    """Return the encoded fields of a message, each with its tag."""
    found, at = [], 0
    while at < len(data):
        start = at
        tag, at = _raw(data, at)
        size, at = _raw(data, at)
        if tag & 7 == 2:
            at += size
        found.append(data[start:at])
    return found


def _raw(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
        if data[at - 1] < 0x80:
            return value, at


@EVERY
def test_a_message_is_read_back_as_it_was_written(cls: type[ProtoMessage]) -> None:
    @given(messages_of(cls), st.binary(max_size=3), st.binary(max_size=3))
    @drawn(60)
    def check(message: ProtoMessage, before: bytes, after: bytes) -> None:
        data = message.encode()
        assert cls.decode(data) == message
        assert cls.decode(bytearray(before + data + after), len(before), len(before) + len(data)) == message

    check()


@EVERY
def test_unknown_fields_are_skipped_anywhere_and_the_order_of_fields_is_free(cls: type[ProtoMessage]) -> None:
    @given(messages_of(cls), st.lists(UNKNOWN, max_size=4), st.randoms(use_true_random=False))
    @drawn(40)
    def check(message: ProtoMessage, unknown: list[bytes], random: Any) -> None:
        known = pieces(message.encode())
        # the elements of a repeated field keep their order
        order = [number for number, _ in enumerate(known)]
        by_tag: dict[int, list[bytes]] = {}
        for piece in known:
            by_tag.setdefault(_raw(piece, 0)[0], []).append(piece)
        random.shuffle(order)
        mixed = [by_tag[_raw(known[number], 0)[0]].pop(0) for number in order]
        for one in unknown:
            mixed.insert(random.randint(0, len(mixed)), one)
        assert cls.decode(b"".join(mixed)) == message

    check()


def test_there_are_classes_with_every_kind_of_field() -> None:
    found = [(field.kind, field.repeated) for cls in CLASSES for field in fields_of(cls)]
    kinds = {"bool", "int32", "int64", "uint32", "uint64", "string", "bytes", "message", "properties"}
    assert {kind for kind, _ in found} == kinds
    assert {("int64", True), ("string", True), ("message", True), ("int32", True)} <= set(found)
    assert len(COMMANDS) >= 38


@EVERY
def test_the_numbers_of_fields_differ_and_a_message_has_the_defaults_of_its_fields(
    cls: type[ProtoMessage],
) -> None:
    fields = fields_of(cls)
    assert all(one.number < next_.number for one, next_ in pairwise(fields))
    data = b"".join(raw_field(f.number, _some(f.kind)) for f in fields if f.required)
    if all(f.message is None for f in fields if f.required):
        message = cls.decode(data)
        for field in fields:
            if not field.required:
                assert getattr(message, field.name) == field.default, field.name
        assert message.encode() == data, "defaults are not written"


def _some(kind: str) -> int | bytes:
    return b"x" if kind in {"string", "bytes"} else 1


def _required(cls: type[ProtoMessage], left_out: str = "") -> bytes:
    """Return the bytes of a message with its required fields, but one."""
    return b"".join(
        raw_field(f.number, _some(f.kind) if f.message is None else _required(f.message))
        for f in fields_of(cls)
        if f.required and f.name != left_out
    )


@EVERY
def test_each_required_field_is_missed(cls: type[ProtoMessage]) -> None:
    for left_out in [field for field in fields_of(cls) if field.required]:
        data = _required(cls, left_out.name)
        with pytest.raises(DecodeError, match=f"{cls.__name__}: required field {left_out.name} is missing"):
            cls.decode(data)


@given(st.lists(signed(64), min_size=1, max_size=5), st.lists(signed(64), max_size=3))
@drawn(100)
def test_repeated_numbers_may_be_packed(packed: list[int], single: list[int]) -> None:
    data = raw_field(1, 7) + raw_field(2, 8) + raw_field(5, b"".join(map(raw_varint, packed)))
    data += b"".join(raw_field(5, number) for number in single)
    assert MessageIdData.decode(data).ack_set == packed + single


def test_a_packed_field_may_be_empty_and_must_end_with_a_number() -> None:
    start = raw_field(1, 7) + raw_field(2, 8)
    assert MessageIdData.decode(start + raw_field(5, b"")).ack_set == ()
    with pytest.raises(DecodeError, match="field ack_set ends within a number"):
        MessageIdData.decode(start + raw_field(5, b"\x80") + raw_field(3, 1))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-1, -1), (0x7FFFFFFF, 0x7FFFFFFF), (0xFFFFFFFF, -1), (0x80000000, -0x80000000), (1 << 40 | 5, 5)],
)
def test_of_an_int32_the_low_half_counts(value: int, expected: int) -> None:
    data = raw_field(1, 7) + raw_field(2, 8) + raw_field(3, value)
    assert MessageIdData.decode(data).partition == expected


def test_of_a_uint32_the_low_half_counts() -> None:
    assert CommandFlow.decode(raw_field(1, 7) + raw_field(2, -1)).message_permits == 0xFFFFFFFF
    assert CommandFlow.decode(raw_field(1, 7) + raw_field(2, 1 << 40 | 5)).message_permits == 5


def test_negative_numbers_have_ten_bytes() -> None:
    assert (
        MessageIdData(ledger_id=1, entry_id=2, partition=-2).encode()[4:]
        == b"\x18\xfe" + b"\xff" * 8 + b"\x01"
    )
    assert MessageIdData(ledger_id=-1, entry_id=2).encode()[:11] == b"\x08" + b"\xff" * 9 + b"\x01"


def test_a_varint_may_be_longer_than_it_needs_to_be() -> None:
    for size in range(1, 10):
        assert MessageIdData.decode(b"\x08\x85" + b"\x80" * (size - 1) + b"\x00\x10\x01").ledger_id == 5
    with pytest.raises(DecodeError, match="longer than ten bytes"):
        MessageIdData.decode(b"\x08\x85" + b"\x80" * 9 + b"\x00\x10\x01")


def test_the_last_of_a_single_field_counts_and_the_last_of_equal_properties() -> None:
    data = raw_field(3, 1) + raw_field(3, 2)
    data += b"".join(raw_field(1, raw_field(1, b"k") + raw_field(2, value)) for value in (b"a", b"b"))
    message = SingleMessageMetadata.decode(data)
    assert (message.payload_size, message.properties) == (2, {"k": "b"})


def test_presence() -> None:
    start = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    assert MessageMetadata.decode(start.encode()).num_messages_in_batch is None
    start.num_messages_in_batch = 1
    assert MessageMetadata.decode(start.encode()).num_messages_in_batch == 1
    start.num_messages_in_batch = 0
    assert MessageMetadata.decode(start.encode()).num_messages_in_batch == 0
    for absent in (None, ""):
        start.partition_key = absent
        assert MessageMetadata.decode(start.encode()).partition_key == absent


@given(st.binary(max_size=40), st.binary(max_size=40))
@drawn(200)
def test_strings_of_any_bytes_survive_a_round_trip(key: bytes, value: bytes) -> None:
    data = raw_field(1, raw_field(1, key) + raw_field(2, value)) + raw_field(2, key) + raw_field(3, 4)
    message = SingleMessageMetadata.decode(data)
    assert message.partition_key is not None
    assert message.partition_key.encode("utf-8", "surrogateescape") == key
    assert message.encode() == data


def test_keys_and_values_of_properties_in_any_form() -> None:
    def read(pair: bytes) -> object:
        return SingleMessageMetadata.decode(raw_field(1, pair) + raw_field(3, 0)).properties

    key, value = raw_field(1, b"k"), raw_field(2, b"v")
    assert read(key + value) == read(value + key) == {"k": "v"}
    assert read(raw_field(9, 5) + key + raw_field(9, b"x") + value + raw_field(9, b"y")) == {"k": "v"}
    assert read(key + value + raw_field(2, b"w")) == {"k": "w"}
    assert read(raw_field(1, b"k" * 200) + raw_field(2, b"v" * 300)) == {"k" * 200: "v" * 300}
    assert read(b"\x0a\x81\x00k\x12\x81\x00v") == {"k": "v"}, "sizes of two bytes that need one"
    for bad in (
        key,
        value,
        b"",
        key + b"\x12\x05v",
        b"\x0a\x7fk",
        key + b"\x12",
        key + value + b"\x0a",
        b"\x0a",
    ):
        with pytest.raises(DecodeError):
            read(bad)


@pytest.mark.parametrize("kind", [0, 1, 2, 5])
def test_a_known_field_of_another_wire_type_is_an_unknown_field(kind: int) -> None:
    body = {0: b"\x05", 1: b"8 bytes.", 2: b"\x01x", 5: b"four"}[kind]
    data = raw_varint(1 << 3 | kind) + body + raw_field(2, 9)
    if kind == 0:
        assert CommandFlow.decode(data).consumer_id == 5
    else:
        with pytest.raises(DecodeError, match="required field consumer_id is missing"):
            CommandFlow.decode(data)
        assert CommandFlow.decode(data + raw_field(1, 6)).consumer_id == 6


ID = {"ledger_id": 1, "entry_id": 2}


@pytest.mark.parametrize(
    ("cls", "fields", "error"),
    [
        (MessageIdData, {"ledger_id": 1 << 64, "entry_id": 1}, ValueError),
        (MessageIdData, {"ledger_id": -(1 << 63) - 1, "entry_id": 1}, ValueError),
        (MessageIdData, {**ID, "partition": 1 << 31}, ValueError),
        (MessageIdData, {**ID, "partition": -(1 << 31) - 1}, ValueError),
        (MessageIdData, {**ID, "ack_set": [1 << 63]}, ValueError),
        (MessageIdData, {**ID, "ack_set": [-(1 << 63) - 1]}, ValueError),
        (MessageIdData, {**ID, "ack_set": ["1"]}, TypeError),
        (MessageIdData, {**ID, "first_chunk_message_id": 5}, TypeError),
        (CommandFlow, {"consumer_id": 1, "message_permits": 1 << 32}, ValueError),
        (CommandFlow, {"consumer_id": 1, "message_permits": -1}, ValueError),
        (CommandFlow, {"consumer_id": None, "message_permits": 1}, TypeError),
        (CommandFlow, {"consumer_id": "1", "message_permits": 1}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1, "partition_key": b"bytes"}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1, "partition_key": 5}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1, "partition_key": "\ud800"}, ValueError),
        (SingleMessageMetadata, {"payload_size": 1, "ordering_key": "text"}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1, "properties": {"a": 5}}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1, "properties": {1: "a"}}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1, "properties": ["a"]}, TypeError),
        (SingleMessageMetadata, {"payload_size": 1.0}, TypeError),
    ],
)
def test_values_that_do_not_fit_are_refused(
    cls: type[ProtoMessage], fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        cls(**fields).encode()


def test_what_is_written_without_a_message_is_what_the_message_writes() -> None:
    write = compile_writer(SingleMessageMetadata)

    @given(messages_of(SingleMessageMetadata))
    @drawn(100)
    def check(message: SingleMessageMetadata) -> None:
        out = bytearray(b"before")
        write(out, **{field.name: getattr(message, field.name) for field in fields_of(SingleMessageMetadata)})
        assert out == b"before" + message.encode()

    check()


def test_a_class_is_compiled_once() -> None:
    ack = CommandAck(consumer_id=1, ack_type=0, message_id=[MessageIdData(ledger_id=1, entry_id=2)])
    assert CommandAck.decode(ack.encode()) == ack
    assert ack.encode() == bytes.fromhex("080110001a0408011002")
    subscribe = CommandSubscribe(
        topic="t", subscription="s", sub_type=3, consumer_id=4, request_id=5, durable=False
    )
    assert subscribe.encode() == bytes.fromhex("0a01741201731803200428054000")


def test_every_command_is_found_by_its_type() -> None:
    """Also one of a file that is added to the package."""
    exported = [getattr(commands, name) for name in commands.__all__]
    known = {each for each in exported if isinstance(each, type) and issubclass(each, Command)}
    assert {*COMMANDS.values()} == known - {Command}
    assert all(number == cls.TYPE for number, cls in COMMANDS.items())

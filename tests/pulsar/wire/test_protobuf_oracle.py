"""Google's protobuf reads what is written here, and the other way round; also of malformed bytes it reads the same."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError
from asyncgroup.pulsar.wire.commands import MessageIdData
from asyncgroup.pulsar.wire.fields import fields_of
from asyncgroup.pulsar.wire.message import ProtoMessage
from tests.pulsar.wire.protobuf_oracle import ProtobufError, oracle_class, to_oracle, values_of
from tests.pulsar.wire.strategies import CLASSES, drawn, messages_of
from tests.pulsar.wire.test_malformed import HOSTILE

EVERY = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@EVERY
def test_protobuf_reads_what_is_written_and_writes_what_is_read(cls: type[ProtoMessage]) -> None:
    @given(messages_of(cls))
    @drawn(60)
    def check(message: ProtoMessage) -> None:
        expected = to_oracle(message)
        data = message.encode()
        found = oracle_class(cls).FromString(data)
        assert found == expected
        assert found.IsInitialized()
        assert values_of(cls, found) == message
        written = expected.SerializeToString()
        assert cls.decode(written) == message
        assert written == data, "both write fields in the order of their numbers"

    check()


@EVERY
def test_protobuf_has_the_same_defaults(cls: type[ProtoMessage]) -> None:
    empty = oracle_class(cls)()
    for field in fields_of(cls):
        if not field.repeated and not field.required and field.default is not None:
            assert getattr(empty, field.name) == field.default


SIMPLE = [
    cls for cls in CLASSES if all(field.repeated for field in fields_of(cls) if field.message is not None)
]
"""Classes without single fields that are messages: of several values protobuf merges such fields, Pulsar takes the last."""


@given(st.sampled_from(SIMPLE).flatmap(lambda cls: st.tuples(st.just(cls), messages_of(cls, 0))), st.data())
@drawn(600)
def test_protobuf_reads_the_same_from_mutated_bytes(
    case: tuple[type[ProtoMessage], ProtoMessage], data: st.DataObject
) -> None:
    cls, message = case
    encoded = message.encode()
    at = data.draw(st.integers(0, len(encoded)))
    until = data.draw(st.integers(at, min(at + 3, len(encoded))))
    mutated = encoded[:at] + data.draw(st.binary(max_size=4) | st.sampled_from(HOSTILE)) + encoded[until:]
    expected = read_by_protobuf(cls, mutated)
    found, reason = read_here(cls, mutated)
    if "is not the tag of a field" not in reason:  # protobuf reads groups, and field 0 here and there
        assert found == expected


def read_here(cls: type[ProtoMessage], data: bytes) -> tuple[ProtoMessage | None, str]:
    try:
        return cls.decode(data), ""
    except DecodeError as error:
        return None, str(error)


def read_by_protobuf(cls: type[ProtoMessage], data: bytes) -> ProtoMessage | None:
    message = oracle_class(cls, raw=True)()
    try:
        message.ParseFromString(data)
    except ProtobufError:
        return None
    return values_of(cls, message) if message.IsInitialized() else None


def test_there_are_simple_classes() -> None:
    assert len(SIMPLE) > 30
    assert MessageIdData not in SIMPLE

"""Hypothesis strategies for the messages of Pulsar's protocol, derived from their fields."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import settings, strategies as st

from asyncgroup.pulsar.wire import metadata
from asyncgroup.pulsar.wire.commands import (
    COMMANDS,
    AuthData,
    FeatureFlags,
    IntRange,
    KeySharedMeta,
    MessageIdData,
    Schema,
    SubscriptionOfTxn,
)
from asyncgroup.pulsar.wire.fields import FieldOfMessage, fields_of
from asyncgroup.pulsar.wire.message import ProtoMessage
from tests.profiles import examples
from tests.wire.strategies import few_examples

__all__ = ["BYTES", "CLASSES", "TEXTS", "drawn", "messages_of", "raw_varint", "signed", "unsigned"]

CLASSES: list[type[ProtoMessage]] = [
    *COMMANDS.values(),
    AuthData,
    FeatureFlags,
    IntRange,
    KeySharedMeta,
    MessageIdData,
    Schema,
    SubscriptionOfTxn,
    metadata.BrokerEntryMetadata,
    metadata.EncryptionKeys,
    metadata.MessageMetadata,
    metadata.SingleMessageMetadata,
]
"""Every class of messages."""

Values = st.SearchStrategy[Any]


def signed(bits: int) -> Values:
    """Return integers of so many bits, more often those where a varint becomes longer."""
    edges = [sign * ((1 << at) + off) for at in range(0, bits - 1, 7) for off in (-1, 0) for sign in (1, -1)]
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) | st.sampled_from(edges)


def unsigned(bits: int) -> Values:
    """Return integers without a sign, as `signed` does."""
    edges = [(1 << at) + off for at in range(0, bits, 7) for off in (-1, 0)]
    return st.integers(0, (1 << bits) - 1) | st.sampled_from(edges)


# some are long enough for sizes of two and three bytes
_LONG = ["", "x" * 122, "x" * 123, "é" * 64, "x" * 127, "x" * 128, "x" * 300, "x" * 16_384]
TEXTS = st.text(max_size=6) | st.sampled_from(_LONG)
BYTES = st.binary(max_size=6) | st.sampled_from([text.encode() for text in _LONG])
_SCALARS: dict[str, Values] = {
    "bool": st.booleans(),
    "int32": signed(32),
    "int64": signed(64),
    "uint32": unsigned(32),
    "uint64": unsigned(64),
    "string": TEXTS,
    "bytes": BYTES,
    "properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
}


def drawn(count: int) -> settings:
    """Return settings for a property with so many examples, of which the quick profile has a part."""
    return few_examples(examples(count))


def _value_of(field: FieldOfMessage, depth: int = 2) -> Values:
    if field.kind == "properties":
        return _SCALARS["properties"]
    one = messages_of(field.message, depth - 1) if field.message is not None else _SCALARS[field.kind]
    return st.lists(one, max_size=3) if field.repeated else one


@cache
def messages_of(cls: type[ProtoMessage], depth: int = 2) -> Values:
    """Return messages of a class with any of its fields; those within others have a few levels."""
    required, optional = {}, {}
    for field in fields_of(cls):
        if field.message is cls and depth <= 0:
            continue
        (required if field.required else optional)[field.name] = _value_of(field, depth)
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: _of(cls, given))


def _of(cls: type[ProtoMessage], given: dict[str, Any]) -> ProtoMessage:
    # an empty list would be read as the default, an empty tuple
    return cls(**{name: value for name, value in given.items() if value != []})


def raw_varint(value: int) -> bytes:
    """Return a varint; written without the code that is tested."""
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | 0x80 if value else low)
        if not value:
            return bytes(out)

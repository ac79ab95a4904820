"""Hypothesis strategies for messages, derived from the schemas: all fields of a version, no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, settings, strategies as st

from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec, message_spec
from asyncgroup.wire.tables import TABLES

ALL_VERSIONS = [
    (name, version)
    for name in TABLES
    for version in range(message_spec(name).versions.low, message_spec(name).versions.high + 1)
]
"""Every message in every version."""

Values = st.SearchStrategy[Any]
NarrowedValues = Mapping[tuple[str, str], Values]
"""Strategies with fewer values than Kafka's type allows, by names of struct and field."""


def few_examples(count: int) -> settings:
    """Return settings for a property that is checked for each message and version, of which the quick profile has a part."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def _signed(bits: int) -> Values:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


# some are long enough for lengths of two varint bytes
TEXTS = st.text(max_size=6) | st.sampled_from(["", "é" * 63, "x" * 127, "x" * 300])
BYTES = st.binary(max_size=6) | st.sampled_from([b"", b"\x00" * 126, b"\xff" * 127, b"x" * 20_000])
SCALARS: dict[str, Values] = {
    "bool": st.booleans(),
    "int8": _signed(8),
    "int16": _signed(16),
    "uint16": st.integers(0, 0xFFFF),
    "int32": _signed(32),
    "uint32": st.integers(0, 0xFFFFFFFF),
    "int64": _signed(64),
    "float64": st.floats(allow_nan=False),
    "string": TEXTS,
    "bytes": BYTES,
    "records": BYTES,
    "uuid": st.just(m.NO_UUID) | st.integers(1, (1 << 128) - 1).map(lambda number: UUID(int=number)),
}


def random_messages(
    name: str, version: int, narrowed: NarrowedValues | None = None
) -> st.SearchStrategy[Message]:
    """Return a strategy for messages that `version` can represent."""
    spec = message_spec(name)
    return _structs(spec, spec.top, version, narrowed or {})


def _structs(
    spec: MessageSpec, struct: StructSpec, version: int, narrowed: NarrowedValues
) -> st.SearchStrategy[Message]:
    top = getattr(m, spec.name)
    cls = top if struct is spec.top else getattr(top, struct.name)
    fields = {
        field.attribute: _values(spec, struct, field, version, narrowed)
        for field in struct.fields
        if version in field.versions
    }
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


def _values(
    spec: MessageSpec, struct: StructSpec, field: FieldSpec, version: int, narrowed: NarrowedValues
) -> Values:
    if field.element in spec.structs:
        one: Values = _structs(spec, spec.structs[field.element], version, narrowed)
    else:
        one = narrowed.get((struct.name, field.name), SCALARS[field.element])
    if field.is_array:
        one = st.lists(one, max_size=2 if field.element in spec.structs else 4)
    return st.none() | one if version in field.nullable else one

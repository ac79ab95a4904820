"""kio as the oracle for encoded bytes: its class for each message and version, and conversion of our messages to it.

kio's fields are in the order of Kafka's specification, as ours are, so they are matched by position.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import TZAware

from asyncgroup.wire import messages as m
from asyncgroup.wire.message import Message
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec, message_spec, snake_case
from asyncgroup.wire.tables import TABLES
from tests.wire.strategies import Values, random_messages

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_10000 = 253_402_300_800


class KioType(NamedTuple):
    """A kio type for a number, such as a timedelta: the values that it can represent, and the conversion to it."""

    values: Values
    convert: Callable[[int], Any]


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


_DATETIME = "datetime_i64, never null"

KIO_TYPES = {
    "error_code": KioType(st.sampled_from([code.value for code in ErrorCode]), ErrorCode),
    "timedelta_i32": KioType(st.integers(-(1 << 31), (1 << 31) - 1), _milliseconds),
    # larger values lose milliseconds in kio's floating-point seconds
    "timedelta_i64": KioType(st.integers(-(1 << 43), 1 << 43), _milliseconds),
    "datetime_i64": KioType(
        # whole seconds, because kio's floating-point seconds lose milliseconds
        st.just(-1) | st.integers(0, YEAR_10000 - 1).map(lambda seconds: seconds * 1000),
        lambda value: None if value == -1 else EPOCH + _milliseconds(value),
    ),
    _DATETIME: KioType(
        st.integers(0, YEAR_10000 - 1).map(lambda seconds: seconds * 1000),
        lambda value: EPOCH + _milliseconds(value),
    ),
}
"""Types with restricted values; for all others kio allows every value of Kafka's type."""


def _kio_name(name: str) -> tuple[str, EntityType]:
    kind = message_spec(name).kind
    if kind in ("request", "response"):
        return snake_case(name.removesuffix(kind.capitalize())), EntityType[kind]
    return snake_case(name), EntityType.header if kind == "header" else EntityType.data


def kio_versions(name: str) -> list[int]:
    """Return the versions of a message that kio supports."""
    key, kind = _kio_name(name)
    return sorted(version for version, kinds in schema_name_map.get(key, {}).items() if kind in kinds)


KNOWN_TO_BOTH = [
    (name, version)
    for name in TABLES
    for version in kio_versions(name)
    if version in message_spec(name).versions
]


class KioStruct(NamedTuple):
    """A struct in kio: its class, our fields, and kio's names and type names for them."""

    cls: Any
    ours: list[FieldSpec]
    names: dict[str, str]
    types: dict[str, str]


class Oracle:
    """kio's class for one message in one version."""

    def __init__(self, name: str, version: int) -> None:
        key, kind = _kio_name(name)
        self.version = version
        self.spec: MessageSpec = message_spec(name)
        self.cls: Any = load_entity_schema(key, version, kind)
        self.ours: type[Message] = getattr(m, name)
        self._read = entity_reader(self.cls)
        self._write = entity_writer(self.cls)
        self._structs: dict[str, KioStruct] = {}
        self._match(self.spec.top, self.cls)

    def _match(self, struct: StructSpec, cls: Any) -> None:
        ours = [field for field in struct.fields if self.version in field.versions]
        names, types = {}, {}
        for field, theirs in zip(ours, fields(cls), strict=True):
            # kio omits the unit in names of timedelta fields
            assert theirs.name in (field.attribute, field.attribute.removesuffix("_ms"))
            names[field.name] = theirs.name
            if field.element in self.spec.structs:
                self._match(self.spec.structs[field.element], _element_class(theirs.type))
            else:
                types[field.name] = theirs.metadata["kafka_type"]
                if theirs.type is TZAware:
                    types[field.name] = _DATETIME
        self._structs[struct.name] = KioStruct(cls, ours, names, types)

    def messages(self) -> st.SearchStrategy[Message]:
        """Return a strategy for our messages, with values that kio can represent."""
        narrowed = {
            (struct, field): KIO_TYPES[kafka_type].values
            for struct, theirs in self._structs.items()
            for field, kafka_type in theirs.types.items()
            if kafka_type in KIO_TYPES
        }
        return random_messages(self.spec.name, self.version, narrowed)

    def encode(self, obj: Any) -> bytes:
        """Encode a kio object with kio."""
        with io.BytesIO() as buffer:
            self._write(buffer, obj)
            return buffer.getvalue()

    def decode(self, data: bytes) -> Any:
        """Decode with kio; fails if bytes are left over."""
        obj, size = self._read(data, 0)
        assert size == len(data)
        return obj

    def convert(self, message: Message) -> Any:
        """Convert our message to a kio object."""
        return self._convert(self._structs[self.spec.name], message)

    def _convert(self, struct: KioStruct, message: Message) -> Any:
        values = {}
        for field in struct.ours:
            value = getattr(message, field.attribute)
            if value is not None and field.is_array:
                value = tuple(self._value(struct, field, part) for part in value)
            elif value is not None:
                value = self._value(struct, field, value)
            values[struct.names[field.name]] = value
        return struct.cls(**values)

    def _value(self, struct: KioStruct, field: FieldSpec, value: Any) -> Any:
        if field.element in self.spec.structs:
            return self._convert(self._structs[field.element], value)
        kafka_type = struct.types[field.name]
        if kafka_type in KIO_TYPES:
            return KIO_TYPES[kafka_type].convert(value)
        return None if value == m.NO_UUID else value


def _element_class(annotation: Any) -> Any:
    """Return `X` of `X`, `X | None`, `tuple[X, ...]` and `tuple[X, ...] | None`."""
    arguments = [part for part in getattr(annotation, "__args__", ()) if part not in (type(None), ...)]
    return _element_class(arguments[0]) if arguments else annotation

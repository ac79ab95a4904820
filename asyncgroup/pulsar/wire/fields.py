"""Fields of the messages of Pulsar's protocol: the messages are dataclasses whose annotations are the field tables.

A field is `name: Annotated[type, Field(number, kind)]`. Without a default it is required, as in proto2; a field whose
presence matters has the default None. Functions that encode and decode are compiled from the fields when a class is
first used (`asyncgroup.pulsar.wire.compiling`). Numbers and names are those of Pulsar's `PulsarApi.proto`.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

__all__ = [
    "BOOL",
    "BYTES",
    "INT32",
    "INT64",
    "MESSAGE",
    "PROPERTIES",
    "STRING",
    "UINT32",
    "UINT64",
    "Field",
    "FieldOfMessage",
    "fields_of",
]

BOOL: Final = "bool"
INT32: Final = "int32"
"""Also an enum, whose unknown values are kept."""
INT64: Final = "int64"
UINT32: Final = "uint32"
UINT64: Final = "uint64"
STRING: Final = "string"
"""UTF-8; other bytes, which some clients write, become lone surrogates and are written back as they were."""
BYTES: Final = "bytes"
MESSAGE: Final = "message"
PROPERTIES: Final = "properties"
"""Repeated KeyValue messages, as a dict; of equal keys the last one counts, as in Java's client."""


class Field(NamedTuple):
    """What an annotation says about a field."""

    number: int
    kind: str
    repeated: bool = False


class FieldOfMessage(NamedTuple):
    """A field of a class, for the compiler."""

    name: str
    number: int
    kind: str
    repeated: bool
    required: bool
    default: Any
    message: type[Any] | None
    """The class of a field that is a message."""


def fields_of(cls: type[Any]) -> list[FieldOfMessage]:
    """Return the fields of a message in the order of their numbers."""
    hints = get_type_hints(cls, include_extras=True)
    found = [_field_of(each.name, hints[each.name], each) for each in fields(cls)]
    return sorted(found, key=lambda field: field.number)


def _field_of(name: str, hint: Any, given: Any) -> FieldOfMessage:
    assert get_origin(hint) is Annotated, name
    kind, (field,) = get_args(hint)[0], hint.__metadata__
    default = given.default
    if default is MISSING and given.default_factory is not MISSING:
        default = given.default_factory()
    inner = [one for one in get_args(kind) or (kind,) if isinstance(one, type) and one is not NoneType]
    return FieldOfMessage(
        name,
        field.number,
        field.kind,
        field.repeated or field.kind == PROPERTIES,
        default is MISSING,
        None if default is MISSING else default,
        inner[0] if field.kind == MESSAGE else None,
    )

"""Commands for the schemas of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from asyncgroup.pulsar.wire.commands.command import Command
from asyncgroup.pulsar.wire.fields import BYTES, INT32, MESSAGE, PROPERTIES, STRING, UINT64, Field
from asyncgroup.pulsar.wire.message import ProtoMessage

__all__ = [
    "CommandGetOrCreateSchema",
    "CommandGetOrCreateSchemaResponse",
    "CommandGetSchema",
    "CommandGetSchemaResponse",
    "Schema",
]


@dataclass(slots=True, kw_only=True)
class Schema(ProtoMessage):
    """What values are; bytes without further meaning have none."""

    name: Annotated[str, Field(1, STRING)]
    schema_data: Annotated[bytes, Field(3, BYTES)]
    type: Annotated[int, Field(4, INT32)]
    properties: Annotated[Mapping[str, str], Field(5, PROPERTIES)] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CommandGetSchema(Command):
    """Asks for the schema of a topic."""

    TYPE: ClassVar = 34
    request_id: Annotated[int, Field(1, UINT64)]
    topic: Annotated[str, Field(2, STRING)]
    schema_version: Annotated[bytes | None, Field(3, BYTES)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetSchemaResponse(Command):
    """The answer to CommandGetSchema."""

    TYPE: ClassVar = 35
    request_id: Annotated[int, Field(1, UINT64)]
    error_code: Annotated[int | None, Field(2, INT32)] = None
    error_message: Annotated[str | None, Field(3, STRING)] = None
    schema: Annotated[Schema | None, Field(4, MESSAGE)] = None
    schema_version: Annotated[bytes | None, Field(5, BYTES)] = None


@dataclass(slots=True, kw_only=True)
class CommandGetOrCreateSchema(Command):
    """Asks for the version of a schema at a topic, which may be stored with it."""

    TYPE: ClassVar = 39
    request_id: Annotated[int, Field(1, UINT64)]
    topic: Annotated[str, Field(2, STRING)]
    schema: Annotated[Schema, Field(3, MESSAGE)]


@dataclass(slots=True, kw_only=True)
class CommandGetOrCreateSchemaResponse(Command):
    """The answer to CommandGetOrCreateSchema."""

    TYPE: ClassVar = 40
    request_id: Annotated[int, Field(1, UINT64)]
    error_code: Annotated[int | None, Field(2, INT32)] = None
    error_message: Annotated[str | None, Field(3, STRING)] = None
    schema_version: Annotated[bytes | None, Field(4, BYTES)] = None

"""SchemaRegistry: the schemas of topics, with their versions (Pulsar's `SchemaRegistryServiceImpl`). Pure state.

A version is a number from 0 on; on the wire it is 8 bytes. After a schema was deleted, those before it do not count any more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final

from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.schemas.avro_compatibility import can_read, is_avro

__all__ = [
    "SchemaKind",
    "SchemaRegistry",
    "SchemaStrategy",
    "StoredSchema",
    "TopicSchema",
    "check_schema",
    "version_bytes",
]


class SchemaKind(IntEnum):
    """The type of a schema (`Schema.Type`)."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21


class SchemaStrategy(Enum):
    """Which schemas may follow one another (`SchemaCompatibilityStrategy`)."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether a schema is compared with all before it."""
        return self.name.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether what was written with the former schema has to be readable with the new one."""
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether what is written with the new schema has to be readable with the former one."""
        return self.name.startswith(("FORWARD", "FULL"))


_STRUCTS: Final = (SchemaKind.AVRO, SchemaKind.JSON, SchemaKind.PROTOBUF)
"""Those whose data is a schema of Avro."""

_PRIMITIVES: Final = frozenset(SchemaKind) - {
    *_STRUCTS,
    SchemaKind.NONE,
    SchemaKind.STRING,
    SchemaKind.KEY_VALUE,
    SchemaKind.PROTOBUF_NATIVE,
    SchemaKind.AUTO_CONSUME,
}
"""Those without data."""

_OF_CONSUMERS: Final = {
    SchemaStrategy.BACKWARD: SchemaStrategy.BACKWARD,
    SchemaStrategy.FORWARD: SchemaStrategy.BACKWARD,
    SchemaStrategy.FORWARD_TRANSITIVE: SchemaStrategy.BACKWARD,
    SchemaStrategy.FULL: SchemaStrategy.BACKWARD,
}
"""How the schema of a consumer is compared (`checkConsumerCompatibility`); others: as that of a producer."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A schema."""

    kind: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind_name(self) -> str:
        """Its type in texts, and in the admin API."""
        return SchemaKind(self.kind).name if self.kind in SchemaKind.__members__.values() else "NONE"


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A schema with its version; None is that it was deleted."""

    version: int
    schema: TopicSchema | None
    time: int
    """ms since 1970."""


def check_schema(schema: TopicSchema) -> None:
    """Raise ServerFailure for data that is no schema of its type (Pulsar's `SchemaDataValidator`)."""
    if schema.kind in _PRIMITIVES:
        is_valid = not schema.data
    elif schema.kind in _STRUCTS:
        is_valid = _is_avro(_parse(schema.data))
    else:
        return
    if not is_valid:
        raise ServerFailure(
            ServerError.INCOMPATIBLE_SCHEMA, f"Invalid schema definition data for {schema.kind_name} schema"
        )


def _is_avro(parsed: Any) -> bool:
    try:
        return is_avro(parsed)
    except RecursionError:
        return False


def version_bytes(version: int) -> bytes:
    """Return a version as it is on the wire (`LongSchemaVersion`)."""
    return version.to_bytes(8, "big")


class SchemaRegistry:
    """The schemas of all topics. `now` returns the time of day in ms."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._stored: defaultdict[tuple[str, str], list[StoredSchema]] = defaultdict(list)

    def __repr__(self) -> str:
        return f"<SchemaRegistry of {len(self._stored)} topics>"

    def find(self, name: TopicName, version: int | None = None) -> StoredSchema | None:
        """Return the last schema of a topic, or one by its version; None if it has none, or it was deleted."""
        current = self.current(name)
        if version is None:
            return current[-1] if current else None
        return next((each for each in current if each.version == version), None)

    def current(self, name: TopicName) -> list[StoredSchema]:
        """Return the schemas of a topic, since it was deleted."""
        found: list[StoredSchema] = []
        for each in self._stored.get(_place(name), ()):
            found = [] if each.schema is None else [*found, each]
        return found

    def version_of(self, name: TopicName, schema: TopicSchema) -> int | None:
        """Return the version of a schema; None if it is not stored."""
        return next(
            (
                each.version
                for each in self.current(name)
                if each.schema is not None
                and (each.schema.data, each.schema.kind) == (schema.data, schema.kind)
            ),
            None,
        )

    def put(self, name: TopicName, schema: TopicSchema, strategy: SchemaStrategy) -> int:
        """Store a schema, unless it is stored already; return its version. Raises ServerFailure if it is not compatible."""
        check_schema(schema)
        known = self.version_of(name, schema)
        if known is not None:
            return known
        self.check(name, schema, strategy)
        return self._append(name, schema)

    def check(self, name: TopicName, schema: TopicSchema, strategy: SchemaStrategy) -> None:
        """Raise ServerFailure if a schema may not follow those of a topic, or is none."""
        check_schema(schema)
        stored = self.current(name)
        for each in stored if strategy.is_transitive else stored[-1:]:
            assert each.schema is not None
            _check_pair(each.schema, schema, strategy)

    def check_consumer(self, name: TopicName, schema: TopicSchema, strategy: SchemaStrategy) -> None:
        """Raise ServerFailure if a consumer with a schema cannot read a topic."""
        if not self.current(name):
            raise ServerFailure(ServerError.INCOMPATIBLE_SCHEMA, "Topic does not have schema to check")
        self.check(name, schema, _OF_CONSUMERS.get(strategy, strategy))

    def delete(self, name: TopicName) -> int:
        """Delete the schema of a topic; return the version of the deletion."""
        return self._append(name, None)

    def _append(self, name: TopicName, schema: TopicSchema | None) -> int:
        stored = self._stored[_place(name)]
        stored.append(StoredSchema(len(stored), schema, self._now()))
        return len(stored) - 1


def _place(name: TopicName) -> tuple[str, str]:
    """Return where the schemas of a topic are: its partitions share them."""
    return name.namespace_name, name.whole.local_name


def _check_pair(former: TopicSchema, new: TopicSchema, strategy: SchemaStrategy) -> None:
    if former.kind != new.kind:
        raise ServerFailure(
            ServerError.INCOMPATIBLE_SCHEMA,
            f"Incompatible schema: exists schema type {former.kind_name}, new schema type {new.kind_name}",
        )
    if former.data == new.data or strategy is SchemaStrategy.ALWAYS_COMPATIBLE:
        return
    if strategy is SchemaStrategy.ALWAYS_INCOMPATIBLE:
        raise ServerFailure(ServerError.INCOMPATIBLE_SCHEMA, "no schema may follow another one")
    if new.kind not in _STRUCTS:
        return  # others are not compared (`SchemaCompatibilityCheck.DEFAULT`)
    old_type, new_type = _parse(former.data), _parse(new.data)
    if strategy.new_reads_old and not _reads(new_type, old_type):
        raise ServerFailure(ServerError.INCOMPATIBLE_SCHEMA, "Unable to read schema with the new one")
    if strategy.old_reads_new and not _reads(old_type, new_type):
        raise ServerFailure(
            ServerError.INCOMPATIBLE_SCHEMA, "Unable to read the new schema with the former one"
        )


def _reads(reader: Any, writer: Any) -> bool:
    """Whether a reader's schema reads all data of a writer's. Raises ServerFailure if one of them is JSON, and no schema of Avro."""
    try:
        return can_read(reader, writer)
    except (LookupError, TypeError, AttributeError, RecursionError):
        raise ServerFailure(
            ServerError.INCOMPATIBLE_SCHEMA, "Invalid schema definition data for AVRO schema"
        ) from None


def _parse(data: bytes) -> Any:
    """Return a schema in Avro's JSON; None if it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None

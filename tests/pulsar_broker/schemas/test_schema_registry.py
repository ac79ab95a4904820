"""The schemas of topics: versions, compatibility, and the commands that ask for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncgroup.errors import ProtocolError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.requests.schema_requests import SchemaCommands
from asyncgroup.pulsar_broker.schemas.avro_compatibility import can_read, is_avro
from asyncgroup.pulsar_broker.schemas.schema_registry import (
    SchemaKind,
    SchemaRegistry,
    SchemaStrategy,
    TopicSchema,
    version_bytes,
)
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces

TOPIC = TopicName.parse("t")


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    made = [each if isinstance(each, dict) else {"name": each, "type": "int"} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def optional(name: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", "int"], "default": None}


def avro(*fields: Any) -> TopicSchema:
    return TopicSchema(SchemaKind.AVRO, json.dumps(record(*fields)).encode())


def refusal(strategy: SchemaStrategy, *schemas: TopicSchema) -> ServerFailure:
    registry = SchemaRegistry(lambda: 0)
    for schema in schemas[:-1]:
        registry.put(TOPIC, schema, SchemaStrategy.ALWAYS_COMPATIBLE)
    with pytest.raises(ServerFailure) as raised:
        registry.put(TOPIC, schemas[-1], strategy)
    assert raised.value.code is ServerError.INCOMPATIBLE_SCHEMA
    return raised.value


def test_versions() -> None:
    registry = SchemaRegistry(lambda: 7)
    assert registry.find(TOPIC) is None
    first, second = avro("a"), avro("a", optional("b"))
    assert [registry.put(TOPIC, each, SchemaStrategy.FULL) for each in (first, second, first)] == [0, 1, 0]
    assert registry.put(TOPIC.of_partition(3), second, SchemaStrategy.FULL) == 1, "partitions share them"
    found = registry.find(TOPIC)
    assert found is not None
    assert (found.version, found.schema, found.time) == (1, second, 7)
    assert [registry.find(TOPIC, each) is None for each in (0, 1, 2, -1)] == [False, False, True, True]
    assert registry.delete(TOPIC) == 2
    assert [registry.find(TOPIC, each) for each in (None, 0, 1, 2)] == [None] * 4
    assert registry.current(TOPIC) == []
    assert registry.put(TOPIC, first, SchemaStrategy.FULL) == 3
    assert version_bytes(3) == bytes(7) + b"\x03"


def test_strategies() -> None:
    plain, more, fewer = avro("a", "b"), avro("a", "b", "c"), avro("a")
    registry = SchemaRegistry(lambda: 0)
    assert registry.put(TOPIC, plain, SchemaStrategy.FULL) == 0
    assert registry.put(TOPIC, more, SchemaStrategy.FORWARD) == 1, "the old one ignores the new field"
    assert registry.put(TOPIC, fewer, SchemaStrategy.BACKWARD) == 2
    refusal(SchemaStrategy.BACKWARD, plain, more)
    refusal(SchemaStrategy.FORWARD, plain, fewer)
    refusal(SchemaStrategy.FULL, plain, fewer)
    refusal(SchemaStrategy.BACKWARD_TRANSITIVE, avro("a"), avro("a", "b"), avro("b"))
    refusal(SchemaStrategy.ALWAYS_INCOMPATIBLE, plain, more)
    text = TopicSchema(SchemaKind.STRING, b"")
    failure = refusal(SchemaStrategy.ALWAYS_COMPATIBLE, plain, text)
    assert str(failure).endswith("exists schema type AVRO, new schema type STRING")
    other = TopicSchema(SchemaKind.PROTOBUF_NATIVE, b"\x00"), TopicSchema(SchemaKind.PROTOBUF_NATIVE, b"\x01")
    assert [registry.put(TopicName.parse("o"), each, SchemaStrategy.FULL) for each in other] == [0, 1]


def test_a_consumer_reads_what_its_schema_can() -> None:
    registry = SchemaRegistry(lambda: 0)
    with pytest.raises(ServerFailure, match="does not have schema"):
        registry.check_consumer(TOPIC, avro("a"), SchemaStrategy.FULL)
    registry.put(TOPIC, avro("a", "b"), SchemaStrategy.FULL)
    registry.check_consumer(TOPIC, avro("a"), SchemaStrategy.FULL)
    with pytest.raises(ServerFailure, match="Unable to read"):
        registry.check_consumer(TOPIC, avro("c"), SchemaStrategy.FORWARD)


NODE = {
    "type": "record",
    "name": "Node",
    "namespace": "n",
    "fields": [{"name": "next", "type": ["null", "n.Node"]}],
}
LONGER = {**NODE, "fields": [*NODE["fields"], {"name": "x", "type": "int", "default": 0}]}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("int", "int", True),
        ("long", "int", True),
        ("int", "long", False),
        ("string", "bytes", True),
        (["null", "string"], "string", True),
        ("string", ["null", "string"], False),
        (["null", "double"], ["null", "int"], True),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        ({"type": "string", "avro.java.string": "String"}, "string", True),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "enum", "name": "E", "symbols": ["B"]}, True),
        ({"type": "enum", "name": "E", "symbols": ["B"]}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}, True),
        ({"type": "enum", "name": "E", "symbols": ["B"]}, {"type": "enum", "name": "F", "symbols": ["B"]}, False),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, False),
        (record("a"), record("a", name="S"), True),
        (record({"name": "b", "aliases": ["a"], "type": "int"}), record("a"), True),
        (record({"name": "a", "type": record("x", name="I")}), record({"name": "a", "type": record(name="I")}), False),
        (LONGER, NODE, True),
        (NODE, LONGER, True),
    ],
)  # fmt: skip
def test_avro(reader: Any, writer: Any, *, expected: bool) -> None:
    assert can_read(reader, writer) is expected


# --- commands ---------------------------------------------------------------------------------------------------------


class Client:
    """A connection that keeps the answers."""

    def __init__(self) -> None:
        self.producers: dict[int, Any] = {}
        self.consumers: dict[int, Any] = {}
        self.answers: list[Any] = []

    def send(self, command: c.Command, payload: bytes = b"") -> None:
        raise AssertionError((command, payload))

    def reply(self, request: c.Command, answer: c.Command) -> None:
        self.answers.append(answer)


class Scene:
    def __init__(self) -> None:
        self.namespaces = Namespaces(Timing(lambda: 0, lambda *_: None, lambda _: None))
        self.namespaces.create(TOPIC)
        self.topic = self.namespaces.topic(TOPIC)
        self.schemas = SchemaCommands(self.namespaces)

    def ask(self, command: c.Command) -> Any:
        client = Client()
        self.schemas.table[type(command)](client, command)
        [answer] = client.answers
        return answer

    def get(self, version: bytes | None = None, topic: str = "t") -> Any:
        return self.ask(c.CommandGetSchema(request_id=5, topic=topic, schema_version=version))


TEXT = c.Schema(name="public/default/t", schema_data=b"", type=SchemaKind.STRING, properties={"k": "v"})


def test_a_schema_is_found_by_its_version() -> None:
    scene = Scene()
    assert scene.get().error_code == ServerError.TOPIC_NOT_FOUND
    version = scene.schemas.of_producer(scene.topic, TEXT)
    assert version == version_bytes(0)
    for asked in (None, version):
        found = scene.get(asked, "persistent://public/default/t-partition-1")
        assert (found.request_id, found.schema, found.schema_version) == (5, TEXT, version)
    assert scene.get(version_bytes(1)).error_code == ServerError.TOPIC_NOT_FOUND
    with pytest.raises(
        ProtocolError, match="a version of 1 bytes"
    ):  # the connection ends, as at Apache Pulsar
        scene.get(b"\x00")
    assert scene.get(b"").error_code == ServerError.INCOMPATIBLE_SCHEMA
    assert scene.get(topic="x://t").error_code == ServerError.INVALID_TOPIC_NAME


def test_a_schema_is_stored_on_request() -> None:
    scene = Scene()

    def create(schema: c.Schema, topic: str = "t") -> Any:
        return scene.ask(c.CommandGetOrCreateSchema(request_id=6, topic=topic, schema=schema))

    assert create(TEXT).schema_version == version_bytes(0)
    assert create(TEXT).schema_version == version_bytes(0)
    number = c.Schema(name="", schema_data=b"", type=SchemaKind.INT8)
    assert create(number).error_code == ServerError.INCOMPATIBLE_SCHEMA
    assert create(TEXT, "other").error_code == ServerError.TOPIC_NOT_FOUND


def test_producers_without_a_schema() -> None:
    scene = Scene()
    assert scene.schemas.of_producer(scene.topic, None) == b""
    scene.topic.policies.namespace.requires_schemas = True
    assert scene.schemas.of_producer(scene.topic, None) == b"", "the topic has none"
    scene.schemas.of_producer(scene.topic, TEXT)
    with pytest.raises(ServerFailure, match="SchemaValidationEnforced"):
        scene.schemas.of_producer(scene.topic, None)


def test_consumers() -> None:
    scene = Scene()
    scene.schemas.check_consumer(scene.topic, None)
    scene.schemas.check_consumer(
        scene.topic, c.Schema(name="", schema_data=b"", type=SchemaKind.AUTO_CONSUME)
    )
    assert scene.get().error_code == ServerError.TOPIC_NOT_FOUND
    scene.schemas.check_consumer(scene.topic, TEXT)
    assert scene.get().schema == TEXT, "that of an idle topic"
    with pytest.raises(ServerFailure, match="exists schema type STRING, new schema type INT8"):
        scene.schemas.check_consumer(scene.topic, c.Schema(name="", schema_data=b"", type=SchemaKind.INT8))


NODE = {
    "type": "record",
    "name": "Node",
    "namespace": "a.b",
    "fields": [
        {"name": "next", "type": ["null", "Node"]},
        {"name": "others", "type": {"type": "array", "items": "a.b.Node"}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED"]}},
        {"name": "second", "type": {"type": "map", "values": "Color"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 16}},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@pytest.mark.parametrize(
    "schema", [NODE, "string", ["null", "long"], {"type": "bytes"}, {"type": ["null", "int"]}]
)
def test_schemas_of_avro(schema: Any) -> None:
    assert is_avro(schema)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        7,
        {},
        "Node",
        {"type": "object"},
        {"type": "array"},
        {"type": "record", "fields": []},
        {"type": "record", "name": "X"},
        {"type": "record", "name": "X", "fields": [{"name": "a"}]},
        {"type": "record", "name": "X", "fields": [{"type": "int"}]},
        {"type": "record", "name": "X", "fields": [{"name": "a", "type": "Y"}]},
        {"type": "enum", "name": "X"},
        {"type": "fixed", "name": "X"},
    ],
)
def test_values_that_are_no_schema_of_avro(schema: Any) -> None:
    assert not is_avro(schema)

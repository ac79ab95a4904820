"""SchemaCommands: GET_SCHEMA and GET_OR_CREATE_SCHEMA, and the schemas of producers and consumers (Pulsar's `ServerCnx`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.errors import ProtocolError
from asyncgroup.pulsar.wire import commands as c
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.requests.services import ConnectedClient
from asyncgroup.pulsar_broker.requests.topic_names import parse_topic
from asyncgroup.pulsar_broker.schemas.schema_registry import (
    SchemaKind,
    StoredSchema,
    TopicSchema,
    version_bytes,
)
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic

__all__ = ["SchemaCommands"]

_VERSION_BYTES: Final = 8


class SchemaCommands:
    """The commands for schemas; `table` has them by type."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self.table: dict[type[c.Command], Callable[..., None]] = {
            c.CommandGetSchema: self._get,
            c.CommandGetOrCreateSchema: self._get_or_create,
        }

    def __repr__(self) -> str:
        return f"<SchemaCommands of {self._namespaces!r}>"

    # --- producers and consumers ------------------------------------------------------------------------------------------

    def of_producer(self, topic: BrokerTopic, schema: c.Schema | None) -> bytes:
        """Return the version of a producer's schema, which may be a new one; no bytes without a schema.

        Raises ServerFailure (`ServerCnx.tryAddSchema`).
        """
        registry, policies = self._namespaces.schemas, topic.policies
        if schema is not None:
            return version_bytes(registry.put(topic.name, _schema(schema), policies.schema_strategy))
        if policies.requires_schemas and registry.current(topic.name):
            raise ServerFailure(
                ServerError.INCOMPATIBLE_SCHEMA,
                "Producers cannot connect or send message without a schema to topics with a schema when "
                "SchemaValidationEnforced is enabled",
            )
        return b""

    def check_consumer(self, topic: BrokerTopic, schema: c.Schema | None) -> None:
        """Compare the schema of a consumer; the first one of a topic without messages and clients becomes that of the topic.

        Raises ServerFailure (`PersistentTopic.addSchemaIfIdleOrCheckCompatible`).
        """
        if schema is None or schema.type == SchemaKind.AUTO_CONSUME:
            return
        registry, name, strategy = self._namespaces.schemas, topic.name, topic.policies.schema_strategy
        is_idle = not (
            registry.current(name)
            or len(topic.producers)
            or len(topic.log)
            or any(each.consumers for each in topic.subscriptions.values())
        )
        if is_idle:
            registry.put(name, _schema(schema), strategy)
        else:
            registry.check_consumer(name, _schema(schema), strategy)

    # --- requests ---------------------------------------------------------------------------------------------------------

    def _get(self, connection: ConnectedClient, command: c.CommandGetSchema) -> None:
        try:
            found = self._find(command)
        except ServerFailure as failure:
            answer = c.CommandGetSchemaResponse(
                request_id=command.request_id, error_code=failure.code, error_message=failure.text
            )
        else:
            assert found.schema is not None
            name = TopicName.parse(command.topic).whole
            schema = c.Schema(
                name=f"{name.namespace_name}/{name.local_name}",
                schema_data=found.schema.data,
                type=found.schema.kind,
                properties=found.schema.properties,
            )
            answer = c.CommandGetSchemaResponse(
                request_id=command.request_id, schema=schema, schema_version=version_bytes(found.version)
            )
        connection.reply(command, answer)

    def _find(self, command: c.CommandGetSchema) -> StoredSchema:
        asked, version = command.schema_version, None
        if asked is not None:
            if not asked:
                raise ServerFailure(ServerError.INCOMPATIBLE_SCHEMA, "Empty schema version")
            if len(asked) < _VERSION_BYTES:
                raise ProtocolError(f"a version of {len(asked)} bytes")
            version = int.from_bytes(asked[:_VERSION_BYTES], "big")
        found = self._namespaces.schemas.find(parse_topic(command.topic), version)
        if found is None:
            raise ServerFailure(ServerError.TOPIC_NOT_FOUND, f"Topic not found or no-schema {command.topic}")
        return found

    def _get_or_create(self, connection: ConnectedClient, command: c.CommandGetOrCreateSchema) -> None:
        SchemaKind(command.schema.type)  # raises ValueError
        try:
            topic = self._namespaces.topic(parse_topic(command.topic), creates=False)
            version = self.of_producer(topic, command.schema)
        except ServerFailure as failure:
            answer = c.CommandGetOrCreateSchemaResponse(
                request_id=command.request_id, error_code=failure.code, error_message=failure.text
            )
        else:
            answer = c.CommandGetOrCreateSchemaResponse(request_id=command.request_id, schema_version=version)
        connection.reply(command, answer)


def _schema(schema: c.Schema) -> TopicSchema:
    return TopicSchema(SchemaKind(schema.type), schema.schema_data, dict(schema.properties))

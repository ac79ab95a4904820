"""SchemaRequests: requests for the schemas of topics (Pulsar's `SchemasResource`).

GET, POST, DELETE  schemas/T/N/X/schema      GET …/schema/VERSION      GET …/schemas      POST …/compatibility, …/version
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest, fields_of
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.schemas.schema_registry import (
    SchemaKind,
    SchemaStrategy,
    StoredSchema,
    TopicSchema,
    check_schema,
)
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces

__all__ = ["SchemaRequests"]


class SchemaRequests:
    """What is done for each of them."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def __repr__(self) -> str:
        return f"<SchemaRequests of {self._namespaces!r}>"

    def handle(self, request: HttpRequest, name: TopicName, rest: list[str]) -> Any:
        """Return the answer to a request."""
        self._namespaces.check(name)
        schemas = self._namespaces.schemas
        match request.method, rest:
            case "GET", ["schema"]:
                return _shown(schemas.find(name))
            case "GET", ["schema", version]:
                return _shown(schemas.find(name, int(version) if version.isdecimal() else -1))
            case "GET", ["schemas"]:
                return {"getSchemaResponses": [_shown(each) for each in schemas.current(name)]}
            case "DELETE", ["schema"]:
                return {"version": schemas.delete(name)}
            case "POST", ["schema"]:
                return _version(schemas.put(name, _schema_in(request.body), self._strategy(name)))
            case "POST", ["version"]:
                found = schemas.version_of(name, _schema_in(request.body))
                return {"version": -1 if found is None else found}
            case "POST", ["compatibility"]:
                return self._compatibility(name, _schema_in(request.body))
        raise HttpRefusal(HTTPStatus.PRECONDITION_FAILED, f"{request.method} {'/'.join(rest)} is not served")

    def _strategy(self, name: TopicName) -> SchemaStrategy:
        return self._namespaces.policies_of(name).schema_strategy or SchemaStrategy.FULL

    def _compatibility(self, name: TopicName, schema: TopicSchema) -> dict[str, Any]:
        strategy = self._strategy(name)
        try:
            self._namespaces.schemas.check(name, schema, strategy)
        except ServerFailure as failure:
            raise HttpRefusal(HTTPStatus.INTERNAL_SERVER_ERROR, failure.text) from None
        return {"compatibility": True, "schemaCompatibilityStrategy": strategy.value}


def _shown(found: StoredSchema | None) -> dict[str, Any]:
    if found is None or found.schema is None:
        raise HttpRefusal(HTTPStatus.NOT_FOUND, "Schema not found")
    return {
        "version": found.version,
        "type": found.schema.kind_name,
        "timestamp": found.time,
        "data": found.schema.data.decode(errors="replace"),
        "properties": dict(found.schema.properties),
    }


def _version(number: int) -> dict[str, Any]:
    return {"version": {"version": number}}


def _schema_in(body: Any) -> TopicSchema:
    """Return the schema in a body (`PostSchemaPayload`)."""
    found = fields_of(body)
    kind, properties = found.get("type"), fields_of(found.get("properties") or {})
    if not isinstance(kind, str) or kind not in SchemaKind.__members__:
        raise HttpRefusal(HTTPStatus.UNPROCESSABLE_ENTITY, f"{kind!r:.100} is no type of a schema")
    made = TopicSchema(
        SchemaKind[kind],
        str(found.get("schema", "")).encode(errors="replace"),
        {name: str(value) for name, value in properties.items()},
    )
    try:
        check_schema(made)
    except ServerFailure as failure:
        raise HttpRefusal(HTTPStatus.UNPROCESSABLE_ENTITY, failure.text) from None
    return made

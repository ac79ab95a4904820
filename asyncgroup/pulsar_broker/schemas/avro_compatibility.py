"""Whether data of one Avro schema can be read with another. Schemas are as JSON has them.

The rules are those of Avro's `Resolver`, by which Pulsar compares schemas: records may have different names, and an enum may lack a
symbol of the writer, which fails when such a value is read.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["can_read", "is_avro"]

_PROMOTIONS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""By the type of the reader, other types of the writer that it reads."""


_TYPES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED: Final = ("record", "error", "enum", "fixed")


def is_avro(schema: Any) -> bool:
    """Whether a value of JSON is a schema of Avro, as far as this module reads it."""
    return _is_avro(schema, set(_TYPES))


def _is_avro(schema: Any, names: set[str]) -> bool:
    """`names`: the types that are defined so far, to which those of this schema are added."""
    if isinstance(schema, str):
        return schema in names
    if isinstance(schema, list):
        return all(_is_avro(each, names) for each in schema)
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind in _NAMED:
        name = schema.get("name")
        if not isinstance(name, str):
            return False
        names.update((name, name.rpartition(".")[2], f"{schema.get('namespace')}.{name}"))
    match kind:
        case "record" | "error":
            fields = schema.get("fields")
            return isinstance(fields, list) and all(_is_field(each, names) for each in fields)
        case "enum":
            return isinstance(schema.get("symbols"), list)
        case "fixed":
            return isinstance(schema.get("size"), int)
        case "array":
            return _is_avro(schema.get("items"), names)
        case "map":
            return _is_avro(schema.get("values"), names)
    return _is_avro(kind, names)


def _is_field(field: Any, names: set[str]) -> bool:
    is_named = isinstance(field, dict) and isinstance(field.get("name"), str)
    return is_named and _is_avro(field.get("type"), names)


def can_read(reader: Any, writer: Any) -> bool:
    """Whether a reader's schema reads all data of a writer's schema."""
    return _Resolution(_names_in(reader), _names_in(writer)).matches(reader, writer)


def _names_in(schema: Any) -> dict[str, Any]:
    """Return the named types in a schema."""
    found: dict[str, Any] = {}

    def visit(each: Any) -> None:
        if isinstance(each, list):
            for branch in each:
                visit(branch)
        elif isinstance(each, dict):
            if "name" in each and each.get("type") in ("record", "enum", "fixed"):
                found[each["name"]] = each
                if "namespace" in each:
                    found[f"{each['namespace']}.{each['name']}"] = each
            for part in ("type", "items", "values"):
                visit(each.get(part))
            for one in each.get("fields", ()):
                visit(one.get("type"))

    visit(schema)
    return found


class _Resolution:
    """A comparison, with the names that both schemas define."""

    def __init__(self, reader_names: dict[str, Any], writer_names: dict[str, Any]) -> None:
        self._reader_names = reader_names
        self._writer_names = writer_names
        self._seen: set[tuple[int, int]] = set()  # of recursive types: those that are compared already

    def matches(self, reader: Any, writer: Any) -> bool:
        reader, writer = _plain(reader, self._reader_names), _plain(writer, self._writer_names)
        if isinstance(writer, list):
            return all(self.matches(reader, branch) for branch in writer)
        if isinstance(reader, list):
            return any(self.matches(branch, writer) for branch in reader)
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            return written in _PROMOTIONS.get(kind, ())
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            return True
        place = (id(reader), id(writer))
        if place in self._seen:
            return True
        self._seen.add(place)
        match kind:
            case "record":
                return self._records(reader, writer)
            case "array":
                return self.matches(reader.get("items"), writer.get("items"))
            case "map":
                return self.matches(reader.get("values"), writer.get("values"))
            case "enum":
                return _same_name(reader, writer)
            case "fixed":
                return _same_name(reader, writer) and reader.get("size") == writer.get("size")
        return True

    def _records(self, reader: dict[str, Any], writer: dict[str, Any]) -> bool:
        written = {field["name"]: field for field in writer.get("fields", ())}
        for field in reader.get("fields", ()):
            names = (field["name"], *field.get("aliases", ()))
            found = next((written[name] for name in names if name in written), None)
            if found is None:
                if "default" not in field:
                    return False
            elif not self.matches(field["type"], found["type"]):
                return False
        return True


def _same_name(reader: dict[str, Any], writer: dict[str, Any]) -> bool:
    name = str(writer.get("name", "")).rpartition(".")[2]
    aliases = [str(each).rpartition(".")[2] for each in reader.get("aliases", ())]
    return name in (str(reader.get("name", "")).rpartition(".")[2], *aliases)


def _plain(schema: Any, names: dict[str, Any]) -> Any:
    """Return a schema without wrappers: `{"type": "string"}` is `"string"`, and a name its type."""
    while True:
        if isinstance(schema, str) and schema in names:
            schema = names[schema]
        elif isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
            schema = schema["type"]
        else:
            return schema


def _kind(schema: Any) -> str:
    return str(schema.get("type")) if isinstance(schema, dict) else str(schema)

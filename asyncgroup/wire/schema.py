"""Message schemas, parsed from the compact tables in `tables.py`.

A table is a text: a head line (`request 1 4-18 flexible 12+`), then one line per field, nested fields indented by two
spaces, then common structs (`= Name`) followed by their fields. A field line is

    Name type versions [null RANGE] [tag N RANGE] [flexible RANGE] [default VALUE] [ignorable]

Names, types and ranges are those of Kafka's message specifications
(`clients/src/main/resources/common/message/README.md` in Kafka's source explains their meaning).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

__all__ = [
    "NO_VERSIONS",
    "FieldSpec",
    "MessageSpec",
    "StructSpec",
    "TableHead",
    "VersionRange",
    "message_spec",
    "parse_head",
    "parse_table",
    "snake_case",
]

OPEN_END = 32767
"""The `high` of an open range, such as `3+`."""


class VersionRange(NamedTuple):
    """Versions from `low` to `high`, inclusive."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parse `3`, `3+`, `3-7` or `none`, as in Kafka's specifications."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), OPEN_END)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __str__(self) -> str:
        if self.low > self.high:
            return "none"
        if self.high == OPEN_END:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


NO_VERSIONS = VersionRange(1, 0)
"""The empty range."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a message or struct.

    `type` is Kafka's type name, after `[]` for an array. `nullable` and `tagged` are the versions in which it is that.
    `flexible` are the versions in which its length is compact; None means the flexible versions of the message.
    """

    name: str
    type: str
    versions: VersionRange
    nullable: VersionRange = NO_VERSIONS
    tagged: VersionRange = NO_VERSIONS
    tag: int = -1
    default: str | None = None
    ignorable: bool = False
    flexible: VersionRange | None = None

    @property
    def attribute(self) -> str:
        """The attribute of the message object: the name in snake_case."""
        return snake_case(self.name)

    @property
    def element(self) -> str:
        """The type without its array brackets."""
        return self.type.removeprefix("[]")

    @property
    def is_nullable(self) -> bool:
        """Whether the field is nullable in any version."""
        return self.nullable.low <= self.nullable.high

    @property
    def is_array(self) -> bool:
        """Whether the field is an array of its element type."""
        return self.type.startswith("[]")


@dataclass(slots=True)
class StructSpec:
    """A struct inside a message, or the top level of the message itself."""

    name: str
    fields: list[FieldSpec] = field(default_factory=list)


class TableHead(NamedTuple):
    """The head line of a table, see `MessageSpec`."""

    kind: str
    api_key: int
    versions: VersionRange
    flexible: VersionRange
    latest_unstable: bool

    @property
    def stable_versions(self) -> VersionRange:
        """The versions that a released broker supports: all except an unstable latest version."""
        return VersionRange(self.versions.low, self.versions.high - self.latest_unstable)


@dataclass(slots=True)
class MessageSpec:
    """A message: `kind` is `request`, `response`, `header`, `data`, `coordinator-key` or `coordinator-value`."""

    name: str
    kind: str
    api_key: int
    versions: VersionRange
    flexible: VersionRange
    latest_unstable: bool
    top: StructSpec
    structs: dict[str, StructSpec]

    def flexible_versions(self, field: FieldSpec) -> VersionRange:
        """Return the versions in which the length of `field` is compact (KIP-482)."""
        return self.flexible if field.flexible is None else field.flexible


@cache
def snake_case(name: str) -> str:
    """Convert a name to snake_case: `ThrottleTimeMs` → `throttle_time_ms`."""
    spaced = re.sub(r"(?<=[a-z0-9])([A-Z])|(?<=[A-Z])([A-Z](?=[a-z]))", r"_\1\2", name)
    return spaced.lower()


def _parse_field(line: str) -> FieldSpec:
    name, type_, versions, *rest = line.split(" ")
    words = iter(rest)
    options = dict(_options(words))
    return FieldSpec(
        name=name,
        type=type_,
        versions=VersionRange.parse(versions),
        nullable=VersionRange.parse(options.get("null", "none")),
        tagged=VersionRange.parse(options.get("tagged", "none")),
        tag=int(options.get("tag", "-1")),
        default=options.get("default"),
        ignorable="ignorable" in options,
        flexible=VersionRange.parse(options["flexible"]) if "flexible" in options else None,
    )


def _options(words: Iterator[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        if word == "ignorable":
            yield word, "yes"
        elif word == "tag":
            yield word, next(words)
            yield "tagged", next(words)
        else:
            yield word, next(words)


def parse_head(table: str) -> TableHead:
    """Parse only the head line of a table."""
    line = table.lstrip("\n").split("\n", 1)[0]
    kind, api_key, versions, _, flexible, *more = line.split(" ")
    return TableHead(
        kind, int(api_key), VersionRange.parse(versions), VersionRange.parse(flexible), "unstable" in more
    )


def parse_table(name: str, text: str) -> MessageSpec:
    """Parse the table of message `name`."""
    head = parse_head(text)
    _, *lines = text.strip("\n").splitlines()
    top = StructSpec(name)
    structs: dict[str, StructSpec] = {}
    stack: list[StructSpec] = [top]
    for line in lines:
        depth = (len(line) - len(line.lstrip(" "))) // 2
        body = line.lstrip(" ")
        if body.startswith("= "):
            struct = structs.setdefault(body[2:], StructSpec(body[2:]))
            stack = [struct]
            continue
        del stack[depth + 1 :]
        spec = _parse_field(body)
        stack[depth].fields.append(spec)
        if spec.element[0].isupper():
            stack.append(structs.setdefault(spec.element, StructSpec(spec.element)))
    return MessageSpec(name, *head, top, structs)


@cache
def message_spec(name: str) -> MessageSpec:
    """Return the schema of a message by its Kafka name, e.g. `FetchRequest`. Raises KeyError for an unknown name."""
    # imported here because the generator runs before the module exists
    from asyncgroup.wire.tables import TABLES

    return parse_table(name, TABLES[name])

"""Shared parts of the two compilers (`encoder`, `decoder`): types, defaults and sizes of fields, a source text builder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec

__all__ = [
    "FIXED_SIZE_FORMATS",
    "MAX_STRING",
    "NUMBER_FORMATS",
    "PYTHON_TYPES",
    "SourceBuilder",
    "default_expression",
    "fields_in",
    "is_struct",
    "min_element_size",
    "min_struct_size",
    "tagged_in",
]

NUMBER_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
"""Format letters of the `struct` module by Kafka's type names."""

FIXED_SIZE_FORMATS = {**NUMBER_FORMATS, "uuid": "16s"}
"""The same for every type of fixed size."""

_SIZES = {"?": 1, "b": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}
"""Bytes of each format."""

MAX_STRING = 0x7FFF
"""Maximum size of a string in bytes, also in flexible versions, whose compact length could be larger.

Kafka's generated message classes check the same. Without the check a client could store a string, a group's metadata for
example, that cannot be sent to clients with older versions.
"""


PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes | memoryview | None",
    "uuid": "UUID",
}
"""Python's type for each of Kafka's type names that is not a struct."""

_ZERO = {"str": '""', "bytes": 'b""', "UUID": "NO_UUID", "float": "0.0", "bool": "False", "int": "0"}


class SourceBuilder:
    """Builds Python source text, line by line, with the current indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._constants: dict[str, str] = {}  # module-level names and their expressions
        self._indent = 0  # levels of four spaces
        self._names = 0  # variable names given out by `name`

    def add(self, line: str) -> None:
        """Append one line at the current indentation."""
        self._lines.append("    " * self._indent + line)

    def name(self, stem: str) -> str:
        """Return a new variable name."""
        self._names += 1
        return f"{stem}{self._names}"

    def fixed(self, letters: str, method: str) -> str:
        """Return the name of a constant: a bound method of the big-endian `struct.Struct` with these format letters."""
        name = f"{method}_{letters.replace('?', 'o')}"
        self._constants[name] = f"Struct('>{letters}').{method}"
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a head line, and indent what is added inside the `with`; that must be at least one line."""
        self.add(head)
        self._indent += 1
        yield
        self._indent -= 1

    def __str__(self) -> str:
        constants = [f"{name} = {value}" for name, value in self._constants.items()]
        return "\n".join(constants + self._lines) + "\n"


def is_struct(field: FieldSpec) -> bool:
    """Whether a field is a struct or an array of structs."""
    return field.element[0].isupper()


def fields_in(struct: StructSpec, version: int) -> list[FieldSpec]:
    """Return the fields of `version` without the tagged ones, in order."""
    return [f for f in struct.fields if version in f.versions and version not in f.tagged]


def tagged_in(struct: StructSpec, version: int) -> list[FieldSpec]:
    """Return the tagged fields of `version`, in the order of their tags."""
    return sorted(
        (f for f in struct.fields if version in f.versions and version in f.tagged), key=lambda f: f.tag
    )


def min_element_size(spec: MessageSpec, field: FieldSpec, version: int) -> int:
    """Return the smallest size in bytes of an array's element in `version`."""
    if is_struct(field):
        return min_struct_size(spec, spec.structs[field.element], version)
    if field.element in FIXED_SIZE_FORMATS:
        return _SIZES[FIXED_SIZE_FORMATS[field.element]]
    return 1 if version in spec.flexible_versions(field) else 2 if field.element == "string" else 4


def min_struct_size(spec: MessageSpec, struct: StructSpec, version: int) -> int:
    """Return the smallest size in bytes of a struct in `version`."""
    total = 1 if version in spec.flexible else 0
    for field in fields_in(struct, version):
        flexible = version in spec.flexible_versions(field)
        if field.is_array:
            total += 1 if flexible else 4
        elif is_struct(field):
            inner = min_struct_size(spec, spec.structs[field.element], version)
            total += 1 if version in field.nullable else inner
        elif field.type in FIXED_SIZE_FORMATS:
            total += _SIZES[FIXED_SIZE_FORMATS[field.type]]
        else:
            total += 1 if flexible else 2 if field.type == "string" else 4
    return total


def default_expression(spec: FieldSpec, path: str) -> str:
    """Return the Python expression of a field's default.

    It is `_EMPTY` for arrays and a constructor call for structs; both become a new object in each message.
    """
    if spec.default == "null" or (spec.type == "records" and spec.default is None):
        return "None"
    if spec.is_array:
        return "_EMPTY"
    scalar = PYTHON_TYPES.get(spec.element)
    if scalar is None:
        return f"{path}.{spec.element}()"
    if spec.default is None:
        return _ZERO[scalar]
    if scalar == "int":
        return str(int(spec.default, 0))
    if scalar == "bool":
        return "True" if str(spec.default).lower() == "true" else "False"
    if scalar == "float":
        return repr(float(spec.default))
    return repr(spec.default)

"""Read configurations by the names of Java's client: readers of values, and tables of what each name stands for."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ConfigError
from asyncgroup.properties.names import Property
from asyncgroup.properties.reader import FromProperties, shown
from asyncgroup.properties.suggestions import close_matches

__all__ = [
    "JavaNames",
    "Off",
    "in_seconds",
    "number_or_none",
    "one_of_names",
    "read_flag",
    "read_java_properties",
    "read_mapping",
    "read_property",
    "read_text",
    "read_whole",
]

_log = logging.getLogger("asyncgroup.config")

C = TypeVar("C")


# --- values -----------------------------------------------------------------------------------------------------------


def read_text(value: object) -> str:
    """Return the value as text without blanks around it."""
    return str(value).strip()


def read_flag(value: object) -> bool:
    """Return true or false. Raises ValueError."""
    text = read_text(value).lower()
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def read_whole(value: object) -> int:
    """Return a whole number. Raises ValueError."""
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,19}", read_text(value), re.ASCII):
        raise ValueError("a whole number")
    return int(read_text(value))


def in_seconds(parts: int) -> Callable[[object], float]:
    """Return a reader of times in units; a second has `parts` of them."""
    return lambda value: read_whole(value) / parts


def number_or_none(none: int) -> Callable[[object], int | None]:
    """Return a reader of numbers; `none` is Java's value for no limit."""

    def read(value: object) -> int | None:
        number = read_whole(value)
        return None if number == none else number

    return read


def one_of_names(names: Mapping[str, str]) -> Callable[[object], str]:
    """Return a reader of the constants of an enum of Java; case does not count. `names` has ours for each."""
    by_name = {name.lower(): ours for name, ours in names.items()}

    def read(value: object) -> str:
        found = by_name.get(read_text(value).lower())
        if found is None:
            raise ValueError(", ".join(names))
        return found

    return read


def read_mapping(value: object) -> dict[str, str]:
    """Return a mapping of texts, or that of a JSON object. Raises ValueError."""
    found = value
    if not isinstance(value, Mapping):
        try:
            found = json.loads(read_text(value) or "{}")
        except ValueError:
            found = None
    if isinstance(found, Mapping):
        return {str(name): str(text) for name, text in found.items()}
    raise ValueError('a mapping, or JSON as {"name": "text"}')


# --- names ------------------------------------------------------------------------------------------------------------


class Off(NamedTuple):
    """A feature that this client lacks, or that has another place."""

    values: tuple[str, ...]
    """The values that leave it off."""
    allowed: str
    """What to do instead."""


class JavaNames(NamedTuple):
    """The names of a configuration class of Java's client."""

    keys: Mapping[str, Property]
    """Those that stand for a key of the configuration."""
    arguments: Mapping[str, Property]
    """Those that stand for an argument of a method: they are returned in `rest`."""
    off: Mapping[str, Off]
    ignored: Mapping[str, str]
    """Reasons by name; they are logged as warnings."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every name."""
        return (*self.keys, *self.arguments, *self.off, *self.ignored)


def read_property(prop: Property, name: str, value: object) -> Any:
    """Return the value of a property. Raises ConfigError."""
    try:
        return prop.read(value)
    except ValueError as error:
        raise ConfigError(name, shown(name, value), str(error)) from None


def read_java_properties(
    cls: type[C],
    names: JavaNames,
    properties: Mapping[str, object],
    keys: Mapping[str, Any],
    known: tuple[str, ...],
) -> FromProperties[C]:
    """Create a `cls`, which has the keys `known`, from `properties`; `keys` override them.

    Raises ConfigError for an unknown name, an invalid value, and a feature that this client lacks.
    """
    if not isinstance(properties, Mapping):
        raise wrong_type("properties", properties, "a mapping of Pulsar's names to values")
    made: dict[str, Any] = {}
    rest: dict[str, str] = {}
    sources: dict[str, tuple[str, object]] = {}
    for name, value in properties.items():
        if not isinstance(name, str):
            raise ConfigError("properties", name, "names that are strings")
        if value is None:  # as in Java: the same as not given
            continue
        if (prop := names.keys.get(name)) is not None:
            made[prop.key] = read_property(prop, name, value)
            sources[prop.key] = name, value
        elif (prop := names.arguments.get(name)) is not None:
            rest[prop.key] = read_property(prop, name, value)
        elif (off := names.off.get(name)) is not None:
            if read_text(value).lower() not in off.values:
                raise ConfigError(name, shown(name, value), off.allowed)
        elif name in names.ignored:
            _log.warning(
                "property %s has no effect in asyncgroup and is ignored: %s", name, names.ignored[name]
            )
        else:
            raise ConfigError(name, shown(name, value), _suggestion(name, names, known))
    try:
        config = cls(**made | dict(keys))
    except ConfigError as error:
        if error.key in keys or error.key not in sources:
            raise
        name, value = sources[error.key]
        raise ConfigError(name, value, f"{error.key}={error.value!r}; {error.allowed}") from None
    return FromProperties(config, rest)


def _suggestion(name: str, names: JavaNames, known: tuple[str, ...]) -> str:
    no_such = "there is no such key"
    if name in known:
        return f"{no_such}; {name} is a keyword argument: from_properties(properties, {name}=…)"
    near = close_matches(name, names.all_names)
    return f"{no_such}; did you mean {' or '.join(near)}?" if near else no_such

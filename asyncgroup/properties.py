"""Configurations out of Kafka's own property names, as `client.properties` and other clients' settings have them.

    config, rest = ConsumerConfig.from_properties({"bootstrap.servers": "kafka:9092", "session.timeout.ms": "10000"})

Values are text or what the text stands for. Which names there are stands in `property_names`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

from asyncgroup.errors import ConfigError
from asyncgroup.ignored_properties import IGNORED, IGNORED_PREFIXES
from asyncgroup.property_names import BY_CLASS, REFUSED, REST, SECURITY, Property
from asyncgroup.security import HIDDEN
from asyncgroup.security_properties import read_security
from asyncgroup.suggestions import Keys, suggest_property

__all__ = ["FromProperties", "from_properties", "is_secret"]

_log = logging.getLogger("asyncgroup.config")

C = TypeVar("C")


class FromProperties(NamedTuple, Generic[C]):
    """A configuration and what is none: `rest` has `bootstrap.servers` and `group.id`, those that were given."""

    config: C
    rest: Mapping[str, str]


def from_properties(
    cls: type[C], properties: Mapping[str, object], keys: Mapping[str, Any], all_keys: Keys
) -> FromProperties[C]:
    """`cls` out of `properties`, `keys` of ours winning over them; see `ClientConfig.from_properties`."""
    if not isinstance(properties, Mapping):
        raise ConfigError("properties", type(properties).__name__, "a mapping of Kafka's names to values")
    known = _known_for(cls)
    found = _Found(dict(keys))
    ignored = []
    for name, value in properties.items():
        if not isinstance(name, str):
            raise ConfigError("properties", name, "names that are text")
        if value is None:  # as in Java: not given
            continue
        if name in REST and (name != "group.id" or cls.__name__ == "ConsumerConfig"):
            found.take(found.rest, REST[name], name, value, _joined(value))
        elif name in known:
            found.take_key(known[name], name, value)
        elif name in SECURITY:
            found.security[name] = str(value).strip()
        elif name in REFUSED:
            _read(REFUSED[name], name, value)
        elif (why := _why_ignored(name)) is not None:
            ignored.append((name, why))
        else:
            allowed = _instead(cls, name, known, all_keys)
            raise ConfigError(name, HIDDEN if is_secret(name) else value, allowed)
    if found.security and "security" not in keys:
        found.keys["security"] = read_security(found.security)
    for name, why in ignored:
        _log.warning("%s means nothing to asyncgroup and is ignored: %s", name, why)
    return FromProperties(found.make(cls, keys), found.rest)


class _Found:
    """What properties have said so far, and by which names: two names of one key must agree."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys, self.rest, self.security = keys, dict[str, str](), dict[str, str]()
        self._fixed = frozenset(keys)
        self._said: dict[str, tuple[str, object]] = {}

    def take_key(self, prop: Property, name: str, value: object) -> None:
        read = _read(prop.read, name, value)
        if prop.key not in self._fixed:
            self.take(self.keys, prop.key, name, value, read)

    def take(self, into: dict[str, Any], key: str, name: str, value: object, read: Any) -> None:
        if key in into and into[key] != read:
            other, said = self._said[key]
            raise ConfigError(name, value, f"the same as {other}={said!r}: both mean {key}")
        into[key] = read
        self._said[key] = name, value

    def make(self, cls: type[C], fixed: Mapping[str, Any]) -> C:
        try:
            return cls(**self.keys)
        except ConfigError as error:
            if error.key in fixed or error.key not in self._said:
                raise
            name, value = self._said[error.key]
            allowed = self._in_their_names(error)
            raise ConfigError(name, value, allowed) from None

    def _in_their_names(self, error: ConfigError) -> str:
        """What is allowed, naming the property beside each of our keys that the rule names."""
        text = f"{error.key}={error.value!r}; {error.allowed}"
        others = [name for key, (name, _) in self._said.items() if key != error.key and f"{key}=" in text]
        return text + (f" ({', '.join(others)})" if others else "")


def _read(read: Callable[[object], Any], name: str, value: object) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ConfigError(name, HIDDEN if is_secret(name) else value, str(error)) from None


def _joined(value: object) -> str:
    """Servers may come as a list, as in Java."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _known_for(cls: type) -> dict[str, Property]:
    """The names of all keys that `cls` has, those of its bases too."""
    own = {field.name for field in fields(cls)}
    tables = [BY_CLASS.get(base.__name__, {}) for base in reversed(cls.__mro__)]
    return {name: prop for table in tables for name, prop in table.items() if prop.key in own}


def _why_ignored(name: str) -> str | None:
    """Why a property has no effect here; None for one that has, or is unknown."""
    if name in IGNORED:
        return IGNORED[name]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)), None)


def _instead(cls: type, name: str, known: Iterable[str], all_keys: Keys) -> str:
    others = [other for other, names in BY_CLASS.items() if name in names]
    if others or name == "group.id":
        return f"only in a {others[0] if others else 'ConsumerConfig'}; this is a {cls.__name__}"
    return suggest_property(
        cls.__name__, name, [*known, *REST, *SECURITY, *REFUSED, *IGNORED], {cls.__name__: (), **all_keys}
    )


def is_secret(name: str) -> bool:
    """Whether a key's value must not show in an error: misspelt ones and whole families count, to be safe."""
    lower = name.lower()
    return lower.startswith(("sasl", "ssl")) or any(word in lower for word in _SECRETS)


_SECRETS = ("pass", "pasw", "pwd", "secret", "jaas", "token", "pem", "key", "api", "auth", "cred")

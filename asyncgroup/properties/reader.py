"""Create configurations from Kafka's property names, as in `client.properties` and in other clients' settings.

    config, rest = ConsumerConfig.from_properties({"bootstrap.servers": "kafka:9092", "session.timeout.ms": "10000"})

Values may be strings, or numbers and booleans. `names.py` has the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

from asyncgroup.checks import SECONDS_HINT, wrong_type
from asyncgroup.errors import ConfigError
from asyncgroup.properties.ignored import IGNORED, IGNORED_PREFIXES
from asyncgroup.properties.names import PROPERTIES, REST, SECURITY, UNSUPPORTED, Property
from asyncgroup.properties.security import read_security
from asyncgroup.properties.suggestions import Keys, suggest_property
from asyncgroup.security import HIDDEN

__all__ = ["FromProperties", "from_properties", "is_secret", "shown"]

_log = logging.getLogger("asyncgroup.config")

C = TypeVar("C")


class FromProperties(NamedTuple, Generic[C]):
    """A configuration, and in `rest` the given properties that are arguments here: `bootstrap.servers`, `group.id`."""

    config: C
    rest: Mapping[str, str]


def from_properties(
    cls: type[C], properties: Mapping[str, object], keys: Mapping[str, Any], all_keys: Keys
) -> FromProperties[C]:
    """Create a `cls` from `properties`; `keys` override them. See `ClientConfig.from_properties`."""
    if not isinstance(properties, Mapping):
        raise wrong_type("properties", properties, "a mapping of Kafka's names to values")
    known = _known_for(cls)
    collected = _Collected(dict(keys))
    ignored = []
    for name, value in properties.items():
        if not isinstance(name, str):
            raise ConfigError("properties", name, "names that are strings")
        if value is None:  # as in Java: the same as not given
            continue
        if name in REST and (name != "group.id" or cls.__name__ == "ConsumerConfig"):
            collected.add(collected.rest, REST[name], name, value, _joined(value))
        elif name in known:
            collected.add_key(known[name], name, value)
        elif name in SECURITY:
            collected.security[name] = str(value).strip()
        elif name in UNSUPPORTED:
            _read(UNSUPPORTED[name], name, value)
        elif (why := _why_ignored(name)) is not None:
            ignored.append((name, why))
        else:
            allowed = _suggestion(cls, name, known, all_keys)
            raise ConfigError(name, shown(name, value), allowed)
    if collected.security and "security" not in keys:
        collected.keys["security"] = read_security(collected.security)
    for name, why in ignored:
        _log.warning("property %s has no effect in asyncgroup and is ignored: %s", name, why)
    return FromProperties(collected.build(cls, keys), collected.rest)


class _Collected:
    """The keys collected from properties, with the property that each came from.

    Two properties that stand for one key must have the same value.
    """

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys
        self.rest: dict[str, str] = {}
        self.security: dict[str, str] = {}
        self._fixed = frozenset(keys)
        """Keys given as keyword arguments, which override properties."""
        self._given: dict[str, tuple[str, object]] = {}
        """Key to property name and value, for error messages."""

    def add_key(self, prop: Property, name: str, value: object) -> None:
        read = _read(prop.read, name, value)
        for key in filter(None, (prop.key, prop.also)):
            if key not in self._fixed:
                self.add(self.keys, key, name, value, read)

    def add(self, into: dict[str, Any], key: str, name: str, value: object, read: Any) -> None:
        if key in into and into[key] != read:
            other, other_value = self._given[key]
            raise ConfigError(name, value, f"the same as {other}={other_value!r}: both mean {key}")
        into[key] = read
        self._given[key] = name, value

    def build(self, cls: type[C], fixed: Mapping[str, Any]) -> C:
        try:
            return cls(**self.keys)
        except ConfigError as error:
            if error.key in fixed or error.key not in self._given:
                raise
            name, value = self._given[error.key]
            allowed = self._with_property_names(error)
            raise ConfigError(name, value, allowed) from None

    def _with_property_names(self, error: ConfigError) -> str:
        """Return what is allowed, with the property name of each key that the rule mentions."""
        # without the hint: a property in milliseconds was converted
        allowed = (error.allowed or "").partition(SECONDS_HINT)[0]
        text = f"{error.key}={error.value!r}; {allowed}"
        others = [name for key, (name, _) in self._given.items() if key != error.key and f"{key}=" in text]
        return text + (f" ({', '.join(others)})" if others else "")


def _read(read: Callable[[object], Any], name: str, value: object) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ConfigError(name, shown(name, value), str(error)) from None


def _joined(value: object) -> str:
    """Join a list of servers with commas: Java accepts both forms."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _known_for(cls: type) -> dict[str, Property]:
    """Return the properties that stand for a key of `cls` or its base classes."""
    own = {field.name for field in fields(cls)}
    tables = [PROPERTIES.get(base.__name__, {}) for base in reversed(cls.__mro__)]
    return {name: prop for table in tables for name, prop in table.items() if prop.key in own}


def _why_ignored(name: str) -> str | None:
    """Return why a property has no effect here, or None if it has one or is unknown."""
    if name in IGNORED:
        return IGNORED[name]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)), None)


def _suggestion(cls: type, name: str, known: Iterable[str], all_keys: Keys) -> str:
    others = [other for other, names in PROPERTIES.items() if name in names]
    if others or name == "group.id":
        return f"only in a {others[0] if others else 'ConsumerConfig'}; this is a {cls.__name__}"
    return suggest_property(
        cls.__name__, name, [*known, *REST, *SECURITY, *UNSUPPORTED, *IGNORED], {cls.__name__: (), **all_keys}
    )


def is_secret(name: str) -> bool:
    """Return whether a key's value must be hidden in errors: misspelled names and whole families too, to be safe."""
    lower = name.lower()
    if lower in _PUBLIC:
        return False
    return lower.startswith(("sasl", "ssl")) or any(word in lower for word in _SECRETS)


def shown(name: str, value: object) -> object:
    """Return a key's value as an error may print it: hidden if it is a secret, or a mapping, which may have some."""
    return HIDDEN if is_secret(name) or isinstance(value, Mapping) else value


_PUBLIC = frozenset(
    {
        *("sasl.mechanism", "sasl.mechanisms", "sasl_mechanism", "ssl_context"),
        *(name for name in SECURITY if name.endswith((".location", ".type", ".algorithm"))),
        *("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"),
    }
)
"""Names of these families whose values are no secrets."""

_SECRETS = ("pass", "pasw", "pwd", "secret", "jaas", "token", "pem", "key", "api", "auth", "cred")

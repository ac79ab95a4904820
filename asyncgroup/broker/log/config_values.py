"""Check and normalize the text of a config value by its type (Kafka's `ConfigDef.parseType` and its validators).

The problems are worded as Kafka's, because programs and people search for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from asyncgroup.broker.log.topic_config_keys import ConfigKey, ConfigType

__all__ = ["InvalidValue", "check_value", "list_parts", "normal_value"]

_SPANS: Final = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), 2**31 - 1),
    ConfigType.LONG: (-(2**63), 2**63 - 1),
}

_THROTTLED = re.compile(r"\*|\d+:\d+(,\d+:\d+)*")


class InvalidValue(NamedTuple):
    """Why a value is not allowed: `shown` is the refused value or its refused part, as Kafka prints it."""

    shown: str
    problem: str

    def message(self, name: str) -> str:
        """Return the text of Kafka's `ConfigException`."""
        return f"Invalid value {self.shown} for configuration {name}: {self.problem}"


def list_parts(value: str) -> list[str]:
    """Return the elements of a list."""
    return [part.strip() for part in value.split(",") if part.strip()]


def normal_value(key: ConfigKey, value: str) -> str:
    """Normalize a value as Kafka's parser does: without surrounding spaces, booleans in lower case."""
    if key.type == ConfigType.LIST:
        return ",".join(list_parts(value))
    return value.strip().lower() if key.type == ConfigType.BOOLEAN else value.strip()


def check_value(name: str, key: ConfigKey, value: str) -> InvalidValue | None:
    """Return why a config may not have this value, None if it may."""
    invalid = _CHECKS[key.type](key, value)
    further = _FURTHER.get(name)
    return further(value) if invalid is None and further is not None else invalid


def _check_number(key: ConfigKey, value: str) -> InvalidValue | None:
    low, high = _SPANS[key.type]
    try:
        number = int(value.strip()) if "_" not in value else None
    except ValueError:  # also raised for numbers of more than 4300 digits
        number = None
    if number is None or not low <= number <= high:
        return _not_a_number(key, value)
    return _check_bounds(key, str(number), number)


def _check_double(key: ConfigKey, value: str) -> InvalidValue | None:
    try:
        number = float(value)
    except ValueError:
        return _not_a_number(key, value)
    return _check_bounds(key, repr(number), number)


def _not_a_number(key: ConfigKey, value: str) -> InvalidValue:
    return InvalidValue(value.strip(), f"Not a number of type {key.type.name}")


def _check_bounds(key: ConfigKey, shown: str, number: float) -> InvalidValue | None:
    """Compare with both bounds; `not >=` also refuses NaN."""
    if key.lowest is not None and not number >= key.lowest:
        return InvalidValue(shown, f"Value must be at least {key.lowest}")
    if key.highest is not None and not number <= key.highest:
        return InvalidValue(shown, f"Value must be no more than {key.highest}")
    return None


def _check_boolean(_key: ConfigKey, value: str) -> InvalidValue | None:
    if value.strip().lower() in ("true", "false"):
        return None
    return InvalidValue(value.strip(), "Expected value to be either true or false")


def _check_words(key: ConfigKey, value: str) -> InvalidValue | None:
    found = list_parts(value) if key.type == ConfigType.LIST else [value.strip()]
    if key.words is None:
        return None
    refused = next((word for word in found if word not in key.words), None)
    return (
        None if refused is None else InvalidValue(refused, f"String must be one of: {', '.join(key.words)}")
    )


_CHECKS: Final[dict[ConfigType, Callable[[ConfigKey, str], InvalidValue | None]]] = {
    ConfigType.BOOLEAN: _check_boolean,
    ConfigType.STRING: _check_words,
    ConfigType.INT: _check_number,
    ConfigType.SHORT: _check_number,
    ConfigType.LONG: _check_number,
    ConfigType.DOUBLE: _check_double,
    ConfigType.LIST: _check_words,
    ConfigType.CLASS: _check_words,
    ConfigType.PASSWORD: _check_words,
}


def _check_throttled(value: str) -> InvalidValue | None:
    text = value.replace(" ", "")
    if not text or _THROTTLED.fullmatch(text):
        return None
    return InvalidValue(f"[{text}]", "must be * or partition:node,partition:node,…")


def _check_gzip_level(value: str) -> InvalidValue | None:
    if int(value) in (-1, *range(1, 10)):
        return None
    return InvalidValue(value.strip(), "Value must be between 1 and 9 or equal to -1")


_FURTHER: Final[dict[str, Callable[[str], InvalidValue | None]]] = {
    "compression.gzip.level": _check_gzip_level,
    "follower.replication.throttled.replicas": _check_throttled,
    "leader.replication.throttled.replicas": _check_throttled,
}
"""Checks of single configs, after that of their type."""

"""Checks of arguments that several subjects of Admin share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from asyncgroup.checks import TEXT, wrong_type
from asyncgroup.errors import ConfigError

__all__ = ["INT16_MAX", "INT32_MAX", "check_number", "check_text", "one_of", "several"]

_SHOWN: Final = 20
"""Characters of a text that is refused for its length or its characters; the rest is left out."""

INT16_MAX: Final = (1 << 15) - 1
INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1


def check_number(key: str, value: Any, highest: int = _INT64_MAX) -> int:
    """Return the value. Raises ConfigError unless it is an integer from 0 to `highest`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise ConfigError(key, value, f"a whole number from 0 to {highest}")
    return value


def one_of(key: str, given: object, names: Iterable[str]) -> str:
    """Return Kafka's name; upper and lower case are the same, as for a broker. Raises ConfigError for another one."""
    known = {name.lower(): name for name in names}
    if not isinstance(given, str) or given.lower() not in known:
        raise ConfigError(key, given, f"one of {', '.join(known.values())}")
    return known[given.lower()]


def check_text(key: str, value: Any, allowed: str) -> str:
    """Return the value. Raises ConfigError unless it is a text that is not empty, and that a request can contain."""
    if not isinstance(value, str) or not value:
        raise ConfigError(key, value, allowed)
    if not TEXT[0](value):
        raise ConfigError(key, value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…", TEXT[1])
    return value


def several(key: str, values: Any) -> Iterable[Any]:
    """Return the values; a text, and what is not iterable, is one value. Raises ConfigError for bytes, which would be numbers."""
    if isinstance(values, bytes):
        raise wrong_type(key, values, "one value, or several as a list")
    return (values,) if isinstance(values, str) or not isinstance(values, Iterable) else values

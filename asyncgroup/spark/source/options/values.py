"""Parse option values like Spark: numbers like Scala's toInt and toLong, durations and sizes like JavaUtils.

Parsers return the value or raise ValueError whose text says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

__all__ = ["INT32_MAX", "INT64_MAX", "boolean", "choice", "duration", "integer", "milliseconds", "size"]

INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF

T = TypeVar("T")

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]{1,18})([a-z]+)?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,18})([a-z]+)?", re.ASCII)

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BINARY: Final[Mapping[str, int]] = {
    unit: 1024**power
    for power, units in enumerate((["b"], ["k", "kb"], ["m", "mb"], ["g", "gb"], ["t", "tb"], ["p", "pb"]))
    for unit in units
}


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of decimal integers, without surrounding spaces."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not minimum <= (number := int(text)) <= maximum:
            raise ValueError(f"a whole number, {minimum} to {maximum}")
        return number

    return read


def boolean(text: str) -> bool:
    """Parse true or false, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def choice(**words: T) -> Callable[[str], T]:
    """Return a parser of one of these words, in any case, which returns the word's value."""

    def read(text: str) -> T:
        try:
            return words[text.strip().lower()]
        except KeyError:
            raise ValueError(" or ".join(words)) from None

    return read


def milliseconds(text: str) -> float:
    """Parse milliseconds, 1 or more; return seconds."""
    try:
        return integer(1, INT32_MAX)(text) / 1000
    except ValueError as error:
        raise ValueError(f"{error} (milliseconds)") from None


def duration(*, minimum: float, default_unit: Literal["ms"] | None) -> Callable[[str], float]:
    """Return a parser of durations (`JavaUtils.timeStringAs`) such as `15m`, `1000ms` or `10s`, which returns seconds.

    `default_unit` is the unit of a number without one; None: a unit is required, because the meaning is not obvious.
    """
    with_unit = "a duration such as 500ms, 10s or 15m (us, ms, s, m, min, h, d)"
    allowed = with_unit if minimum == 0 else f"{with_unit}, at least {minimum:g}s"

    def read(text: str) -> float:
        found = _DURATION.fullmatch(text.strip().lower())
        unit = _UNITS.get(found[2] or default_unit or "") if found else None
        if found is None or unit is None or not (seconds := int(found[1]) * unit) >= minimum:
            raise ValueError(allowed)
        return seconds

    return read


def size(*, minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of sizes (`JavaUtils.byteStringAs`) such as `64m`, `64mb` or `512k`, which returns bytes.

    The units b, k, m, g, t, p are powers of 1024.
    """

    def read(text: str) -> int:
        found = _SIZE.fullmatch(text.strip().lower())
        unit = _BINARY.get(found[2] or "b") if found else None
        if found is None or unit is None or not minimum <= (number := int(found[1]) * unit) <= maximum:
            raise ValueError(f"a size such as 512k or 64m (b, k, m, g, t, p), {minimum} to {maximum} bytes")
        return number

    return read

"""`asyncgroup broker --set NAME=VALUE`: the parts of such an argument, and parsers of values, which raise ValueError with what is allowed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final, NamedTuple

__all__ = [
    "INTERVAL",
    "MILLISECONDS",
    "SECONDS",
    "Parse",
    "Setting",
    "boolean",
    "idle_time",
    "integer",
    "names",
    "pairs",
    "racks",
    "scaled",
    "setting",
]

Parse = Callable[[str], Any]

_SECRET: Final = frozenset({"users", "key_password", "tokens"})


class Setting(NamedTuple):
    """One `--set NAME=VALUE`."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"--set {self.name}={'…' if self.name in _SECRET else self.value}"


def setting(text: str) -> Setting:
    """Parse an argument."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        # without the text, which may be a password
        raise argparse.ArgumentTypeError("expected NAME=VALUE, such as num.partitions=6")
    return Setting(name.strip(), value.strip())


def integer(least: int) -> Parse:
    """Return a parser of whole numbers."""

    def parse(text: str) -> int:
        if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal()) or int(text) < least:
            raise ValueError(f"a whole number, {least} or more")
        return int(text)

    return parse


def scaled(unit: float, what: str, *, not_zero: bool = False) -> Parse:
    """Return a parser of numbers in another unit."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e15 or (not_zero and not number):
            raise ValueError(f"a number of {what}, {'more than 0' if not_zero else '0 or more'}")
        return number * unit

    return parse


MILLISECONDS: Final = scaled(0.001, "milliseconds")
INTERVAL: Final = scaled(0.001, "milliseconds", not_zero=True)
SECONDS: Final = scaled(1.0, "seconds")


def boolean(text: str) -> bool:
    """Parse a flag."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def idle_time(text: str) -> float | None:
    """Parse milliseconds above 0, or -1 for no limit; returns seconds, or None."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number != -1 and not 0 < number < 1e15:
        raise ValueError("milliseconds, more than 0, or -1 for never")
    return None if number == -1 else number / 1000


def names(text: str) -> list[str]:
    """Parse names, separated by commas."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise ValueError("names separated by commas")
    return found


def racks(text: str) -> list[str | None]:
    """Parse racks, separated by commas. An empty one means that the broker has no rack."""
    return [name.strip() or None for name in text.split(",")]


def pairs(first: str, second: str, *, at_last: bool = False) -> Parse:
    """Return a parser of pairs, separated by commas, such as `NAME:PASSWORD`, at their first colon or at their last one."""

    def parse(text: str) -> dict[str, str]:
        found = {}
        for pair in text.split(","):
            one, colon, other = pair.rpartition(":") if at_last else pair.partition(":")
            if not (one and colon and other):
                raise ValueError(f"{first}:{second}, several separated by commas")
            found[one] = other
        return found

    return parse

"""Files in Java's properties format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

__all__ = ["Value", "property_text"]

Value: TypeAlias = str | int | float | bool


def property_text(properties: Mapping[str, Value]) -> str:
    """Return the text of the file, with the escapes of Java's properties format (ASCII only)."""
    return "".join(
        f"{_escaped(key)}={_escaped(_property_value(value))}\n" for key, value in properties.items()
    )


def _property_value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    """Escape backslashes, line ends, a leading blank and all non-ASCII characters, by UTF-16 code units as Java does."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    backslash = ord("\\")
    plain = "".join(
        chr(code) if 32 <= code < 127 and code != backslash else f"\\u{code:04x}" for code in codes
    )
    return f"\\{plain}" if plain.startswith(" ") else plain

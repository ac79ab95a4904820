"""Java's hash of a string, by which Pulsar's producers choose the partition of a key."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["java_string_hash"]

_POSITIVE: Final = 0x7FFFFFFF
_MASK: Final = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode` without its sign bit."""
    number = 0
    if text.isascii():
        for code in text.encode("ascii"):
            number = (31 * number + code) & _MASK
    else:
        for (code,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
            number = (31 * number + code) & _MASK
    return number & _POSITIVE

"""The murmur2 hash of record keys, by which Kafka's default partitioner chooses partitions."""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["MULTIPLIER", "SEED", "murmur2", "partition_for_key", "to_positive"]

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 hash of `data`, as Java's `Utils.murmur2`."""
    length = len(data)
    h = SEED ^ length
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", memoryview(data)[:whole]):
        k = (k * MULTIPLIER) & _MASK  # noqa: PLW2901  the mixing of one word
        k ^= k >> 24  # noqa: PLW2901
        h = (h * MULTIPLIER ^ k * MULTIPLIER) & _MASK
    if rest := data[whole:]:
        h ^= int.from_bytes(rest, "little")
        h = (h * MULTIPLIER) & _MASK
    h ^= h >> 13
    h = (h * MULTIPLIER) & _MASK
    return h ^ h >> 15


def to_positive(number: int) -> int:
    """Return the number without its sign bit, as Java's `Utils.toPositive`; not the absolute value."""
    return number & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key among `partitions`, the same as Java's default partitioner."""
    return to_positive(murmur2(key)) % partitions

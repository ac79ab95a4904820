"""Which partition a record goes to: Java's choice, so that one key lands in one place whoever writes it.

A record with a key goes to `to_positive(murmur2(key)) % partitions` (`BuiltInPartitioner.partitionForKey` of
kafka-clients). A record without one follows its predecessor until that one's batch is closed, and then moves to
another partition at random (KIP-480): small records fill large batches, and over time every partition gets its share.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

__all__ = ["Sticky", "murmur2", "partition_for_key", "to_positive"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of `data` as Java computes it (`Utils.murmur2`), unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", memoryview(data)[:whole]):
        k = (k * _M) & _MASK  # noqa: PLW2901  the mixing of one word
        k ^= k >> 24  # noqa: PLW2901
        h = (h * _M) & _MASK ^ (k * _M) & _MASK
    if rest := data[whole:]:
        h ^= int.from_bytes(rest, "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ h >> 15


def to_positive(number: int) -> int:
    """The number without its sign bit, as Java's `Utils.toPositive`; not the absolute value."""
    return number & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`, the same as Java's default partitioner gives."""
    return to_positive(murmur2(key)) % partitions


class Sticky:
    """The partition that records without a key go to for the moment; `move` chooses the next one."""

    __slots__ = ("_random", "current")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.current = -1

    def __repr__(self) -> str:
        return f"<Sticky partition {self.current}>"

    def move(self, available: Sequence[int]) -> int:
        """Choose one of `available` (not empty) at random, another one than before where there is another."""
        if self.current not in available:
            self.current = self._random.choice(available)
        elif len(available) > 1:
            # every partition but the present one, without building the list of them
            place = self._random.randrange(len(available) - 1)
            self.current = available[place] if available[place] != self.current else available[-1]
        return self.current

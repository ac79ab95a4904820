"""Hash ranges: which local consumer of a Key_Shared queue handles an ordering key. Pure state.

The hash is Pulsar's: Murmur3_32 of the key modulo 65536 (`StickyKeyConsumerSelectorUtils.makeStickyKeyHash`), so that
ranges written for Pulsar's `KeySharedPolicy.stickyHashRange` select the same keys here. `AutoSplitRanges` divides the
hashes among the consumers, `ExplicitRanges` uses the ranges that the consumers name.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from asyncgroup.errors import ConfigError

__all__ = [
    "RANGE_SIZE",
    "AutoSplitRanges",
    "ExplicitRanges",
    "KeyRange",
    "key_hash",
    "murmur3_32",
    "parse_ranges",
]

RANGE_SIZE: Final = 2 << 15
"""The number of hashes, 65536 (`StickyKeyConsumerSelector.DEFAULT_RANGE_SIZE`)."""

_NOT_SET: Final = 0  # Pulsar's STICKY_KEY_HASH_NOT_SET: the hash of no key
_MASK: Final = 0xFFFFFFFF
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_RULE: Final = f"hash ranges (start, end), both inclusive, 0 <= start <= end <= {RANGE_SIZE - 1}"
_NO_OVERLAP: Final = "hash ranges that do not overlap"


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """Return the unsigned 32-bit hash MurmurHash3_x86_32 of `data`."""
    h = seed
    whole = len(data) & ~3
    for (k,) in struct.iter_unpack("<I", memoryview(data)[:whole]):
        h ^= _scrambled(k)
        h = (h << 13 | h >> 19) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    if rest := data[whole:]:
        h ^= _scrambled(int.from_bytes(rest, "little"))
    h ^= len(data)
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _MASK
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _MASK
    return h ^ h >> 16


def _scrambled(k: int) -> int:
    k = (k * _C1) & _MASK
    k = (k << 15 | k >> 17) & _MASK
    return (k * _C2) & _MASK


def key_hash(key: bytes) -> int:
    """Return the hash of an ordering key, 1 to 65535, as Pulsar 4.

    A key whose hash is 0 has hash 1: Pulsar reserves 0 (`StickyKeyConsumerSelector.STICKY_KEY_HASH_NOT_SET`).
    """
    # Pulsar clears the sign bit before the modulo; that bit is above those that the modulo keeps
    return murmur3_32(key) % RANGE_SIZE or _NOT_SET + 1


@dataclass(frozen=True, slots=True, order=True, repr=False)
class KeyRange:
    """The hashes from `start` to `end`, both inclusive, as Pulsar's `Range`.

    Raises ConfigError unless both are whole numbers and 0 <= start <= end <= 65535.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        is_whole = type(self.start) is int and type(self.end) is int
        if not is_whole or not 0 <= self.start <= self.end < RANGE_SIZE:
            raise ConfigError("key_ranges", (self.start, self.end), _RULE)

    def __contains__(self, key_hash: int) -> bool:
        return self.start <= key_hash <= self.end

    def __repr__(self) -> str:
        return f"[{self.start}, {self.end}]"

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """Return the hashes that are in both ranges, None if there are none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyRange(start, end) if start <= end else None


def parse_ranges(ranges: Any) -> tuple[KeyRange, ...]:
    """Return ranges that are given as KeyRange or as pairs (start, end), in ascending order.

    Raises ConfigError if there are none, if one is invalid, or if two of them overlap.
    """
    if isinstance(ranges, KeyRange):
        ranges = (ranges,)
    if isinstance(ranges, str | bytes) or not isinstance(ranges, Iterable):
        raise ConfigError("key_ranges", ranges, _RULE)
    found = sorted(_parse_range(each) for each in ranges)
    if not found:
        raise ConfigError("key_ranges", (), f"one range or more: {_RULE}")
    for one, following in pairwise(found):
        if (both := one.intersect(following)) is not None:
            raise ConfigError("key_ranges", following, f"{_NO_OVERLAP}; {both} is in {one} as well")
    return tuple(found)


def _parse_range(each: Any) -> KeyRange:
    match each:
        case KeyRange():
            return each
        case (start, end):
            return KeyRange(start, end)
    raise ConfigError("key_ranges", each, _RULE)


class AutoSplitRanges:
    """One range for each consumer; together they contain every hash, as soon as there is a consumer.

    As Pulsar's `HashRangeAutoSplitStickyKeyConsumerSelector`: a consumer that is added receives the lower half of the
    widest range, the lowest of several. The range of a consumer that is removed goes to the consumer of the next
    higher range, the highest range to that of the next lower one. No other hash changes its consumer.
    """

    def __init__(self, size: int = RANGE_SIZE) -> None:
        self._last = size - 1
        self._ends: list[
            int
        ] = []  # ascending, the last one is `_last`; each range begins after the end before it
        self._names: list[str] = []  # the consumers, in the order of `_ends`

    def __repr__(self) -> str:
        return f"<AutoSplitRanges {self.ranges()}>"

    def add(self, name: str) -> None:
        """Give a consumer the lower half of the widest range; raise ConfigError if no range can be divided."""
        if not self._ends:
            self._ends.append(self._last)
            self._names.append(name)
            return
        # Pulsar counts the hashes above the end of the range below: hash 0, which no key has, does not count
        widths = [end - below for below, end in pairwise((0, *self._ends))]
        width = max(widths)
        if width <= 1:
            raise ConfigError(
                "name", name, f"at most {len(self._ends)} consumers: no hash range can be divided"
            )
        at = widths.index(width)
        self._ends.insert(at, self._ends[at] - width // 2)
        self._names.insert(at, name)

    def remove(self, name: str) -> None:
        """Give the range of a consumer to its neighbour; no effect if it has none."""
        if name not in self._names:
            return
        at = self._names.index(name)
        is_highest = at == len(self._ends) - 1
        del self._names[at]
        del self._ends[at - 1 if is_highest and at > 0 else at]

    def owner(self, key_hash: int) -> str | None:
        """Return the consumer whose range contains the hash, None without consumers."""
        return self._names[bisect_left(self._ends, key_hash)] if self._ends else None

    def ranges(self) -> dict[str, tuple[KeyRange, ...]]:
        """Return the ranges of each consumer, in ascending order."""
        below = (-1, *self._ends)
        return {
            name: (KeyRange(start + 1, end),)
            for name, (start, end) in zip(self._names, pairwise(below), strict=True)
        }

    def gaps(self) -> tuple[KeyRange, ...]:
        """Return the hashes without a consumer: all of them, or none."""
        return () if self._ends else (KeyRange(_NOT_SET + 1, self._last),)


class ExplicitRanges:
    """The ranges that the consumers name, as Pulsar's `HashRangeExclusiveStickyKeyConsumerSelector`.

    They must not overlap. Records whose hash is in no range wait until a consumer with such a range is added: see `gaps`.
    """

    def __init__(self) -> None:
        self._owned: list[tuple[KeyRange, str]] = []  # ascending
        self._starts: list[int] = []  # of the ranges in `_owned`

    def __repr__(self) -> str:
        return f"<ExplicitRanges {self.ranges()}>"

    def add(self, name: str, ranges: Iterable[KeyRange]) -> None:
        """Give a consumer its ranges; raise ConfigError if there are none, or if one overlaps with another range."""
        added = parse_ranges(ranges)
        for one in added:
            for other, owner in self._owned:
                if (both := one.intersect(other)) is not None:
                    raise ConfigError(
                        "key_ranges", one, f"{_NO_OVERLAP}; {both} belongs to consumer {owner!r}"
                    )
        self._replace([*self._owned, *((one, name) for one in added)])

    def remove(self, name: str) -> None:
        """Forget the ranges of a consumer; no effect if it has none."""
        self._replace([each for each in self._owned if each[1] != name])

    def owner(self, key_hash: int) -> str | None:
        """Return the consumer that has a range with the hash, None if there is none."""
        at = bisect_right(self._starts, key_hash) - 1
        if at < 0:
            return None
        found, name = self._owned[at]
        return name if key_hash in found else None

    def ranges(self) -> dict[str, tuple[KeyRange, ...]]:
        """Return the ranges of each consumer, in ascending order."""
        found: dict[str, tuple[KeyRange, ...]] = {}
        for each, name in self._owned:
            found[name] = (*found.get(name, ()), each)
        return found

    def gaps(self) -> tuple[KeyRange, ...]:
        """Return the hashes without a consumer, in ascending order, without hash 0, which no key has."""
        found, start = [], _NOT_SET + 1
        for each, _ in self._owned:
            if start < each.start:
                found.append(KeyRange(start, each.start - 1))
            start = max(start, each.end + 1)
        if start < RANGE_SIZE:
            found.append(KeyRange(start, RANGE_SIZE - 1))
        return tuple(found)

    def _replace(self, owned: list[tuple[KeyRange, str]]) -> None:
        self._owned = sorted(owned)
        self._starts = [each.start for each, _ in self._owned]

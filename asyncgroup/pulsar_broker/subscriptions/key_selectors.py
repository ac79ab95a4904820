"""Which consumer of a Key_Shared subscription gets a key (Pulsar's `StickyKeyConsumerSelector`)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Final, Protocol

from asyncgroup.hashing.key_ranges import RANGE_SIZE, murmur3_32

__all__ = ["ConsistentSelector", "KeySelector", "RangeConflict", "StickySelector", "sticky_hash"]

POINTS: Final = 100
"""Points of each consumer on the ring (`subscriptionKeySharedConsistentHashingReplicaPoints`)."""

_RING: Final = RANGE_SIZE - 1
"""Hashes of the ring; 0 is that of no key."""


class RangeConflict(Exception):
    """The hash ranges of a consumer overlap those of another one."""


def sticky_hash(key: bytes, size: int) -> int:
    """Return the hash of a key below `size`, never 0 (`StickyKeyConsumerSelectorUtils.makeStickyKeyHash`)."""
    return murmur3_32(key) % size or 1


class KeySelector(Protocol):
    """Assigns hashes to consumers, which have numbers."""

    def add(self, number: int, name: str, ranges: list[tuple[int, int]]) -> None:
        """Add a consumer. Raises RangeConflict."""
        ...

    def remove(self, number: int) -> None:
        """Remove a consumer."""
        ...

    def hash_of(self, key: bytes) -> int:
        """Return the hash of a key."""
        ...

    def owner(self, key_hash: int) -> int | None:
        """Return the consumer of a hash; None if it has none."""
        ...


class ConsistentSelector:
    """Points on a ring (`ConsistentHashingStickyKeyConsumerSelector`).

    The points of a consumer depend on its name alone, and of several with one name on the first number that no other one has
    (`ConsumerNameIndexTracker`): on Apache Pulsar the same names have the same keys.
    """

    def __init__(self) -> None:
        self._points: list[int] = []
        self._consumers: dict[int, list[int]] = {}  # by point; of several the first one has it
        self._places: dict[
            int, tuple[str, int]
        ] = {}  # by consumer, its name and its number among those with this name
        self._used: defaultdict[str, set[int]] = defaultdict(set)

    def __repr__(self) -> str:
        return f"<ConsistentSelector of {len(self._places)} consumers>"

    def add(self, number: int, name: str, ranges: list[tuple[int, int]]) -> None:  # noqa: ARG002  it has none
        """Add a consumer."""
        used = self._used[name]
        index = next(each for each in count() if each not in used)
        used.add(index)
        self._places[number] = (name, index)
        for point in _points_of(name, index):
            if point not in self._consumers:
                insort(self._points, point)
                self._consumers[point] = []
            self._consumers[point].append(number)

    def remove(self, number: int) -> None:
        """Remove a consumer."""
        name, index = self._places.pop(number)
        self._used[name].discard(index)
        if not self._used[name]:
            del self._used[name]
        for point in _points_of(name, index):
            self._consumers[point].remove(number)
            if not self._consumers[point]:
                del self._consumers[point]
                del self._points[bisect_left(self._points, point)]

    def hash_of(self, key: bytes) -> int:
        """Return the hash of a key."""
        return _ring_hash(key)

    def owner(self, key_hash: int) -> int | None:
        """Return the consumer of the next point."""
        if not self._points:
            return None
        at = bisect_left(self._points, key_hash)
        return self._consumers[self._points[at % len(self._points)]][0]


def _ring_hash(key: bytes) -> int:
    """Return a hash from 1 on; Java's hashes have 31 bits (`Murmur3_32Hash.makeHash`)."""
    return (murmur3_32(key) & 0x7FFFFFFF) % _RING + 1


def _points_of(name: str, index: int) -> Iterator[int]:
    prefix = f"{name}\0{index}\0"
    for number in range(POINTS):
        yield _ring_hash(f"{prefix}{number}".encode())


class StickySelector:
    """The ranges that the consumers name (`HashRangeExclusiveStickyKeyConsumerSelector`)."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int]] = []  # start, end (included), consumer

    def __repr__(self) -> str:
        return f"<StickySelector of {len(self._ranges)} ranges>"

    def add(self, number: int, name: str, ranges: list[tuple[int, int]]) -> None:
        """Add a consumer. Raises RangeConflict."""
        for start, end in ranges:
            if not 0 <= start <= end < RANGE_SIZE:
                raise RangeConflict(
                    f"Ranges must be [0, {RANGE_SIZE}), but provided range is [{start}, {end}]"
                )
            for other_start, other_end, _ in self._ranges:
                if start <= other_end and other_start <= end:
                    raise RangeConflict(f"Range conflict with consumer {name}: [{start}, {end}]")
        self._ranges += [(start, end, number) for start, end in ranges]

    def remove(self, number: int) -> None:
        """Remove a consumer."""
        self._ranges = [each for each in self._ranges if each[2] != number]

    def hash_of(self, key: bytes) -> int:
        """Return the hash of a key."""
        return sticky_hash(key, RANGE_SIZE)

    def owner(self, key_hash: int) -> int | None:
        """Return the consumer whose range has a hash."""
        return next((number for start, end, number in self._ranges if start <= key_hash <= end), None)

"""Routing: which partition a message goes to (Java's `MessageRoutingMode` and `HashingScheme`).

| name | without a key |
|---|---|
| `round_robin` | with batches: the next partition at every multiple of an interval, so that messages share a batch; else the next one for each message |
| `single_partition` | one partition, chosen at random |

A key decides before that: its hash modulo the number of partitions. The hash is of the key's text on the wire:
`java_string_hash` (Java's `String.hashCode`, the default) or `murmur3_32`. The C++ client, and Python's on it, hash with Boost
by default, whose hash differs between its versions. With `JavaStringHash` they agree for ASCII only: they hash the bytes of
UTF-8, Java's client and this one the units of UTF-16.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from asyncgroup.hashing.java_string import java_string_hash
from asyncgroup.hashing.key_ranges import murmur3_32

__all__ = ["HASHINGS", "ROUTINGS", "MessageRouter", "message_router"]

_POSITIVE: Final = 0x7FFFFFFF

MessageRouter: TypeAlias = Callable[["str | None", int], int]
"""Return the partition of a message with this text as its key, among a number of partitions, more than one."""


def _murmur3(text: str) -> int:
    return murmur3_32(text.encode("utf-8", "surrogateescape")) & _POSITIVE


HASHINGS: Final[dict[str, Callable[[str], int]]] = {
    "java_string_hash": java_string_hash,
    "murmur3_32": _murmur3,
}
"""Hash functions of keys by name."""

ROUTINGS: Final = ("round_robin", "single_partition")
"""The names of routings."""


@dataclass(frozen=True, slots=True)
class RoundRobinRouter:
    """The next partition at every multiple of `interval` seconds (Java's `RoundRobinPartitionMessageRouterImpl`).

    All messages without a key that are sent within an interval go to one partition, and no partition is used for longer,
    also as partitions are added.
    """

    hash_key: Callable[[str], int]
    interval: float
    start: int
    clock: Callable[[], float]

    def __call__(self, key: str | None, partitions: int) -> int:
        """Return the partition."""
        if key is not None:
            return self.hash_key(key) % partitions
        return (int(self.clock() / self.interval) + self.start) % partitions


@dataclass(slots=True)
class EachMessageRouter:
    """The next partition for each message without a key: without batches there is no gain from staying."""

    hash_key: Callable[[str], int]
    next_partition: int

    def __call__(self, key: str | None, partitions: int) -> int:
        """Return the partition."""
        if key is not None:
            return self.hash_key(key) % partitions
        number = self.next_partition
        self.next_partition = number + 1
        return number % partitions


@dataclass(frozen=True, slots=True)
class SinglePartitionRouter:
    """One partition for all messages without a key; it stays the same as partitions are added."""

    hash_key: Callable[[str], int]
    partition: int

    def __call__(self, key: str | None, partitions: int) -> int:
        """Return the partition."""
        return self.partition % partitions if key is None else self.hash_key(key) % partitions


def message_router(
    routing: str,
    hashing: str,
    interval: float,
    partitions: int,
    clock: Callable[[], float],
    rng: random.Random,
) -> MessageRouter:
    """Return the router with these names; `interval` is in seconds, 0 without batches."""
    hash_key = HASHINGS[hashing]
    start = rng.randrange(max(1, partitions))
    if routing == "single_partition":
        return SinglePartitionRouter(hash_key, start)
    if not interval:
        return EachMessageRouter(hash_key, start)
    return RoundRobinRouter(hash_key, max(0.001, interval), start, clock)

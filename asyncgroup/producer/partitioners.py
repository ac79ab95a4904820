"""Partitioning as in the Java producer, so that a key maps to the same partition from either client.

A record with a key goes to `to_positive(murmur2(key)) % partitions` (`BuiltInPartitioner.partitionForKey` of
kafka-clients). Records without a key stick to one partition until its batch is closed, then move to another partition
at random (KIP-480): small records fill large batches, and over time the partitions are used evenly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from asyncgroup.wire.murmur2 import murmur2, partition_for_key, to_positive

__all__ = ["StickyPartition", "murmur2", "partition_for_key", "to_positive"]


class StickyPartition:
    """The partition that records without a key currently go to; `next_partition` chooses another one."""

    __slots__ = ("_random", "current")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.current = -1
        """-1 before the first choice."""

    def __repr__(self) -> str:
        return f"<StickyPartition {self.current}>"

    def next_partition(self, available: Sequence[int]) -> int:
        """Choose one of `available` (not empty) at random; not the current one unless it is the only one."""
        if self.current not in available:
            self.current = self._random.choice(available)
        elif len(available) > 1:
            # uniform over all but the current one, without building a list of them
            place = self._random.randrange(len(available) - 1)
            self.current = available[place] if available[place] != self.current else available[-1]
        return self.current

"""Which partition a record goes to: Java's choice, so that one key lands in one place whoever writes it.

A record with a key goes to `to_positive(murmur2(key)) % partitions` (`BuiltInPartitioner.partitionForKey` of
kafka-clients). A record without one follows its predecessor until that one's batch is closed, and then moves to
another partition at random (KIP-480): small records fill large batches, and over time every partition gets its share.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from asyncgroup.wire.murmur2 import murmur2, partition_for_key, to_positive

__all__ = ["StickyPartition", "murmur2", "partition_for_key", "to_positive"]


class StickyPartition:
    """The partition that records without a key go to for the moment; `next_partition` chooses the next one."""

    __slots__ = ("_random", "current")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.current = -1

    def __repr__(self) -> str:
        return f"<StickyPartition {self.current}>"

    def next_partition(self, available: Sequence[int]) -> int:
        """Choose one of `available` (not empty) at random, another one than before where there is another."""
        if self.current not in available:
            self.current = self._random.choice(available)
        elif len(available) > 1:
            # every partition but the present one, without building the list of them
            place = self._random.randrange(len(available) - 1)
            self.current = available[place] if available[place] != self.current else available[-1]
        return self.current

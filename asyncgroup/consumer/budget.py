"""Budget of fetched but undelivered bytes (`buffer_bytes`), shared evenly by the partitions of a client."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Budget", "PartitionBudget"]


class PartitionBudget(Protocol):
    """How much of a partition may be held and fetched."""

    @property
    def fetch_size(self) -> int:
        """Bytes to fetch at once."""

    def allows(self, held: int, /) -> bool:
        """Return whether a partition that holds `held` bytes (in-flight ones included) may be fetched."""

    def may_resume(self, held: int, /) -> bool:
        """Return whether a stalled partition may be fetched again."""


class Budget:
    """`total` bytes for all partitions of a client; each of the `partition_count` partitions may hold an even share.

    A fetch asks for at most `fetch_size` bytes of a partition, and only while its buffered plus in-flight bytes leave
    room for that in its share. A partition that holds nothing may always be fetched, so that each gets at least one batch.
    """

    __slots__ = ("_max_fetch_size", "partition_count", "total")

    def __init__(self, total: int, max_fetch_size: int) -> None:
        self.total = total
        self._max_fetch_size = max_fetch_size
        self.partition_count = 0

    @property
    def share(self) -> int:
        """Bytes that each partition may hold."""
        return self.total // max(1, self.partition_count)

    @property
    def fetch_size(self) -> int:
        """Bytes to fetch at once: at most half a share, so that one batch can be handled while the next is fetched."""
        return max(1, min(self._max_fetch_size, self.share // 2))

    def allows(self, held: int) -> bool:
        """Return whether a partition that holds `held` bytes (in-flight ones included) may be fetched."""
        return held == 0 or held + self.fetch_size <= self.share

    def may_resume(self, held: int) -> bool:
        """Return whether a stalled partition may be fetched again: at least half of its share is free."""
        return held <= self.share // 2

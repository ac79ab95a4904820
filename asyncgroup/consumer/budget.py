"""How many bytes partitions may hold undelivered: a total, shared evenly."""

from __future__ import annotations

__all__ = ["Budget"]


class Budget:
    """`total` bytes for all partitions of a client; each of `partition_count` may hold an even share.

    A partition is asked for at most `fetch_size` bytes at once, and only while what it holds plus what is under way leaves
    room for that in its share. One that holds nothing may always ask, so that each is guaranteed one batch.
    """

    __slots__ = ("_max_fetch_size", "partition_count", "total")

    def __init__(self, total: int, max_fetch_size: int) -> None:
        self.total, self._max_fetch_size = total, max_fetch_size
        self.partition_count = 0

    @property
    def share(self) -> int:
        """Bytes that one partition may hold."""
        return self.total // max(1, self.partition_count)

    @property
    def fetch_size(self) -> int:
        """Bytes to ask for at once: at most half a share, so that one batch can be handled while the next is fetched."""
        return max(1, min(self._max_fetch_size, self.share // 2))

    def allows(self, held: int) -> bool:
        """Whether a partition that holds so many bytes (reserved ones included) may ask for more."""
        return held == 0 or held + self.fetch_size <= self.share

    def may_resume(self, held: int) -> bool:
        """Whether a stalled partition has room enough to be fetched again: half of its share."""
        return held <= self.share // 2

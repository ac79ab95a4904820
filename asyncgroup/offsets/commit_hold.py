"""CommitHold: values that were written in chunks hold back the commit until they are marked as a whole. Pure state."""

from __future__ import annotations

import heapq
from typing import NamedTuple

__all__ = ["CommitHold"]


class _Held(NamedTuple):
    leader_epoch: int
    last_offset: int | None
    """The offset of the last chunk; None while the value is incomplete."""


class CommitHold:
    """The values of one partition that are incomplete or not marked yet, by the offset of their first chunk.

    A commit between the first and the last chunk of such a value would lose it: the next member would read only the rest.
    """

    def __init__(self) -> None:
        self._values: dict[int, _Held] = {}
        # their offsets as a heap, also of values that were released: a large batch may be marked at its end only
        self._order: list[int] = []

    def __repr__(self) -> str:
        return f"<CommitHold at {sorted(self._values)}>"

    def begin(self, first_offset: int, leader_epoch: int, next_offset: int) -> None:
        """Hold back commits at the first chunk of a value; not if the mark, `next_offset`, was beyond it before."""
        if first_offset >= next_offset or first_offset in self._values:
            if first_offset not in self._values:
                heapq.heappush(self._order, first_offset)
            self._values[first_offset] = _Held(leader_epoch, None)

    def complete(self, first_offset: int, last_offset: int) -> None:
        """The value is complete: from here on a mark beyond its last chunk releases it."""
        if (held := self._values.get(first_offset)) is not None:
            self._values[first_offset] = held._replace(last_offset=last_offset)

    def release(self, first_offset: int) -> None:
        """The value was given up."""
        self._values.pop(first_offset, None)

    def release_from(self, offset: int) -> None:
        """Release the values that began at this offset or later: the log has other records there now."""
        self._values = {first: held for first, held in self._values.items() if first < offset}

    def limit(self, next_offset: int) -> tuple[int, int] | None:
        """Return offset and leader epoch to commit in place of `next_offset`; None if it may be committed.

        Values that are marked as a whole are forgotten.
        """
        while self._order:
            first = self._order[0]
            held = self._values.get(first)
            if held is not None and (held.last_offset is None or held.last_offset >= next_offset):
                return (first, held.leader_epoch) if first < next_offset else None
            heapq.heappop(self._order)
            self._values.pop(first, None)
        return None

    def limit_if(self, next_offset: int) -> tuple[int, int] | None:
        """Return what `limit` would return, and forget nothing: the mark is not there yet."""
        return min(
            (
                (first, held.leader_epoch)
                for first, held in self._values.items()
                if first < next_offset and (held.last_offset is None or held.last_offset >= next_offset)
            ),
            default=None,
        )

"""AckRuns: runs of acknowledged offsets, sorted, in blocks of bounded size. Pure state.

Each change touches one or two blocks, for any offset: adding and removing runs costs O(log n), and a step of bounded size
that moves the entries of a block. In one sorted list a change near the front would move all entries after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final, Self

__all__ = ["AckRuns"]

BLOCK: Final = 512
"""The most runs in a block; a larger one is divided."""


class _Block:
    """Runs in order: run i has the offsets from `starts[i]` to `ends[i]` - 1. Never empty."""

    __slots__ = ("ends", "starts")

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self.starts = starts
        self.ends = ends


class AckRuns:
    """Sorted runs that neither overlap nor touch each other."""

    __slots__ = ("_blocks", "_firsts", "size")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []  # the first start of each block
        self.size = 0
        """The number of offsets in the runs."""

    def __repr__(self) -> str:
        return f"<AckRuns: {len(self)} runs, {self.size} offsets>"

    def __len__(self) -> int:
        """Return the number of runs."""
        return sum(len(block.starts) for block in self._blocks)

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over the runs: first offset, and the offset after the last."""
        return chain.from_iterable(zip(block.starts, block.ends, strict=True) for block in self._blocks)

    def first(self, count: int) -> tuple[list[int], list[int]]:
        """Return the starts and the ends of the first `count` runs, or of all if there are fewer."""
        starts: list[int] = []
        ends: list[int] = []
        for block in self._blocks:
            if len(starts) >= count:
                break
            starts += block.starts
            ends += block.ends
        return starts[:count], ends[:count]

    @property
    def end(self) -> int:
        """The offset after the last one; only if there is a run."""
        return self._blocks[-1].ends[-1]

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return False
        block = self._blocks[at]
        return offset < block.ends[bisect_right(block.starts, offset) - 1]

    def add(self, start: int, end: int) -> bool:
        """Add the offsets from `start` to `end` - 1; return whether any of them is new."""
        at = bisect_right(self._firsts, start) - 1
        place = -1
        if at >= 0:
            block = self._blocks[at]
            place = bisect_right(block.starts, start) - 1
            last = block.ends[place]
            if end <= last:
                return False
            if start <= last:  # the run before is extended
                block.ends[place] = end
                self.size += end - last
                self._merge(at, place)
                return True
        self.size += end - start
        if not self._meets_next(at, place, start, end):
            self._insert(at, place + 1, start, end)
        return True

    def _meets_next(self, at: int, place: int, start: int, end: int) -> bool:
        """Extend the run after this place down to `start` if `end` reaches it; return whether it does."""
        found = self._next(at, place)
        if found is None:
            return False
        at, place = found
        block = self._blocks[at]
        first = block.starts[place]
        if first > end:
            return False
        block.starts[place] = start
        if not place:
            self._firsts[at] = start
        if (last := block.ends[place]) >= end:
            self.size -= end - first
        else:
            self.size -= last - first
            block.ends[place] = end
            self._merge(at, place)
        return True

    def _next(self, at: int, place: int) -> tuple[int, int] | None:
        """Return block and place of the run after this one; with a block of -1 those of the first run."""
        if at >= 0 and place + 1 < len(self._blocks[at].starts):
            return at, place + 1
        return (at + 1, 0) if at + 1 < len(self._blocks) else None

    def _merge(self, at: int, place: int) -> None:
        """Add the runs that this one reaches to it, after its end has moved."""
        block = self._blocks[at]
        end = block.ends[place]
        while (found := self._next(at, place)) is not None:
            other = self._blocks[found[0]]
            start, last = other.starts[found[1]], other.ends[found[1]]
            if start > end:
                break
            self.size -= min(last, end) - start
            end = max(end, last)
            self._remove(*found)
        block.ends[place] = end

    def _remove(self, at: int, place: int) -> None:
        block = self._blocks[at]
        del block.starts[place], block.ends[place]
        if not block.starts:
            del self._blocks[at], self._firsts[at]
        elif not place:
            self._firsts[at] = block.starts[0]

    def _insert(self, at: int, place: int, start: int, end: int) -> None:
        if at < 0:  # before all
            if not self._blocks:
                self._blocks.append(_Block([start], [end]))
                self._firsts.append(start)
                return
            at = 0
        block = self._blocks[at]
        starts, ends = block.starts, block.ends
        starts.insert(place, start)
        ends.insert(place, end)
        if not place:
            self._firsts[at] = start
        if len(starts) > BLOCK:
            # runs that are added at the end, as most are, leave full blocks
            half = BLOCK if place == BLOCK else BLOCK // 2
            self._blocks.insert(at + 1, _Block(starts[half:], ends[half:]))
            self._firsts.insert(at + 1, starts[half])
            del starts[half:], ends[half:]

    def pop_below(self, base: int) -> int:
        """Remove the offsets below `base`, and the run that begins there or before; return its end, or `base` without one."""
        while self._firsts and self._firsts[0] <= base:
            block = self._blocks[0]
            start, end = block.starts[0], block.ends[0]
            self.size -= end - start
            base = max(base, end)
            self._remove(0, 0)
        return base

    def copy(self) -> Self:
        """Return a copy that changes by itself."""
        made = type(self)()
        made._blocks = [_Block(block.starts.copy(), block.ends.copy()) for block in self._blocks]
        made._firsts = self._firsts.copy()
        made.size = self.size
        return made

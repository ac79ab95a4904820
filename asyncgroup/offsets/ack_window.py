"""AckWindow: which offsets of a partition are acknowledged, in any order. Pure state.

The model is Pulsar's cursor (`ManagedCursorImpl`: the mark-delete position and `individualDeletedMessages`): everything
below `base` is acknowledged, and above it runs of acknowledged offsets. When the record at `base` is acknowledged,
`base` moves to the end of the first run. So `base` is always the offset to commit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

__all__ = ["AckWindow"]


class AckWindow:
    """Acknowledged offsets of one partition, and the number of failed deliveries of those that are not.

    Offsets without a record (compacted away, transaction markers) have to be acknowledged too: see `ack_range`.
    """

    __slots__ = ("_ends", "_starts", "attempts", "base", "version")

    def __init__(
        self, base: int, runs: Iterable[tuple[int, int]] = (), attempts: Mapping[int, int] | None = None
    ) -> None:
        self.base = base
        """The first offset that is not acknowledged: the offset to commit."""
        # The runs above `base`, as two sorted lists. They neither touch each other nor `base`:
        # base < starts[0] < ends[0] < starts[1] < ends[1] …; run i holds the offsets from starts[i] to ends[i] - 1.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.attempts: dict[int, int] = {}
        """For offsets that are not acknowledged: the number of deliveries that have failed, or that a commit counted in
        advance."""
        self.version = 0
        """Changes with every change of the window."""
        for start, end in runs:
            self.ack_range(start, end)
        for offset, count in (attempts or {}).items():
            self.set_attempts(offset, count)

    def __repr__(self) -> str:
        return f"<AckWindow: base {self.base}, {len(self._starts)} runs to {self.end}>"

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of acknowledged offsets above `base`: first offset, and the offset after the last."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def end(self) -> int:
        """The offset after the last acknowledged one."""
        return self._ends[-1] if self._ends else self.base

    @property
    def acked_above(self) -> int:
        """The number of acknowledged offsets above `base`."""
        return sum(self._ends) - sum(self._starts)

    def __contains__(self, offset: int) -> bool:
        """Whether the offset is acknowledged."""
        if offset < self.base:
            return True
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def ack(self, offset: int) -> bool:
        """Acknowledge one offset; return False if it was acknowledged before."""
        if offset == self.base:  # in order: the common case
            starts = self._starts
            if starts and starts[0] == offset + 1:
                del starts[0]
                self.base = self._ends.pop(0)
            else:
                self.base = offset + 1
        elif offset in self:
            return False
        else:
            self._add_run(offset, offset + 1)
        self.version += 1
        if self.attempts:
            self.attempts.pop(offset, None)
        return True

    def ack_range(self, start: int, end: int) -> None:
        """Acknowledge the offsets from `start` to `end` - 1; nothing if the range is empty."""
        start = max(start, self.base)
        if start >= end:
            return
        if start == self.base:
            self._move_base(end)
        else:
            place = bisect_right(self._starts, start) - 1
            if place >= 0 and end <= self._ends[place]:
                return
            self._add_run(start, end)
        self.version += 1
        attempts = self.attempts
        if end - start < len(attempts):  # a gap of one offset is frequent: a transaction marker
            for offset in range(start, end):
                attempts.pop(offset, None)
        else:
            for offset in [offset for offset in attempts if start <= offset < end]:
                del attempts[offset]

    def with_acks(self, offsets: Iterable[int]) -> AckWindow:
        """Return a copy in which these offsets are acknowledged, too."""
        copy = AckWindow(self.base)
        copy._starts, copy._ends = self._starts.copy(), self._ends.copy()
        copy.attempts.update(self.attempts)
        for offset in offsets:
            copy.ack(offset)
        return copy

    def set_attempts(self, offset: int, count: int) -> None:
        """Remember how often an offset that is not acknowledged was delivered without success; 0 forgets it."""
        if offset in self or self.attempts.get(offset, 0) == count:
            return
        if count:
            self.attempts[offset] = count
        else:
            del self.attempts[offset]
        self.version += 1

    def restart(self, base: int) -> None:
        """Forget all: the log has other records from `base` on, or reading goes on there after an offset reset."""
        self.base = base
        self._starts.clear()
        self._ends.clear()
        self.attempts.clear()
        self.version += 1

    def truncate(self, offset: int) -> None:
        """Forget everything from `offset` on: the log was truncated there."""
        kept = [(start, min(end, offset)) for start, end in self.runs if start < offset]
        attempts = {at: count for at, count in self.attempts.items() if at < offset}
        self.restart(min(self.base, offset))
        self._starts = [start for start, _ in kept]
        self._ends = [end for _, end in kept]
        self.attempts.update(attempts)

    def _move_base(self, base: int) -> None:
        """Move `base` forward, over the runs that it reaches."""
        reached = bisect_right(self._starts, base)
        if reached:
            base = max(base, self._ends[reached - 1])
            del self._starts[:reached]
            del self._ends[:reached]
        self.base = base

    def _add_run(self, start: int, end: int) -> None:
        """Add a run above `base`, merged with those that it touches."""
        first = bisect_left(self._ends, start)  # the first run that ends at `start` or later
        after = bisect_right(self._starts, end)  # the first run that begins later than `end`
        if first < after:
            start = min(start, self._starts[first])
            end = max(end, self._ends[after - 1])
        self._starts[first:after] = [start]
        self._ends[first:after] = [end]

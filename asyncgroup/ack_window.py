"""AckWindow: which offsets of a partition are acknowledged, in any order. Pure state.

The model is Pulsar's cursor (`ManagedCursorImpl`: the mark-delete position and `individualDeletedMessages`): everything
below `base` is acknowledged, and above it runs of acknowledged offsets. When the record at `base` is acknowledged,
`base` moves to the end of the first run. So `base` is always the offset to commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from asyncgroup.ack_runs import AckRuns

__all__ = ["AckWindow"]


class AckWindow:
    """Acknowledged offsets of one partition, and the numbers of failed deliveries of the other offsets.

    Offsets without a record (compacted away, transaction markers) have to be acknowledged too: see `ack_range`.
    """

    __slots__ = ("_runs", "attempts", "base", "unfinished", "version")

    def __init__(
        self, base: int, runs: Iterable[tuple[int, int]] = (), attempts: Mapping[int, int] | None = None
    ) -> None:
        self.base = base
        """The first offset that is not acknowledged: the offset to commit."""
        self._runs = AckRuns()  # above `base`, which they do not touch
        self.attempts: dict[int, int] = {}
        """For offsets that are not acknowledged: the number of deliveries that have failed, or that a commit counted in
        advance."""
        self.unfinished: set[int] = set()
        """Offsets in `attempts` without an outcome: all of their deliveries were counted in advance by commits."""
        self.version = 0
        """Changes with every change of the window."""
        for start, end in runs:
            self.ack_range(start, end)
        for offset, count in (attempts or {}).items():
            self.set_attempts(offset, count)

    def __repr__(self) -> str:
        return f"<AckWindow: base {self.base}, {len(self._runs)} runs to {self.end}>"

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of acknowledged offsets above `base`: first offset, and the offset after the last."""
        return list(self._runs)

    def first_runs(self, count: int) -> tuple[list[int], list[int]]:
        """Return the starts and the ends of the first `count` of `runs`, or of all if there are fewer."""
        return self._runs.first(count)

    @property
    def end(self) -> int:
        """The offset after the last acknowledged one."""
        return self._runs.end if self._runs.size else self.base

    @property
    def acked_above(self) -> int:
        """The number of acknowledged offsets above `base`."""
        return self._runs.size

    def __contains__(self, offset: int) -> bool:
        """Whether the offset is acknowledged."""
        return offset < self.base or offset in self._runs

    def ack(self, offset: int) -> bool:
        """Acknowledge one offset; return False if it was acknowledged before."""
        if offset == self.base:  # in order: the common case
            self.base = self._runs.pop_below(offset + 1) if self._runs.size else offset + 1
        elif offset < self.base or not self._runs.add(offset, offset + 1):
            return False
        self.version += 1
        if self.attempts:
            self._forget_attempts(offset)
        return True

    def ack_range(self, start: int, end: int) -> None:
        """Acknowledge the offsets from `start` to `end` - 1; nothing if the range is empty."""
        start = max(start, self.base)
        if start >= end:
            return
        if start == self.base:
            self.base = self._runs.pop_below(end)
        elif not self._runs.add(start, end):
            return
        self.version += 1
        attempts = self.attempts
        if end - start < len(attempts):  # a gap of one offset is frequent: a transaction marker
            for offset in range(start, end):
                self._forget_attempts(offset)
        else:
            for offset in [offset for offset in attempts if start <= offset < end]:
                self._forget_attempts(offset)

    def with_acks(self, offsets: Iterable[int]) -> AckWindow:
        """Return a copy in which these offsets are also acknowledged."""
        copy = AckWindow(self.base)
        copy._runs = self._runs.copy()
        copy.attempts.update(self.attempts)
        copy.unfinished.update(self.unfinished)
        for offset in offsets:
            copy.ack(offset)
        return copy

    def set_attempts(self, offset: int, count: int, *, in_advance: bool = False) -> None:
        """Remember how often an offset that is not acknowledged was delivered without success; 0 forgets it.

        `in_advance`: no outcome of a delivery is reported, the number is that before or after the next one.
        """
        if offset in self:
            return
        before = self.attempts.get(offset, 0)
        if not in_advance and offset in self.unfinished:
            self.unfinished.remove(offset)
            self.version += 1
        if before == count:
            return
        if not count:
            self._forget_attempts(offset)
        else:
            self.attempts[offset] = count
            if in_advance and not before:
                self.unfinished.add(offset)
        self.version += 1

    def _forget_attempts(self, offset: int) -> None:
        if self.attempts.pop(offset, None) is not None:
            self.unfinished.discard(offset)

    def restart(self, base: int) -> None:
        """Forget all: the log has other records from `base` on, or reading goes on there after an offset reset."""
        self.base = base
        self._runs = AckRuns()
        self.attempts.clear()
        self.unfinished.clear()
        self.version += 1

    def truncate(self, offset: int) -> None:
        """Forget everything from `offset` on: the log was truncated there."""
        kept = [(start, min(end, offset)) for start, end in self._runs if start < offset]
        attempts = {at: count for at, count in self.attempts.items() if at < offset}
        unfinished = {at for at in self.unfinished if at < offset}
        self.restart(min(self.base, offset))
        for start, end in kept:
            self._runs.add(start, end)
        self.attempts.update(attempts)
        self.unfinished.update(unfinished)

"""How far the group is, and the gate that keeps it from being done before the story is told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from asyncgroup.errors import AsyncGroupError
from asyncgroup.group import Claim
from asyncgroup.model import TopicPartition

__all__ = ["DemoFailed", "Gate", "GroupProgress", "RateMeter"]

WINDOW: Final = 2.0
"""Seconds over which rates are averaged."""

STALL_TIMEOUT: Final = 60.0
"""Seconds without any progress after which something must be wrong."""


class DemoFailed(AsyncGroupError):
    """The story did not go as it should."""


class RateMeter:
    """A rate over the last seconds."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._begun = time()
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, count: int) -> None:
        """Something was done now."""
        self._counts.append((self._time(), count))

    @property
    def rate(self) -> float:
        """Per second."""
        now = self._time()
        while self._counts and self._counts[0][0] < now - WINDOW:
            self._counts.popleft()
        return sum(count for _, count in self._counts) / max(0.1, min(WINDOW, now - self._begun))


class GroupProgress:
    """Of `total` records: those committed, and those that handlers have taken."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.committed_offsets: dict[TopicPartition, int] = {}
        self.delivered: dict[TopicPartition, int] = {}
        self.meter = RateMeter(asyncio.get_running_loop().time)
        self._changed = asyncio.Event()

    @property
    def committed_records(self) -> int:
        """Records whose offsets are committed: topics of the demonstration begin at offset 0."""
        return sum(self.committed_offsets.values())

    def commit(self, tp: TopicPartition, offset: int) -> int:
        """A commit succeeded; returns how many records are newly committed."""
        news = max(0, offset - self.committed_offsets.get(tp, 0))
        if news:
            self.committed_offsets[tp] = offset
            self.meter.add(news)
        self.notify()
        return news

    def set_delivered(self, tp: TopicPartition, offset: int) -> None:
        """A handler has everything before `offset`; less than before if records are delivered again."""
        self.delivered[tp] = offset
        self.notify()

    def notify(self) -> None:
        """Something has changed that somebody may wait for."""
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """Set by the next change. Take it before looking at what may change: one in between is not missed then."""
        return self._changed

    async def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to become so; raises DemoFailed when nothing at all has changed for a minute."""
        while not condition():
            try:
                async with asyncio.timeout(STALL_TIMEOUT):
                    await self.next_change.wait()
            except TimeoutError:
                raise DemoFailed(
                    f"nothing happened for {STALL_TIMEOUT:.0f} s while waiting for {what}; "
                    f"{self.committed_records:,} of {self.total:,} records were committed"
                ) from None


class Gate:
    """Holds the claims back once a share of the records was taken, until it is opened further.

    The group is faster than its rebalances: without a gate it could be done before they happened.
    """

    def __init__(self, progress: GroupProgress) -> None:
        self._progress = progress
        self._limit = progress.total

    def open_to(self, share: float) -> None:
        """Let records through up to this share of all."""
        self._limit = int(share * self._progress.total)
        self._progress.notify()

    @property
    def is_closed(self) -> bool:
        return self._limit <= sum(self._progress.delivered.values()) < self._progress.total

    async def wait(self, claim: Claim) -> None:
        """Wait until the gate is open, or the claim at its end."""
        while True:
            change = self._progress.next_change
            if not self.is_closed or claim.ended:
                return
            waiting: list[asyncio.Task[Any]] = [
                asyncio.create_task(change.wait()),
                asyncio.create_task(claim.wait_ended()),
            ]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.wait(waiting)

"""The progress of the group, and the gate that keeps it from consuming all records before its rebalances."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from asyncgroup.counting import counted
from asyncgroup.errors import AsyncGroupError
from asyncgroup.group import Claim
from asyncgroup.model import TopicPartition

__all__ = ["DemoFailed", "Gate", "GroupProgress", "RateMeter"]

WINDOW: Final = 2.0
"""Seconds over which rates are averaged."""

STALL_TIMEOUT: Final = 180.0
"""Seconds without any change after which the demonstration fails.

Spark's first write, during which nothing changes, takes 10 s, and more than a minute on a machine that is busy with others.
"""


class DemoFailed(AsyncGroupError):
    """The demonstration cannot run, or did not run as it should."""


class RateMeter:
    """The rate of events over the last `WINDOW` seconds."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._begun = time()
        self._counts: deque[tuple[float, int]] = deque()  # (time, events)

    def add(self, count: int) -> None:
        """Count events at the current time."""
        self._counts.append((self._time(), count))

    @property
    def rate(self) -> float:
        """Events per second."""
        now = self._time()
        while self._counts and self._counts[0][0] < now - WINDOW:
            self._counts.popleft()
        return sum(count for _, count in self._counts) / max(0.1, min(WINDOW, now - self._begun))


class GroupProgress:
    """The committed and the delivered records of `total` ones."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.committed_offsets: dict[TopicPartition, int] = {}
        self.delivered: dict[TopicPartition, int] = {}  # the offset up to which handlers got records
        self.meter = RateMeter(asyncio.get_running_loop().time)  # of committed records
        self._changed = asyncio.Event()  # replaced at each change

    @property
    def committed_records(self) -> int:
        """The number of committed records: the partitions of the demonstration begin at offset 0."""
        return sum(self.committed_offsets.values())

    def commit(self, tp: TopicPartition, offset: int) -> int:
        """Record a successful commit, and return the number of records that were not committed before."""
        new = max(0, offset - self.committed_offsets.get(tp, 0))
        if new:
            self.committed_offsets[tp] = offset
            self.meter.add(new)
        self.notify()
        return new

    def set_delivered(self, tp: TopicPartition, offset: int) -> None:
        """Record that a handler got everything before `offset`, which goes back if records are delivered again."""
        self.delivered[tp] = offset
        self.notify()

    def notify(self) -> None:
        """Wake all waiters, after any change."""
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """An event that the next change sets. Get it before checking a condition, so that no change is missed."""
        return self._changed

    async def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition is true. Raises DemoFailed if nothing has changed for `STALL_TIMEOUT` seconds."""
        while not condition():
            try:
                async with asyncio.timeout(STALL_TIMEOUT):
                    await self.next_change.wait()
            except TimeoutError:
                done = f"{self.committed_records:,} of {counted(self.total, 'record was', 'records were')} committed"
                raise DemoFailed(
                    f"no progress for {STALL_TIMEOUT:.0f} s while waiting for {what}; {done}"
                ) from None


class Gate:
    """Stops the claims once a share of the records was delivered, until it is opened further.

    Consuming is faster than rebalancing: without the gate all records could be consumed before the rebalances.
    """

    def __init__(self, progress: GroupProgress) -> None:
        self._progress = progress
        self._limit = progress.total  # records

    def open_to(self, share: float) -> None:
        """Let claims continue until this share of all records is delivered."""
        self._limit = int(share * self._progress.total)
        self._progress.notify()

    @property
    def is_closed(self) -> bool:
        return self._limit <= sum(self._progress.delivered.values()) < self._progress.total

    async def wait(self, claim: Claim) -> None:
        """Wait until the gate is open or the claim has ended."""
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

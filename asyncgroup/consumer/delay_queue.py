"""Delay queue of partitions: each becomes due at a time of its own.

Used for leaderless partitions, which wait for their next try, and for partitions that await an offset reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.lifecycle import wait_within
from asyncgroup.model import TopicPartition

__all__ = ["DelayQueue"]


class _Entry(NamedTuple):
    consumer: PartitionConsumer
    due: float


class DelayQueue:
    """Partitions in the order of their due times.

    Partitions that become due within `window` seconds of each other are returned together, so that one metadata refresh
    or one ListOffsets request serves all of them.
    """

    def __init__(self, window: float) -> None:
        self._window = window  # seconds
        self._entries: dict[TopicPartition, _Entry] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<DelayQueue: {', '.join(map(str, self._entries)) or 'empty'}>"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, consumer: PartitionConsumer) -> bool:
        entry = self._entries.get(consumer.tp)
        return entry is not None and entry.consumer is consumer

    @property
    def consumers(self) -> list[PartitionConsumer]:
        """The partitions in the queue."""
        return [entry.consumer for entry in self._entries.values()]

    def put(self, consumer: PartitionConsumer, pause: float) -> None:
        """Make a partition due in `pause` seconds; a second call replaces the first."""
        self._entries[consumer.tp] = _Entry(consumer, asyncio.get_running_loop().time() + pause)
        self._changed.set()

    def discard(self, consumer: PartitionConsumer) -> bool:
        """Remove a partition; return False if it is not in the queue."""
        entry = self._entries.get(consumer.tp)
        if entry is None or entry.consumer is not consumer:
            return False
        del self._entries[consumer.tp]
        return True

    async def wait_due(self, until: Callable[[], float] = lambda: float("inf")) -> list[PartitionConsumer]:
        """Wait until partitions are due, remove and return them; return none if the loop time `until()` comes first.

        `until` is evaluated again whenever a partition is put into the queue.
        """
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            first = min((entry.due for entry in self._entries.values()), default=float("inf"))
            end = until()
            if min(first, end) <= clock():
                limit = clock() + self._window
                due = [entry.consumer for entry in self._entries.values() if entry.due <= limit]
                for consumer in due:
                    del self._entries[consumer.tp]
                return due
            pause = min(first, end) - clock()
            await wait_within(self._changed, pause if pause < float("inf") else None)

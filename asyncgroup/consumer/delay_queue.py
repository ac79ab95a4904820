"""Partitions that wait, each for its own time."""

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
    """A waiting room: `put` with a pause in seconds, `due` gives those whose time has come.

    `window`: those due within so many seconds are called at once, as what is done for one serves them all.
    """

    def __init__(self, window: float) -> None:
        self._window = window
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
        """Those that wait."""
        return [entry.consumer for entry in self._entries.values()]

    def put(self, consumer: PartitionConsumer, pause: float) -> None:
        """Call this partition in `pause` seconds; a second call counts instead of the first."""
        self._entries[consumer.tp] = _Entry(consumer, asyncio.get_running_loop().time() + pause)
        self._changed.set()

    def discard(self, consumer: PartitionConsumer) -> bool:
        """Don't call this partition any more; False if it does not wait."""
        entry = self._entries.get(consumer.tp)
        if entry is None or entry.consumer is not consumer:
            return False
        del self._entries[consumer.tp]
        return True

    async def wait_due(self, until: Callable[[], float] = lambda: float("inf")) -> list[PartitionConsumer]:
        """Wait until some are due, and take them out; none if the loop's time `until()` comes before.

        `until` is asked again whenever a partition begins to wait.
        """
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            first = min((entry.due for entry in self._entries.values()), default=float("inf"))
            end = until()
            if min(first, end) <= clock():
                limit = clock() + self._window
                called = [entry.consumer for entry in self._entries.values() if entry.due <= limit]
                for consumer in called:
                    del self._entries[consumer.tp]
                return called
            pause = min(first, end) - clock()
            await wait_within(self._changed, pause if pause < float("inf") else None)

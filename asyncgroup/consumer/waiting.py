"""Partitions that wait, each for its own time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.lifecycle import wait_within
from asyncgroup.model import TopicPartition

__all__ = ["Waiting"]


class _Entry(NamedTuple):
    consumer: PartitionConsumer
    due: float


class Waiting:
    """A waiting room: `put` with a pause in seconds, `due` gives those whose time has come.

    `together`: those due within so many seconds are called at once, as what is done for one serves them all.
    """

    def __init__(self, together: float) -> None:
        self._together = together
        self._entries: dict[TopicPartition, _Entry] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Waiting: {', '.join(map(str, self._entries)) or 'nobody'}>"

    def __len__(self) -> int:
        return len(self._entries)

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

    async def due(self) -> list[PartitionConsumer]:
        """Wait until some are due, and take them out."""
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            first = min((entry.due for entry in self._entries.values()), default=None)
            if first is not None and first <= clock():
                limit = clock() + self._together
                called = [entry.consumer for entry in self._entries.values() if entry.due <= limit]
                for consumer in called:
                    del self._entries[consumer.tp]
                return called
            await wait_within(self._changed, None if first is None else first - clock())

"""What became of the records that nobody holds a promise for, and who waits for all of them to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.errors import DeliveryFailedError
from asyncgroup.model import TopicPartition
from asyncgroup.producer.batch import ProducerBatch

__all__ = ["DeliveryTracker"]


class DeliveryTracker:
    """Counts lost records by partition, and tells those who flush when their batches are done."""

    def __init__(self) -> None:
        self._lost: dict[TopicPartition, tuple[int, Exception]] = {}
        self._flushes: list[tuple[set[ProducerBatch], asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        lost = sum(count for count, _ in self._lost.values())
        return f"<DeliveryTracker: {lost} records lost, {len(self._flushes)} flushes under way>"

    def add_lost(self, tp: TopicPartition, count: int, error: Exception) -> None:
        """Write down that `count` records are lost."""
        before, first = self._lost.get(tp, (0, error))
        self._lost[tp] = (before + count, first)

    def drain_lost(self) -> DeliveryFailedError | None:
        """The error that tells of everything lost since the last call; None if nothing was."""
        lost, self._lost = self._lost, {}
        return DeliveryFailedError(lost) if lost else None

    async def wait(self, batches: Iterable[ProducerBatch]) -> None:
        """Wait until all these batches are done."""
        left = {batch for batch in batches if not batch.done}
        if not left:
            return
        entry = (left, asyncio.get_running_loop().create_future())
        self._flushes.append(entry)
        try:
            await entry[1]
        finally:
            self._flushes.remove(entry)

    def on_batch_done(self, batch: ProducerBatch) -> None:
        """A batch is done."""
        for left, done in self._flushes:
            left.discard(batch)
            if not left and not done.done():
                done.set_result(None)

"""The records that are done: lost ones of `enqueue`, which have no future, are counted for `flush`; hooks get each batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncgroup.errors import AsyncGroupError, DeliveryFailedError
from asyncgroup.hooks import Hooks
from asyncgroup.model import BatchResult, TopicPartition
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.producer.batches.results import is_silent

__all__ = ["DeliveryTracker"]


class DeliveryTracker:
    """Lost records per partition, and the `flush` calls that wait for batches.

    `hooks` are those that listen to batches which are done; None if there are none.
    """

    def __init__(self, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._lost: dict[TopicPartition, tuple[int, Exception]] = {}
        """The number of lost records and the first error, until reported."""
        self._may_be_written = False  # whether one of them may be in the log
        self._flushes: list[tuple[set[ProducerBatch], asyncio.Future[None]]] = []
        """Of each flush under way: its batches that are not done, and the future that resolves when all are."""

    def __repr__(self) -> str:
        lost = sum(count for count, _ in self._lost.values())
        return f"<DeliveryTracker: {lost} records lost, {len(self._flushes)} flushes under way>"

    def add_lost(self, tp: TopicPartition, count: int, error: Exception) -> None:
        """Count `count` lost records of a partition; -1 as its number means that none was chosen yet."""
        before, first = self._lost.get(tp, (0, error))
        self._lost[tp] = (before + count, first)
        self._may_be_written |= isinstance(error, AsyncGroupError) and error.may_be_written

    def take_lost(self) -> DeliveryFailedError | None:
        """Return an error with all records lost since the last call, or None if there are none."""
        lost, self._lost = self._lost, {}
        may_be_written, self._may_be_written = self._may_be_written, False
        return DeliveryFailedError(lost, may_be_written=may_be_written) if lost else None

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

    def on_batch_done(self, batch: ProducerBatch, error: Exception | None) -> None:
        """A batch is done, and its futures are resolved: count the records that are lost, end the flushes that wait for it."""
        if error is not None:
            silent = batch.count - len(batch.futures) + sum(map(is_silent, batch.futures))
            if silent:
                self.add_lost(batch.tp, silent, error)
        for left, done in self._flushes:
            left.discard(batch)
            if not left and not done.done():
                done.set_result(None)
        if self._hooks is not None:
            self._emit(self._hooks, batch, error)

    def on_batch_split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Replace a batch by its parts in the flushes that wait for it."""
        for left, _ in self._flushes:
            if batch in left:
                left.remove(batch)
                left.update(parts)

    def _emit(self, hooks: Hooks, batch: ProducerBatch, error: Exception | None) -> None:
        hooks.emit("on_produce", *batch.tp, batch.count, error)
        if error is None:
            hooks.emit("on_delivered", *batch.tp, batch.base_offset, batch.count)
        latency = asyncio.get_running_loop().time() - batch.created_at
        sizes = batch.plain_size, batch.wire_size
        result = BatchResult(
            *batch.tp, batch.count, *sizes, latency, batch.attempts, batch.base_offset, error
        )
        hooks.emit("on_batch_done", result)

"""The async iterator over batches of records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from asyncgroup.checks import check_count, check_duration_or_zero
from asyncgroup.model import Batch

if TYPE_CHECKING:
    from asyncgroup.consumer.partition_consumer import PartitionConsumer

__all__ = ["Batches"]


class Batches:
    """The async iterator that `batches()` returns."""

    __slots__ = ("_consumer", "_max_bytes", "_max_records", "_max_wait")

    def __init__(
        self, consumer: PartitionConsumer, max_records: int, max_bytes: int, max_wait: float
    ) -> None:
        for key, value in (("max_records", max_records), ("max_bytes", max_bytes)):
            check_count(key, value)
        check_duration_or_zero("max_wait", max_wait)
        self._consumer = consumer
        self._max_records = max_records
        self._max_bytes = max_bytes  # wire bytes
        self._max_wait = max_wait  # seconds

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """Return the next batch. Raises StopAsyncIteration at the partition's end, fetch errors, CorruptRecordsError."""
        consumer = self._consumer
        await consumer._give_turn()
        while True:
            if consumer._blocked:
                await consumer._attend()
            elif not consumer._buffer or consumer._decoder.must_wait():
                await consumer._wait_for_change()
            elif self._max_wait > 0 and not self._is_enough() and not await self._wait_for_more():
                continue
            elif batch := consumer._pop_batch(self._max_records, self._max_bytes):
                return batch

    def _is_enough(self) -> bool:
        buffer = self._consumer._buffer
        return buffer.records >= self._max_records or buffer.bytes >= self._max_bytes

    async def _wait_for_more(self) -> bool:
        """Wait until the limits are reached or `max_wait` is over.

        Return False if iteration is blocked: the partition has ended, was paused, or has an error to raise.
        """
        consumer = self._consumer
        consumer._made_room()
        consumer._gathering += 1  # the stall check must not count this wait as a slow reader
        try:
            async with asyncio.timeout(self._max_wait):
                while not self._is_enough() and not consumer._blocked and consumer.has_room:
                    await consumer._wait_for_change()
        except TimeoutError:
            pass
        finally:
            consumer._gathering -= 1
        return not consumer._blocked

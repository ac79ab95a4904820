"""Several partitions read by one loop: they take turns, and one record at a time is in the reader's hands."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from asyncgroup.consumer.partition_consumer import TURN_SECONDS, PartitionConsumer
from asyncgroup.consumer.ready_queue import ReadyQueue
from asyncgroup.errors import UsageError
from asyncgroup.model import Record

__all__ = ["MergedReader"]


class MergedReader:
    """An async iterator over the records of all partitions that `serve` watches.

    A turn lasts until a record batch is used up, or for 10 ms if that is shorter; then the next partition with records
    has its turn. Records are popped from a partition's own buffer, and only after every wait: a cancelled read loses
    nothing, a second loop goes on at the very next record, and pauses, seeks and ends of a partition work at once.

    The record that was handed out last is *in hand* until the next one is asked for: its reader still works at it.
    """

    def __init__(self) -> None:
        self._ready = ReadyQueue()
        self._current: PartitionConsumer | None = None
        self._turn_at = 0.0
        self._time = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_waiting = False
        self._ended = False
        self._failure: BaseException | None = None
        self.reader: asyncio.Task[Any] | None = None
        """The task that began to read last, so that it can be told from others that end the reading."""

    def __repr__(self) -> str:
        state = "ended" if self._ended else "a record in hand" if self.in_hand else "idle"
        return f"<MergedReader: {state}, {self._ready!r}>"

    # --- partitions ---------------------------------------------------------------------------------------------

    async def serve(self, consumer: PartitionConsumer) -> None:
        """Let a partition take its turns; returns when it ends."""
        while not consumer.ended:
            if consumer.is_ready and self._ready.add(consumer):
                self._wake.set()
            await consumer.wait_for_change()
        self._ready.remove(consumer)

    def forget(self, consumer: PartitionConsumer) -> None:
        """The partition is gone: a record of it counts as in hand no longer."""
        self._ready.remove(consumer)
        if self._current is consumer:
            self.clear_in_hand()

    @property
    def in_hand(self) -> bool:
        """Whether the reader works at a record."""
        return not self._idle.is_set()

    async def wait_idle(self) -> None:
        """Wait until no record is in hand."""
        await self._idle.wait()

    def clear_in_hand(self) -> None:
        """The record in hand is done with, or given up."""
        self._current = None
        self._idle.set()

    @property
    def failure(self) -> BaseException | None:
        """What the next read will raise; None after it was raised."""
        return self._failure

    def end(self, failure: BaseException | None) -> None:
        """End the iteration: the next read raises `failure` if there is one, later reads raise StopAsyncIteration."""
        self._ended, self._failure = True, failure
        self._wake.set()

    # --- reading ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        # as PartitionConsumer.__anext__, which says more
        while (
            (consumer := self._current) is None
            or consumer._blocked
            or not consumer._buffer.decoded
            or self._time() >= self._turn_at
        ):
            await self._take_turn()
        buffer = consumer._buffer
        decoded = buffer.decoded
        record = decoded.pop()
        if not decoded:
            buffer.release()
            consumer._made_room()
        return record if consumer._intercept is None else consumer._intercept(record)

    async def _take_turn(self) -> None:
        """Wait for a partition with a record to hand out; all waiting is here."""
        if self._is_waiting:
            raise UsageError("one task at a time reads: another one waits for the next record already")
        self.clear_in_hand()
        self._is_waiting = True
        self.reader = asyncio.current_task()
        try:
            await asyncio.sleep(0)  # a turn for the loop at every batch
            while not self._begin_turn():
                if self._ended:
                    failure, self._failure = self._failure, None
                    raise StopAsyncIteration if failure is None else failure
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._is_waiting = False

    def _begin_turn(self) -> bool:
        """Make the next partition in line the current one; False if none has a record. Raises its error instead."""
        while (consumer := self._ready.next_ready()) is not None:
            if consumer.decode_next():
                self._current = consumer
                self._turn_at = self._time() + TURN_SECONDS
                self._idle.clear()
                return True
            # its next batch is being decoded in a thread: `serve` puts it in line again when that is done
            self._ready.remove(consumer)
        return False

"""Read several partitions in one loop: they take turns, and the reader works on one record at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Self

from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.partition_consumer import (
    TURN_BYTES,
    TURN_SECONDS,
    PartitionConsumer,
    work_of,
)
from asyncgroup.errors import UsageError
from asyncgroup.model import Record

__all__ = ["MergedReader", "MergedRecords", "ReadyQueue"]


class ReadyQueue:
    """Round-robin queue of the partitions that have records to deliver.

    Each partition is queued at most once; `next_ready` returns the first ready one and moves it to the end.

    Partitions that are not ready are dropped from the queue, so that a thousand idle partitions cost a busy one nothing;
    `add` has to be called for them again when records arrive.
    """

    def __init__(self) -> None:
        self._queue: OrderedDict[TopicPartitionState, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ReadyQueue: {', '.join(str(partition.tp) for partition in self._queue) or 'empty'}>"

    def add(self, partition: TopicPartitionState) -> bool:
        """Append a partition to the queue; return False if it is queued already."""
        is_new = partition not in self._queue
        self._queue.setdefault(partition)
        return is_new

    def remove(self, partition: TopicPartitionState) -> None:
        """Remove a partition from the queue, if it is queued."""
        self._queue.pop(partition, None)

    def next_ready(self) -> TopicPartitionState | None:
        """Return the next partition that has a record to deliver or an error to raise; None if there is none."""
        while self._queue:
            partition, _ = self._queue.popitem(last=False)
            if partition.is_ready:
                self._queue[partition] = None
                return partition
        return None


class MergedReader:
    """Reads the records of all partitions for which `serve` is running; `records` is the iterator for the user's loop.

    A turn lasts until a record batch, or what was decoded at once of small ones, is used up or 10 ms have passed; then the
    next partition with records has its turn.
    Records are popped from a partition's own buffer, and only after all waiting is done: a canceled read loses nothing, a
    second loop continues at the very next record, and a pause, seek or end of a partition takes effect at once.

    The record that was delivered last is *in progress* until the next one is requested: its reader still works on it.
    """

    def __init__(self) -> None:
        self._ready = ReadyQueue()
        self._current: TopicPartitionState | None = None  # the partition whose turn it is
        self._turn_at = 0.0  # loop time at which its turn ends
        self._yield_at = 0.0  # loop time at which the reader yields to the event loop
        self._work = 0  # what it has decoded since it last did, see `TURN_BYTES`
        self._time = asyncio.get_running_loop().time
        self._wake = asyncio.Event()  # a partition became ready, or the reader has ended
        self._idle = asyncio.Event()  # no record is in progress
        self._idle.set()
        self._is_waiting = False
        self._ended = False
        self._failure: BaseException | None = None
        self.reader: asyncio.Task[Any] | None = None
        """The task that reads, to tell it from other tasks that call `end`."""
        self.records = MergedRecords(self)

    def __repr__(self) -> str:
        state = "ended" if self._ended else "holds a record" if self.holds_record else "idle"
        return f"<MergedReader: {state}, {self._ready!r}>"

    # --- partitions ---------------------------------------------------------------------------------------------

    async def serve(self, consumer: PartitionConsumer) -> None:
        """Give a partition its turns; return when it ends."""
        partition = consumer._inner
        partition.waiting += 1  # except while a record of it is in progress
        try:
            while not partition.ended:
                if partition.is_ready and self._ready.add(partition):
                    self._wake.set()
                partition.changed.clear()
                await partition.changed.wait()
        finally:
            partition.waiting -= 1
        self._ready.remove(partition)

    def forget(self, consumer: PartitionConsumer) -> None:
        """Remove a partition; a record of it is no longer in progress."""
        partition = consumer._inner
        self._ready.remove(partition)
        if self._current is partition:
            self.clear_held()

    @property
    def holds_record(self) -> bool:
        """Whether the reader works on a record."""
        return not self._idle.is_set()

    async def wait_idle(self) -> None:
        """Wait until no record is in progress."""
        await self._idle.wait()

    def clear_held(self) -> None:
        """Mark the record in progress as finished or given up."""
        if self._current is not None:
            self._current.waiting += 1
            self._current.end_processing()
        self._current = None
        self._idle.set()

    @property
    def failure(self) -> BaseException | None:
        """The error that the next read will raise; None after it was raised."""
        return self._failure

    def end(self, failure: BaseException | None) -> None:
        """End the iteration: the next read raises `failure` if there is one, later reads raise StopAsyncIteration."""
        self._ended = True
        self._failure = failure
        self._wake.set()

    # --- reading ------------------------------------------------------------------------------------------------

    async def _take_turn(self) -> None:
        """Wait for a partition with a record to deliver. All waiting of the iterator is here."""
        if self._is_waiting:
            raise UsageError(
                "another task is waiting for the next record already; only one task may read at a time"
            )
        self.clear_held()
        self._is_waiting = True
        self.reader = asyncio.current_task()
        try:
            if self._work >= TURN_BYTES or self._time() >= self._yield_at:
                await asyncio.sleep(0)
                self._begin_to_hold_loop()
            while not self._begin_turn():
                if self._ended:
                    failure, self._failure = self._failure, None
                    raise StopAsyncIteration if failure is None else failure
                self._wake.clear()
                await self._wake.wait()
                self._begin_to_hold_loop()
        finally:
            self._is_waiting = False

    def _begin_to_hold_loop(self) -> None:
        self._work = 0
        self._yield_at = self._time() + TURN_SECONDS

    def _begin_turn(self) -> bool:
        """Make the next ready partition the current one; return False if none has a record. Raises its fetch error."""
        while (partition := self._ready.next_ready()) is not None:
            if partition.decode_next():
                self._current = partition
                partition.waiting -= 1
                self._turn_at = self._yield_at
                buffer = partition.buffer
                self._work += work_of(len(buffer.decoded), buffer.decoded_bytes)
                self._idle.clear()
                return True
            # its next batch is being decoded in a thread; `serve` queues it again when that is done
            self._ready.remove(partition)
        return False


class MergedRecords:
    """The async iterator of a `MergedReader`. It has nothing else, because users receive it."""

    __slots__ = ("_reader",)

    def __init__(self, reader: MergedReader) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        return f"<MergedRecords of {self._reader!r}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        reader = self._reader
        # the same fast path as in PartitionConsumer.__anext__
        while (
            (partition := reader._current) is None
            or partition.blocked
            or not partition.buffer.decoded
            or reader._time() >= reader._turn_at
        ):
            await reader._take_turn()
        buffer = partition.buffer
        decoded = buffer.decoded
        record = decoded.pop()
        if not decoded:
            buffer.release()
            partition.made_room()
        return record if partition.deliver is None else partition.deliver(record)

"""A partition being read: its buffer, its position, and the iterators that hand out records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Self

from asyncgroup.checks import check_count, check_offset, check_pause
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.hooks import Hooks
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.wire.primitives import Buffer

__all__ = ["Batches", "Interceptor", "PartitionConsumer"]

_log = logging.getLogger("asyncgroup.consumer")

TURN_SECONDS: Final = 0.01
"""A reader that never waits gives the event loop a turn at least so often."""

Interceptor = Callable[[Record], Record | None]
"""Sees each record once, when it is handed out; may give another one in its place."""


class PartitionConsumer:
    """The only owner of a partition's position: an async iterator of records.

    Records are popped only after every wait, so a cancelled read loses nothing, and a second loop goes on at the very
    next record. `fetched`, `fail` and the state properties are the fetcher's side.
    """

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        config: ConsumerConfig,
        budget: Budget,
        hooks: Hooks,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.tp = tp
        self.initial_offset = offset
        self.high_water_mark = -1
        self.log_start_offset = -1
        self.paused = False
        self.stalled = False
        self.error: Exception | None = None
        self.reserved = 0
        self.version = 0
        self._buffer = RecordBuffer(tp, offset, config.check_crcs)
        self._budget, self._hooks = budget, hooks
        self._interceptors = tuple(interceptors)
        self._loop_time = asyncio.get_running_loop().time
        self._turn_at = 0.0
        self._ended = False
        self._blocked = False
        self._gathering = 0
        self._changed = asyncio.Event()
        self._seen_progress: tuple[int, int] | None = None
        self.wake_fetcher: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        self.on_reset: Callable[[int, int], None] = lambda _offset, _log_end: None

    def __repr__(self) -> str:
        words = [word for word in ("paused", "stalled", "ended") if getattr(self, word)]
        return (
            f"<PartitionConsumer {self.tp}: at {self.position} of {self.high_water_mark}, "
            f"{self._buffer.bytes} bytes buffered{''.join(', ' + word for word in words)}>"
        )

    # --- the reader's side --------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.tp.partition

    @property
    def position(self) -> int:
        """The offset of the next record that the iterator hands out."""
        return self._buffer.position

    @property
    def lag(self) -> int:
        """Records between the position and the high water mark; 0 before the first fetch."""
        return max(0, self.high_water_mark - self.position)

    @property
    def ended(self) -> bool:
        """Whether iteration is over."""
        return self._ended

    @property
    def buffered_bytes(self) -> int:
        """Wire bytes that wait for the reader."""
        return self._buffer.bytes

    def pause(self) -> None:
        """Stop before the next record, and stop fetching, until `resume`. What is buffered is kept."""
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False
        self._update()
        self.wake_fetcher()

    def seek(self, offset: int) -> None:
        """Go on reading at `offset`; what is buffered or under way is dropped, and so is an error that the reader has
        not met yet. Raises ConfigError for what is no offset.
        """
        offset = check_offset(offset)
        self.version += 1
        self.reserved = 0
        self.error = None
        self._buffer.seek(offset)
        self._unstall()
        self._update()
        self.wake_fetcher()

    def end(self) -> None:
        """End every iterator before its next record; safe to call twice."""
        self._ended = True
        self._update()

    async def aclose(self) -> None:
        """End every iterator and stop fetching; whoever made this consumer forgets it. Safe to call twice."""
        self.end()
        self.on_close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        # RecordBuffer.pop stands here in full: one call less for each of a million records a second
        buffer = self._buffer
        while self._blocked or not buffer.decoded or self._loop_time() >= self._turn_at:
            await self._prepare()
        decoded = buffer.decoded
        record = decoded.pop()
        if not decoded:
            buffer.release()
            self._made_room()
        return self._intercepted(record) if self._interceptors else record

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """An async iterator of batches: what is there at once, or what comes within `max_wait` seconds of the first
        record, up to `max_records` records or `max_bytes` wire bytes. Raises ConfigError for limits below 1.
        """
        return Batches(self, max_records, max_bytes, max_wait)

    async def _attend(self) -> None:
        """Wait out a pause; end the iteration; raise a fetch error once."""
        if self._ended:
            raise StopAsyncIteration
        if self.error is not None:
            error, self.error = self.error, None
            self._update()
            self.wake_fetcher()
            raise error
        await self._wait_for_change()

    async def _prepare(self) -> None:
        """Whatever must be done before a record can be handed out; all waiting of the record iterator is here."""
        if self._blocked:
            await self._attend()
        elif self._loop_time() >= self._turn_at:
            await self._give_turn()
        elif self._buffer.advance():
            self._turn_at = 0.0  # a turn for the loop at every batch
            if not self._buffer.decoded:
                self._made_room()
        else:
            await self._wait_for_change()

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._turn_at = self._loop_time() + TURN_SECONDS

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self._turn_at = self._loop_time() + TURN_SECONDS

    def _intercepted(self, record: Record) -> Record:
        for interceptor in self._interceptors:
            try:
                record = interceptor(record) or record
            except Exception:  # noqa: BLE001  one interceptor must not stop the chain
                _log.exception("interceptor %r raised on %r", interceptor, record)
        return record

    @property
    def has_room(self) -> bool:
        """Whether more than what is buffered can come before the reader takes some."""
        return not self.stalled and self._budget.allows(self._buffer.bytes)

    def _take(self, max_records: int, max_bytes: int) -> Batch | None:
        """What is there, as a batch; None if what was there held nothing of ours."""
        taken = self._buffer.take(max_records, max_bytes)
        self._made_room()
        if not taken:
            return None
        records = [self._intercepted(record) for record in taken] if self._interceptors else taken
        return Batch(self.topic, self.partition, records, (taken.first_offset, taken.last_offset))

    def _made_room(self) -> None:
        """A batch was used up: the fetcher may ask for more, and a stalled partition may come back."""
        self._unstall_if_room()
        self.wake_fetcher()

    def _unstall_if_room(self) -> None:
        if self.stalled and self._budget.may_resume(self._buffer.bytes):
            self._unstall()

    def _unstall(self) -> None:
        if self.stalled:
            self.stalled = False
            self._hooks.emit("on_resumed", *self.tp)

    def _update(self) -> None:
        """The iterators' fast path checks one flag for all that may stop it."""
        self._blocked = self._ended or self.paused or self.error is not None
        self._changed.set()

    # --- the fetcher's side -------------------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """The next offset to ask the broker for."""
        return self._buffer.fetch_offset

    @property
    def wants_more(self) -> bool:
        """Whether the partition should be in the next fetch."""
        idle = self.paused or self.stalled or self._ended or self.error is not None
        return not idle and self._budget.allows(self._buffer.bytes + self.reserved)

    @property
    def is_left_out(self) -> bool:
        """Wanted, but its buffer is full: it will be asked for as soon as its reader has made room."""
        idle = self.paused or self.stalled or self._ended or self.error is not None
        return not idle and not self._budget.allows(self._buffer.bytes + self.reserved)

    def fetched(self, data: Buffer | None, high_water_mark: int, log_start_offset: int, *, own: bool) -> None:
        """Take in what a broker answered; raises CorruptRecordsError for bytes that are no record batches."""
        self.high_water_mark, self.log_start_offset = high_water_mark, log_start_offset
        if data:
            self._buffer.add(data, own=own)
            self._changed.set()

    def fail(self, error: Exception) -> None:
        """Raise `error` from the iterator once; nothing is fetched until it was raised."""
        self.error = error
        self._update()

    def reset(self, offset: int, log_end: int) -> None:
        """Go on at `offset` because the log does not hold the position; whoever keeps marks is told."""
        self.seek(offset)
        self.on_reset(offset, log_end)

    def check_progress(self) -> None:
        """Called every `max_processing_time`: no record handed out since the last call while records wait is a stall.

        A reader that gathers records for a larger batch takes none, but waits for us.
        """
        progress = self._buffer.progress
        if self.stalled:
            # the reader took records since, perhaps of one large batch: no need to wait until that is used up
            if progress != self._seen_progress:
                self._unstall_if_room()
                self.wake_fetcher()
            return
        waiting = bool(self._buffer) and not (self.paused or self._ended or self._gathering)
        if waiting and self._seen_progress == progress:
            self.stalled = True
            self._hooks.emit("on_stalled", *self.tp)
        # records that came only now have not waited for a whole period yet
        self._seen_progress = progress if waiting else None


class Batches:
    """The async iterator that `batches()` returns."""

    __slots__ = ("_consumer", "_max_bytes", "_max_records", "_max_wait")

    def __init__(
        self, consumer: PartitionConsumer, max_records: int, max_bytes: int, max_wait: float
    ) -> None:
        for key, value in (("max_records", max_records), ("max_bytes", max_bytes)):
            check_count(key, value)
        check_pause("max_wait", max_wait)
        self._consumer, self._max_wait = consumer, max_wait
        self._max_records, self._max_bytes = max_records, max_bytes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        """The next batch. Raises StopAsyncIteration at the claim's end, fetch errors, CorruptRecordsError."""
        consumer = self._consumer
        await consumer._give_turn()
        while True:
            if consumer._blocked:
                await consumer._attend()
            elif not consumer._buffer:
                await consumer._wait_for_change()
            elif self._max_wait > 0 and not self._is_enough() and not await self._wait_for_more():
                continue
            elif batch := consumer._take(self._max_records, self._max_bytes):
                return batch

    def _is_enough(self) -> bool:
        buffer = self._consumer._buffer
        return buffer.records >= self._max_records or buffer.bytes >= self._max_bytes

    async def _wait_for_more(self) -> bool:
        """Wait until the limits are reached or the time is over; False if something must be attended to first."""
        consumer = self._consumer
        consumer._made_room()
        consumer._gathering += 1
        try:
            async with asyncio.timeout(self._max_wait):
                while not self._is_enough() and not consumer._blocked and consumer.has_room:
                    await consumer._wait_for_change()
        except TimeoutError:
            pass
        finally:
            consumer._gathering -= 1
        return not consumer._blocked

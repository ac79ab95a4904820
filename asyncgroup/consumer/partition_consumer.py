"""PartitionConsumer: the async iterators of one partition's records, with pause, resume and seek.

A thin public object; the state and every step that changes it are in `TopicPartitionState`, all waiting of readers is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Self

from asyncgroup.checks import check_count, check_duration_or_zero
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.error_stream import ErrorReader
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.consumer.foreign_names import READER
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.list_offsets import StartOffset, parse_start
from asyncgroup.consumer.partition import TopicPartitionState
from asyncgroup.consumer.process_reports import process_reports
from asyncgroup.foreign_names import add_foreign_names
from asyncgroup.hooks import Hooks
from asyncgroup.interceptor import ConsumeInterceptor
from asyncgroup.model import Batch, Record, TopicPartition, wall_clock

__all__ = [
    "TURN_BYTES",
    "TURN_SECONDS",
    "Batches",
    "PartitionConsumer",
    "work_of",
]

TURN_SECONDS: Final = 0.01
"""Longest time in seconds that a reader which never waits holds the event loop before it yields."""

TURN_BYTES: Final = 1 << 16
"""Wire bytes after which it yields if it is about to decode more: those of a full record batch, or of many small ones. So
partitions that are read at the same time take short turns.
"""

_RECORD_BYTES: Final = 256
"""What each record counts as at least."""


def work_of(records: int, size: int) -> int:
    """Return what `records` of together `size` wire bytes count towards `TURN_BYTES`."""
    return max(size, records * _RECORD_BYTES)


class PartitionConsumer:
    """An async iterator of a partition's records; made by `Consumer.partition`, and for each claim of a group.

    A record is popped only after all waiting is done, so a canceled read loses nothing and a second loop continues at the
    very next record.
    """

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        config: ConsumerConfig,
        budget: Budget,
        hooks: Hooks,
        interceptors: Interceptors | Iterable[ConsumeInterceptor] = (),
        leader_epoch: int = -1,
        *,
        group_id: str = "",
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Not fetched until it is given to a Fetcher. `on_close` is called by `aclose`.

        `group_id` is that of a group's claim, for hooks. `leader_epoch` is the epoch of the record before `offset`, -1 if unknown. If it is known, as from a committed offset
        (KIP-320), a truncation of the log since then is detected.
        """
        self._inner = TopicPartitionState(tp, offset, config, budget, hooks, leader_epoch)
        intercept = Interceptors.of(interceptors)
        self._inner.set_listeners(intercept, process_reports(hooks, group_id, intercept))
        self._buffer = self._inner.buffer  # the iterator's fast path saves a lookup
        self._initial_offset = offset
        self._committed_only = config.isolation_level == "read_committed"
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._loop_time = self._loop.time
        self._turn_at = 0.0  # loop time at which the reader yields to the event loop
        self._work = 0  # what it has decoded since it last did, see `TURN_BYTES`

    def __repr__(self) -> str:
        words = [word for word in ("paused", "stalled", "ended") if getattr(self, word)]
        return (
            f"<PartitionConsumer {self.tp}: at {self.position} of {self.high_watermark}, "
            f"{self.buffered_bytes} bytes buffered{''.join(', ' + word for word in words)}>"
        )

    @property
    def tp(self) -> TopicPartition:
        """Topic and partition."""
        return self._inner.tp

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.tp.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._inner.tp.partition

    @property
    def initial_offset(self) -> int:
        """The offset at which it began to read."""
        return self._initial_offset

    @property
    def position(self) -> int:
        """The offset of the next record that the iterator returns."""
        return self._inner.position

    @property
    def buffered_bytes(self) -> int:
        """Wire bytes of the records that are fetched and not delivered yet."""
        return self._buffer.bytes

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that all in-sync replicas have, as of the last fetch; -1 before it."""
        return self._buffer.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """As of the last fetch, -1 before it: from here on transactions may be open."""
        return self._inner.last_stable_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset in the log, as of the last fetch; -1 before it."""
        return self._inner.log_start_offset

    @property
    def lag(self) -> int:
        """Offsets from the position to the high watermark, with `read_committed` to the last stable offset; 0 before the
        first fetch.
        """
        stable = self._committed_only and self.last_stable_offset >= 0
        return max(0, (self.last_stable_offset if stable else self.high_watermark) - self.position)

    @property
    def paused(self) -> bool:
        """Whether the user paused it."""
        return self._inner.paused

    @property
    def stalled(self) -> bool:
        """Whether it is not fetched because no record was taken for `max_processing_time` while records waited."""
        return self._inner.stalled

    @property
    def ended(self) -> bool:
        """Whether iteration has ended."""
        return self._inner.ended

    def pause(self) -> None:
        """Stop iteration before the next record, and stop fetching, until `resume`. Buffered records are kept."""
        self._inner.pause()

    def resume(self) -> None:
        """Undo `pause`."""
        self._inner.resume()

    def seek(self, offset: StartOffset) -> None:
        """Continue at `offset`. Buffered and in-flight records are dropped, and an error that was not raised yet.

        `offset` is a number, `"earliest"`, `"latest"`, an aware datetime (the first record of that time or later) or a
        timedelta (the first record not older than that); a time after the last record means the log's end. A number takes
        effect at once. Other targets are looked up in the background, with retries: the next record comes from there, and
        `position` stays the same until then. If a broker refuses the lookup, the iterator raises its error once and
        continues at the old position. Raises ConfigError for other values, and for a datetime without a time zone.
        """
        start = parse_start(offset, wall_clock)
        if start.timestamp is None:
            self._inner.seek_to(start.offset)
        elif not self.ended:
            self._inner.seek_by_lookup(offset)

    def errors(self) -> ErrorReader:
        """Return a new async iterator of the errors that the client recovers from by itself: leaders that move, brokers
        that do not answer, offsets that were reset. Errors are logged while there is no such iterator.

        Each iterator has its own buffer of `error_buffer` errors and drops the oldest when it is full (counted in
        `dropped`), so a slow one delays nothing. It ends when the partition is closed. Errors that the client cannot
        recover from are raised by the iteration over the records instead.
        """
        return self._inner.errors.reader()

    async def aclose(self) -> None:
        """End every iterator and stop fetching; safe to call twice."""
        self._inner.end()
        self._inner.end_processing()
        if self._on_close is not None:
            self._on_close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        # popping from `buffer.decoded` is inlined here, which saves a call for each of about a million records a second
        partition, buffer = self._inner, self._buffer
        while partition.blocked or not buffer.decoded or self._loop_time() >= self._turn_at:
            await self._prepare()
        decoded = buffer.decoded
        record = decoded.pop()
        if not decoded:
            buffer.release()
            partition.made_room()
        return record if partition.deliver is None else partition.deliver(record)

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """Return an async iterator of batches of up to `max_records` records and `max_bytes` wire bytes.

        Records that decompress to more than sixteen times `max_bytes` are returned in several batches.

        A batch is returned as soon as there is a record; with `max_wait`, when a limit is reached or `max_wait` seconds
        have passed since the first record. Raises ConfigError for limits below 1.
        """
        return Batches(self, max_records, max_bytes, max_wait)

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _attend(self) -> None:
        """Handle `blocked` of the partition: end the iteration, raise a fetch error once, or wait while it is paused."""
        if self.ended:
            raise StopAsyncIteration
        if (error := self._inner.take_error()) is not None:
            raise error
        await self._wait_for_change()

    async def _prepare(self) -> None:
        """Take one step towards the next record. All waiting of the record iterator is here.

        `__anext__` repeats it until a decoded record is available and nothing blocks.
        """
        partition, buffer = self._inner, self._buffer
        if partition.reports is not None:
            partition.end_processing()
        if partition.blocked:
            await self._attend()
        elif not buffer:
            await self._wait_for_change()
        elif self._is_turn_over:
            await self._give_turn()
        elif buffer.decoded:
            return
        elif partition.begin_decoding():
            await self._wait_for_change()
        elif partition.advance():
            self._work += work_of(len(buffer.decoded), buffer.decoded_bytes)
            if not buffer.decoded:
                partition.made_room()
        else:
            await self._wait_for_change()

    @property
    def _is_turn_over(self) -> bool:
        return self._work >= TURN_BYTES or self._loop_time() >= self._turn_at

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._work = 0
        self._turn_at = self._loop_time() + TURN_SECONDS

    async def _wait_for_change(self) -> None:
        partition = self._inner
        partition.changed.clear()
        partition.waiting += 1
        try:
            await partition.changed.wait()
        finally:
            partition.waiting -= 1
        self._begin_turn()

    def _pop_batch(self, max_records: int, max_bytes: int) -> Batch | None:
        """Return buffered records as a batch; None if the buffered batches had no record to deliver."""
        before = self._buffer.bytes
        try:
            taken = self._buffer.pop_records(max_records, max_bytes)
        finally:
            self._inner.made_room()
        if not taken:
            return None
        self._work += work_of(len(taken), before - self._buffer.bytes)
        intercept = self._inner.intercept
        reread_offset = taken.first_offset if taken.reread_offset is None else taken.reread_offset
        taken.on_unreadable = partial(self._on_unreadable, reread_offset, self._inner.jumps)
        records = taken if intercept is None else [intercept(record) for record in taken]
        batch = Batch(
            self.topic, self.partition, records, (taken.first_offset, taken.last_offset), taken.leader_epoch
        )
        if self._inner.reports is not None:
            self._inner.reports.start(batch)
        return batch

    def _on_unreadable(self, offset: int, jumps: int) -> None:
        """Go back to a batch that turned out to be unreadable; called in the thread that reads it."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._inner.reread(offset, jumps)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to protect
                self._loop.call_soon_threadsafe(self._inner.reread, offset, jumps)


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
        consumer, partition = self._consumer, self._consumer._inner
        if partition.reports is not None:
            partition.reports.end()
        if consumer._is_turn_over:
            await consumer._give_turn()
        while True:
            if partition.blocked:
                await consumer._attend()
            elif not consumer._buffer or partition.begin_decoding():
                await consumer._wait_for_change()
            elif self._max_wait > 0 and not self._is_enough() and not await self._wait_for_more():
                continue
            elif batch := consumer._pop_batch(self._max_records, self._max_bytes):
                return batch

    def _is_enough(self) -> bool:
        buffer = self._consumer._buffer
        return buffer.records >= self._max_records or buffer.bytes >= self._max_bytes

    async def _wait_for_more(self) -> bool:
        """Wait until the limits are reached or `max_wait` has passed.

        Return False if iteration is blocked: the partition has ended, was paused, or has an error to raise.
        """
        consumer, partition = self._consumer, self._consumer._inner
        partition.made_room()
        partition.gathering += 1  # the stall check must not count this wait as a slow reader
        try:
            async with asyncio.timeout(self._max_wait):
                while not self._is_enough() and not partition.blocked and partition.has_room:
                    await consumer._wait_for_change()
        except TimeoutError:
            pass
        finally:
            partition.gathering -= 1
        return not partition.blocked


add_foreign_names(PartitionConsumer, READER)

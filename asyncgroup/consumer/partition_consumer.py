"""PartitionConsumer: the async iterator of one partition's records, with pause, resume and seek.

The reader's side of a partition; the state and the fetcher's side are in `FetchedPartition`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NoReturn, Self

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.batches import Batches
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.error_stream import ErrorReader
from asyncgroup.consumer.fetched_partition import FetchedPartition
from asyncgroup.consumer.interceptors import Interceptor, Interceptors
from asyncgroup.consumer.resets import StartOffset, parse_start, wall_clock
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import Batch, Record, TopicPartition

__all__ = ["Batches", "Interceptor", "PartitionConsumer"]

_log = logging.getLogger("asyncgroup.consumer")

TURN_SECONDS: Final = 0.01
"""Longest time in seconds that a reader which never waits holds the event loop before it yields."""


class PartitionConsumer(FetchedPartition):
    """An async iterator of a partition's records.

    A record is popped only after all waiting is done, so a canceled read loses nothing and a second loop continues at the
    very next record. All waiting is in this class; the state is in FetchedPartition.

    `leader_epoch` is the epoch of the record before `offset`, -1 if unknown. If it is known, as from a committed offset
    (KIP-320), a truncation of the log since then is detected.
    """

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        config: ConsumerConfig,
        budget: Budget,
        hooks: Hooks,
        interceptors: Interceptors | Iterable[Interceptor] = (),
        leader_epoch: int = -1,
    ) -> None:
        super().__init__(tp, offset, config, budget, hooks, leader_epoch)
        self.initial_offset = offset
        self._intercept = Interceptors.of(interceptors)
        self._committed_only = config.isolation_level == "read_committed"
        self._loop = asyncio.get_running_loop()
        self._loop_time = self._loop.time
        self._turn_at = 0.0
        self.is_queued = False
        """Whether it is in a `ReadyQueue`."""
        self.on_close: Callable[[], None] = lambda: None
        """Called by `aclose`."""

    def __repr__(self) -> str:
        words = [word for word in ("paused", "stalled", "ended") if getattr(self, word)]
        return (
            f"<PartitionConsumer {self.tp}: at {self.position} of {self.high_water_mark}, "
            f"{self._buffer.bytes} bytes buffered{''.join(', ' + word for word in words)}>"
        )

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.tp.partition

    @property
    def lag(self) -> int:
        """Offsets from the position to the high water mark, with `read_committed` to the last stable offset; 0 before the
        first fetch.
        """
        stable = self._committed_only and self.last_stable_offset >= 0
        return max(0, (self.last_stable_offset if stable else self.high_water_mark) - self.position)

    @property
    def ended(self) -> bool:
        """Whether iteration is over."""
        return self._ended

    def pause(self) -> None:
        """Stop iteration before the next record, and stop fetching, until `resume`. Buffered records are kept."""
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False
        self._update()
        self.wake_fetcher()

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
            self._seek(start.offset)
        elif not self._ended:
            self._seek_by_lookup(offset)

    def errors(self) -> ErrorReader:
        """Return a new async iterator of the errors that the client recovers from by itself: leaders that move, brokers
        that do not answer, offsets that were reset. Errors are logged while there is no such iterator.

        Each iterator has its own buffer of `error_buffer` errors and drops the oldest when it is full (counted in
        `dropped`), so a slow one delays nothing. It ends when the partition is closed. Errors that the client cannot
        recover from are raised by the iteration over the records instead.
        """
        return self._errors.reader()

    def end(self) -> None:
        """End every iterator before its next record; safe to call twice. An error that was not raised yet is logged.

        Buffered and in-flight records are dropped: a claim that its handler keeps must not hold memory. `position` stays.
        """
        if self.error is not None and not self._ended:
            _log.warning("%s: closed before an error was raised to its reader: %s", self.tp, self.error)
        self._ended = True
        self.version += 1
        self._decoder.cancel()
        self._buffer.drop()
        self._errors.close()
        self._update()

    async def aclose(self) -> None:
        """End every iterator and stop fetching; safe to call twice."""
        self.end()
        self.on_close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        # RecordBuffer.pop is inlined here, which saves a call for each of about a million records a second
        buffer = self._buffer
        while self._blocked or not buffer.decoded or self._loop_time() >= self._turn_at:
            await self._prepare()
        decoded = buffer.decoded
        record = decoded.pop()
        if not decoded:
            buffer.release()
            self._made_room()
        return record if self._intercept is None else self._intercept(record)

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """Return an async iterator of batches of up to `max_records` records and `max_bytes` wire bytes.

        A batch is returned as soon as there is a record; with `max_wait`, when a limit is reached or `max_wait` seconds
        have passed since the first record. Raises ConfigError for limits below 1.
        """
        return Batches(self, max_records, max_bytes, max_wait)

    # --- for MergedReader ---------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `decode_next` has a record to prepare or an error to raise."""
        return not (self._ended or self.paused) and (self.error is not None or bool(self._buffer))

    def decode_next(self) -> bool:
        """Make a record available in the buffer's `decoded`; return False if there is none. Call only if `is_ready`.

        Raises a fetch error once, and CorruptRecordsError.
        """
        if self.error is not None:
            self._raise_error()
        while not self._buffer.decoded:
            if self._decoder.must_wait() or not self._advance():
                return False
            if not self._buffer.decoded:
                self._made_room()
        return True

    async def wait_for_change(self) -> None:
        """Wait until records arrive or the state changes."""
        await self._wait_for_change()

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _attend(self) -> None:
        """Handle `_blocked`: end the iteration, raise a fetch error once, or wait while the partition is paused."""
        if self._ended:
            raise StopAsyncIteration
        if self.error is not None:
            self._raise_error()
        await self._wait_for_change()

    def _raise_error(self) -> NoReturn:
        error, self.error = self.error, None
        assert error is not None
        self._update()
        self.wake_fetcher()
        raise error

    async def _prepare(self) -> None:
        """Take one step towards the next record. All waiting of the record iterator is here.

        `__anext__` repeats it until a decoded record is available and nothing blocks.
        """
        if self._blocked:
            await self._attend()
        elif self._loop_time() >= self._turn_at:
            await self._give_turn()
        elif self._decoder.must_wait():
            await self._wait_for_change()
        elif self._advance():
            self._turn_at = 0.0  # yield to the event loop at every batch
            if not self._buffer.decoded:
                self._made_room()
        else:
            await self._wait_for_change()

    def _advance(self) -> bool:
        try:
            return self._buffer.advance()
        except CorruptRecordsError:
            self._made_room()  # the batch may have been damaged on the network: fetch it again
            raise

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._turn_at = self._loop_time() + TURN_SECONDS

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self._turn_at = self._loop_time() + TURN_SECONDS

    @property
    def has_room(self) -> bool:
        """Whether more records can arrive before the reader takes some of the buffered ones."""
        return not (self.stalled or self._buffer.framing_error) and self._budget.allows(self._buffer.bytes)

    def _pop_batch(self, max_records: int, max_bytes: int) -> Batch | None:
        """Return buffered records as a batch; None if the buffered batches had no record to hand out."""
        try:
            taken = self._buffer.pop_records(max_records, max_bytes)
        finally:
            self._made_room()
        if not taken:
            return None
        taken.on_unreadable = partial(self._on_unreadable, taken.first_offset, self.jumps)
        records = taken if self._intercept is None else [self._intercept(record) for record in taken]
        return Batch(
            self.topic, self.partition, records, (taken.first_offset, taken.last_offset), taken.leader_epoch
        )

    def _on_unreadable(self, offset: int, jumps: int) -> None:
        """Go back to a batch that turned out to be unreadable; called in the thread that reads it."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self.reread(offset, jumps)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to protect
                self._loop.call_soon_threadsafe(self.reread, offset, jumps)

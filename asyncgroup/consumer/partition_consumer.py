"""A partition as its reader sees it: the iterators that hand out records, and what a user may tell them."""

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
"""A reader that never waits gives the event loop a turn at least so often."""


class PartitionConsumer(FetchedPartition):
    """An async iterator of a partition's records.

    Records are popped only after every wait, so a cancelled read loses nothing, and a second loop goes on at the very
    next record. All waiting is here; the state is the FetchedPartition's.

    `leader_epoch` is the epoch of the record before `offset`, if somebody knows (a committed offset does, KIP-320): then
    it is found out whether the log was truncated since.
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
        """Whether it waits for its turn in a `ReadyQueue`."""
        self.on_close: Callable[[], None] = lambda: None

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
        """Offsets between the position and the high water mark, with `read_committed` the last stable offset; 0 before
        the first fetch.
        """
        stable = self._committed_only and self.last_stable_offset >= 0
        return max(0, (self.last_stable_offset if stable else self.high_water_mark) - self.position)

    @property
    def ended(self) -> bool:
        """Whether iteration is over."""
        return self._ended

    def pause(self) -> None:
        """Stop before the next record, and stop fetching, until `resume`. What is buffered is kept."""
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False
        self._update()
        self.wake_fetcher()

    def seek(self, offset: StartOffset) -> None:
        """Go on reading at `offset`; what is buffered or under way is dropped, and so is an error that the reader has
        not met yet.

        An offset, `"earliest"`, `"latest"`, an aware datetime (the first record of that time or later) or a timedelta
        (the first record not older than that); a time behind the last record means the log's end. A number takes
        effect at once. What has to be looked up is looked up by the fetchers, with retries, as after a reset: the next
        record comes from there, and `position` stays what it was until then. If a broker refuses, the iterator raises
        its error once and reading goes on where it was. Raises ConfigError for what is none of these, and for a
        datetime without a time zone.
        """
        start = parse_start(offset, wall_clock)
        if start.timestamp is None:
            self._seek(start.offset)
        elif not self._ended:
            self._seek_by_lookup(offset)

    def errors(self) -> ErrorReader:
        """A new async iterator of this partition's errors that heal by themselves: leaders that move, brokers that do
        not answer, offsets that were reset. What is read by nobody is logged.

        Each reader has a buffer of its own of `error_buffer` errors, and loses the oldest when it is full (`dropped`
        counts them): a slow reader holds up nothing. It ends when the partition is closed. What does not heal is
        raised by the iteration over the records instead.
        """
        return self._errors.reader()

    def end(self) -> None:
        """End every iterator before its next record; safe to call twice. An error that nobody has met is logged.

        What is buffered or under way is dropped: a claim that its handler keeps must not hold memory. `position` stays.
        """
        if self.error is not None and not self._ended:
            _log.warning("%s: closed before its reader has met an error: %s", self.tp, self.error)
        self._ended = True
        self.version += 1
        self._decoder.cancel()
        self._buffer.drop()
        self._errors.close()
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
        return record if self._intercept is None else self._intercept(record)

    def batches(
        self, *, max_records: int = 10_000, max_bytes: int = 1 << 20, max_wait: float = 0.0
    ) -> Batches:
        """An async iterator of batches: what is there at once, or what comes within `max_wait` seconds of the first
        record, up to `max_records` records or `max_bytes` wire bytes. Raises ConfigError for limits below 1.
        """
        return Batches(self, max_records, max_bytes, max_wait)

    # --- for a reader of several partitions ---------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `decode_next` has something to hand out, or an error to raise."""
        return not (self._ended or self.paused) and (self.error is not None or bool(self._buffer))

    def decode_next(self) -> bool:
        """Have a record ready to be popped from the buffer; False if there is none. Only where `is_ready`.

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
        """Wait until records came, or the state changed."""
        await self._wait_for_change()

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _attend(self) -> None:
        """Wait out a pause; end the iteration; raise a fetch error once."""
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
        """Whatever must be done before a record can be handed out; all waiting of the record iterator is here."""
        if self._blocked:
            await self._attend()
        elif self._loop_time() >= self._turn_at:
            await self._give_turn()
        elif self._decoder.must_wait():
            await self._wait_for_change()
        elif self._advance():
            self._turn_at = 0.0  # a turn for the loop at every batch
            if not self._buffer.decoded:
                self._made_room()
        else:
            await self._wait_for_change()

    def _advance(self) -> bool:
        try:
            return self._buffer.advance()
        except CorruptRecordsError:
            self._made_room()  # what was broken on the way may be whole the next time
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
        """Whether more than what is buffered can come before the reader takes some."""
        return not (self.stalled or self._buffer.framing_error) and self._budget.allows(self._buffer.bytes)

    def _pop_batch(self, max_records: int, max_bytes: int) -> Batch | None:
        """What is there, as a batch; None if what was there held nothing of ours."""
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
        """A batch turned out to be unreadable, in whatever thread its reader has."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self.reread(offset, jumps)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody can mark anything any more
                self._loop.call_soon_threadsafe(self.reread, offset, jumps)

"""A partition being read: its buffer, its position, and the iterators that hand out records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Self
from uuid import UUID

from asyncgroup.checks import check_offset
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.aborted import Listed
from asyncgroup.consumer.batches import Batches
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.error_stream import ErrorReader, ErrorStream
from asyncgroup.consumer.interceptors import Interceptor, Interceptors
from asyncgroup.consumer.retries import Trouble
from asyncgroup.consumer.whereabouts import Whereabouts
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import Batch, Record, TopicPartition
from asyncgroup.wire.messages import NO_UUID
from asyncgroup.wire.primitives import Buffer

__all__ = ["Batches", "Interceptor", "PartitionConsumer"]

_log = logging.getLogger("asyncgroup.consumer")

TURN_SECONDS: Final = 0.01
"""A reader that never waits gives the event loop a turn at least so often."""


class PartitionConsumer:
    """The only owner of a partition's position: an async iterator of records.

    Records are popped only after every wait, so a cancelled read loses nothing, and a second loop goes on at the very
    next record. `fetched`, `fail` and the state properties are the fetcher's side.

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
        self.tp = tp
        self.initial_offset = offset
        self.high_water_mark = -1
        self.last_stable_offset = -1
        """The offset behind which transactions may be open, as of the last fetch; -1 before it."""
        self.log_start_offset = -1
        self.paused = False
        self.stalled = False
        self.error: Exception | None = None
        self.reserved = 0
        self.version = 0
        self.whereabouts = Whereabouts()
        on_skip = self._on_skip if config.on_corrupt_batch == "skip" else None
        self._buffer = RecordBuffer(tp, offset, config.check_crcs, on_skip, leader_epoch)
        self._budget, self._hooks = budget, hooks
        self._intercept = Interceptors.of(interceptors)
        self._committed_only = config.isolation_level == "read_committed"
        self._errors = ErrorStream(config.error_buffer)
        self.trouble = Trouble()
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
        self.on_restart: Callable[[int, UUID], None] = lambda _offset, _topic_id: None
        self.on_passed: Callable[[int, int, int], None] = lambda _start, _end, _epoch: None
        self.on_healed: Callable[[Exception], object] = self.heal

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
        """Offsets between the position and the high water mark, with `read_committed` the last stable offset; 0 before
        the first fetch.
        """
        stable = self._committed_only and self.last_stable_offset >= 0
        return max(0, (self.last_stable_offset if stable else self.high_water_mark) - self.position)

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
        self.whereabouts.sought()
        self._go(offset, -1)

    def _go(self, offset: int, epoch: int) -> None:
        self.version += 1
        self.reserved = 0
        self.error = None
        self._buffer.seek(offset, epoch)
        self.on_passed(offset, offset, -1)  # what was passed over may be something else in a log that was cut
        self._unstall()
        self._update()
        self.wake_fetcher()

    def errors(self) -> ErrorReader:
        """A new async iterator of this partition's errors that heal by themselves: leaders that move, brokers that do
        not answer, offsets that were reset. What is read by nobody is logged.

        Each reader has a buffer of its own of `error_buffer` errors, and loses the oldest when it is full (`dropped`
        counts them): a slow reader holds up nothing. It ends when the partition is closed. What does not heal is
        raised by the iteration over the records instead.
        """
        return self._errors.reader()

    def end(self) -> None:
        """End every iterator before its next record; safe to call twice. An error that nobody has met is logged."""
        if self.error is not None and not self._ended:
            _log.warning("%s: closed before its reader has met an error: %s", self.tp, self.error)
        self._ended = True
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
            self.wake_fetcher()  # what was broken on the way may be whole the next time
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
        return not (self.stalled or self._buffer.broken) and self._budget.allows(self._buffer.bytes)

    def _take(self, max_records: int, max_bytes: int) -> Batch | None:
        """What is there, as a batch; None if what was there held nothing of ours."""
        try:
            taken = self._buffer.take(max_records, max_bytes)
        finally:
            self._made_room()
        if not taken:
            return None
        records = taken if self._intercept is None else [self._intercept(record) for record in taken]
        return Batch(
            self.topic, self.partition, records, (taken.first_offset, taken.last_offset), taken.leader_epoch
        )

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
    def fetched_epoch(self) -> int:
        """The leader epoch of the record before `fetch_offset`, -1 if unknown."""
        return self._buffer.fetched_epoch

    @property
    def _is_idle(self) -> bool:
        waits = self.paused or self.stalled or self._ended
        return waits or self.error is not None or self._buffer.broken is not None

    @property
    def wants_more(self) -> bool:
        """Whether the partition should be in the next fetch."""
        return not self._is_idle and self._budget.allows(self._buffer.bytes + self.reserved)

    @property
    def is_left_out(self) -> bool:
        """Wanted, but its buffer is full: it will be asked for as soon as its reader has made room."""
        return not self._is_idle and not self._budget.allows(self._buffer.bytes + self.reserved)

    def fetched(
        self,
        data: Buffer | None,
        high_water_mark: int,
        log_start_offset: int,
        *,
        own: bool,
        last_stable_offset: int = -1,
        aborted: Iterable[Listed] | None = None,
    ) -> None:
        """Take in what a broker answered. The reader meets what is no record batch behind what came before it.

        `aborted` lists the aborted transactions that touch `data` (`read_committed` only).
        """
        self.high_water_mark, self.log_start_offset = high_water_mark, log_start_offset
        self.last_stable_offset = last_stable_offset
        self._buffer.log_end = high_water_mark
        if data:
            buffer = self._buffer
            buffer.add(data, own=own, aborted=aborted or ())
            self._changed.set()
            if buffer.records_end < buffer.fetch_offset:
                self.on_passed(buffer.records_end, buffer.fetch_offset, buffer.fetched_epoch)
        self.trouble.clear()

    def heal(self, error: Exception) -> bool:
        """Tell the readers of `errors()` of an error that heals by itself; False if there is none."""
        return self._errors.put(error)

    def fail(self, error: Exception) -> None:
        """Raise `error` from the iterator once; nothing is fetched until it was raised."""
        self.error = error
        self._update()

    def reset(self, offset: int, log_end: int) -> None:
        """Go on at `offset` because the log does not hold `fetch_offset`; whoever keeps marks is told.

        If the log has lost its head, what was fetched of it before is handed out first: a slow reader loses no record
        that it has already.
        """
        if offset > self.fetch_offset and self._buffer.records:
            self.version += 1
            self.reserved = 0
            self._buffer.skip_to(offset)
            self.wake_fetcher()
        else:
            self.seek(offset)
        self.on_reset(offset, log_end)

    def restart(self, offset: int, epoch: int = -1, topic_id: UUID = NO_UUID) -> None:
        """Go on at `offset`: what was read from there on is no longer in the log, which holds other records now.

        The marks of what is gone must not count for what is read instead; whoever keeps marks is told. `epoch` is the
        leader epoch of the record before `offset`, `topic_id` that of a topic which was made anew.
        """
        self._go(offset, epoch)
        self.on_restart(offset, topic_id)

    def rewind(self, epoch: int) -> None:
        """Drop what the reader has not seen, to fetch it anew; `epoch` is that of the last record before."""
        self._go(self.position, epoch)

    def _on_skip(self, error: CorruptRecordsError) -> None:
        _log.warning("%s", error)
        self.on_healed(error)

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

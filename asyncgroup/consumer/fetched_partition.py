"""A partition as its fetcher sees it: what it holds and wants, and how it takes what a broker says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.aborted import ListedTransaction
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.consumer.decoding import BatchDecoder
from asyncgroup.consumer.error_stream import ErrorStream
from asyncgroup.consumer.fetch_position import FetchPosition
from asyncgroup.consumer.resets import StartOffset
from asyncgroup.consumer.retries import FetchFailures
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.wire.messages import NO_UUID
from asyncgroup.wire.primitives import Buffer

__all__ = ["FetchedPartition"]

_log = logging.getLogger("asyncgroup.consumer")


def _nothing_to_wake() -> None:
    """Stands in for the fetcher of a partition that has none."""


class FetchedPartition:
    """The only owner of a partition's position; all of its state, and whatever changes it but reading.

    Plain steps without any waiting: those who wait for `_changed` look again after each. `version` goes up with every
    jump of the position, so that an answer to an older ask is known. `_blocked` is the one flag that the fast path of
    the iterators looks at: ended, paused, or an error to be raised.

    Whoever keeps marks hears of `on_reset` (the log does not hold the position; where reading goes on, the log's end),
    `on_restart` (from an offset on the log holds other records), `on_skipped_range` (nothing to hand out between two
    offsets; the leader epoch before the second one) and `on_unreadable_batch` (records from an offset on were handed out in a
    batch that cannot be read; returns where reading goes on, behind those of them that are marked).
    """

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        config: ConsumerConfig,
        budget: Budget,
        hooks: Hooks,
        leader_epoch: int = -1,
    ) -> None:
        self.tp = tp
        self.high_water_mark = -1
        self.last_stable_offset = -1
        """The offset behind which transactions may be open, as of the last fetch; -1 before it."""
        self.log_start_offset = -1
        self.paused = False
        self.stalled = False
        self.error: Exception | None = None
        self.seek_target: StartOffset | None = None
        """Where the reader wants to go on by name or time, while its offset is not looked up: nothing is fetched."""
        self.reserved = 0
        self.version = 0
        self.jumps = 0
        """Times that the position was moved by a seek or by what happened to the log."""
        self.fetch_position = FetchPosition()
        on_skip = self._on_skip if config.on_corrupt_batch == "skip" else None
        self._buffer = RecordBuffer(
            tp, offset, config.check_crcs, on_skip, leader_epoch, config.max_response_size
        )
        self._budget, self._hooks = budget, hooks
        self._errors = ErrorStream(config.error_buffer)
        self.fetch_failures = FetchFailures()
        self._lowest, self._furthest = offset, offset
        self._ended = False
        self._blocked = False
        self._gathering = 0
        self._changed = asyncio.Event()
        self._decoder = BatchDecoder(self._buffer, self._changed.set)
        self._seen_progress: tuple[int, int] | None = None
        self.on_reset: Callable[[int, int], None] = lambda _offset, _log_end: None
        self.on_restart: Callable[[int, UUID], None] = lambda _offset, _topic_id: None
        self.on_skipped_range: Callable[[int, int, int], None] = lambda _start, _end, _epoch: None
        self.on_unreadable_batch: Callable[[int], int] = lambda offset: offset
        self.wake_fetcher: Callable[[], None]
        self.on_handled_error: Callable[[Exception], object]
        self.look_up_seek: Callable[[], None]
        self.detach()

    def detach(self) -> None:
        """Let go of the fetchers, which know all other partitions: this one is not fetched (any more)."""
        self.wake_fetcher, self.on_handled_error = _nothing_to_wake, self.report
        self.look_up_seek = _nothing_to_wake

    # --- position and state -------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset of the next record that the iterator hands out."""
        return self._buffer.position

    @property
    def buffered_bytes(self) -> int:
        """Wire bytes that wait for the reader."""
        return self._buffer.bytes

    def _seek(self, offset: int) -> None:
        self.seek_target = None
        self.jumps += 1
        self.fetch_position.seek()
        self._move_to(offset, -1)

    def _seek_by_lookup(self, target: StartOffset) -> None:
        """Drop what waits; the fetchers look up what offset `target` stands for, and call `resolve_seek`."""
        self.seek_target = target
        self.jumps += 1
        self._move_to(self.position, -1)
        self.look_up_seek()

    def resolve_seek(self, offset: int) -> None:
        """Go on at the offset that was looked up."""
        self._seek(offset)

    def was_read(self, offset: int) -> bool:
        """Whether a record of this offset may have been handed out here: between the lowest start and the position."""
        return self._lowest <= offset and (offset < self._furthest or offset < self._buffer.position)

    def _move_to(self, offset: int, epoch: int) -> None:
        self._lowest, self._furthest = min(self._lowest, offset), max(self._furthest, self.position)
        self.version += 1
        self.reserved = 0
        self.error = None
        self._decoder.cancel()
        self._buffer.seek(offset, epoch)
        self.on_skipped_range(
            offset, offset, -1
        )  # what was passed over may be something else in a log that was cut
        self._unstall()
        self._update()
        self.wake_fetcher()

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

    # --- what is wanted, and what comes -------------------------------------------------------------------------

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
        waits = self.paused or self.stalled or self._ended or self.seek_target is not None
        return waits or self.error is not None or self._buffer.framing_error is not None

    @property
    def is_fetchable(self) -> bool:
        """Whether the partition should be in the next fetch."""
        return not self._is_idle and self._budget.allows(self._buffer.bytes + self.reserved)

    @property
    def is_buffer_full(self) -> bool:
        """Wanted, but its buffer is full: it will be asked for as soon as its reader has made room."""
        return not self._is_idle and not self._budget.allows(self._buffer.bytes + self.reserved)

    def fetched(
        self,
        data: Buffer | None,
        high_water_mark: int,
        log_start_offset: int,
        *,
        zero_copy: bool,
        last_stable_offset: int = -1,
        aborted: Iterable[ListedTransaction] | None = None,
    ) -> None:
        """Take in what a broker answered. The reader meets what is no record batch behind what came before it.

        `aborted` lists the aborted transactions that touch `data` (`read_committed` only).
        """
        self.high_water_mark, self.log_start_offset = high_water_mark, log_start_offset
        self.last_stable_offset = last_stable_offset
        self._buffer.high_water_mark = high_water_mark
        if data:
            buffer = self._buffer
            buffer.add(data, zero_copy=zero_copy, aborted=aborted or ())
            self._changed.set()
            if buffer.records_end < buffer.fetch_offset:
                self.on_skipped_range(buffer.records_end, buffer.fetch_offset, buffer.fetched_epoch)
        self.fetch_failures.clear()

    def report(self, error: Exception) -> bool:
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
            self._seek(offset)
        self.on_reset(offset, log_end)

    def restart(self, offset: int, epoch: int = -1, topic_id: UUID = NO_UUID) -> None:
        """Go on at `offset`: what was read from there on is no longer in the log, which holds other records now.

        The marks of what is gone must not count for what is read instead; whoever keeps marks is told. `epoch` is the
        leader epoch of the record before `offset`, `topic_id` that of a topic which was made anew.
        """
        self.jumps += 1
        self._move_to(offset, epoch)
        self.on_restart(offset, topic_id)

    def rewind(self, epoch: int) -> None:
        """Drop what the reader has not seen, to fetch it anew; `epoch` is that of the last record before."""
        self._move_to(self.position, epoch)

    def reread(self, offset: int, jumps: int) -> None:
        """Read a batch again that was handed out from `offset` on and could not be decoded: its records were not seen.

        From now on batches are decoded before they are handed out, and an unreadable one is raised by the iterator at
        every read until a seek past it, as with the record iterator. Void after a jump (`jumps` is the count at the
        time when the batch was taken).
        """
        if jumps != self.jumps or offset >= self.position:
            return
        _log.warning(
            "%s: a batch from offset %d on cannot be read; reading goes back to where nothing is marked, and no mark "
            "passes it before a seek() past it",
            self.tp,
            offset,
        )
        self._buffer.decode_eagerly = True
        going_on_at = self.on_unreadable_batch(offset)
        if going_on_at < self.position:
            self._move_to(going_on_at, -1)

    def _on_skip(self, error: CorruptRecordsError) -> None:
        _log.warning("%s", error)
        self.on_handled_error(error)

    def check_progress(self) -> None:
        """Called every `max_processing_time`: no record handed out since the last call while records wait is a stall.

        A reader that gathers records for a larger batch takes none, but waits for us.
        """
        if self._ended:
            return
        progress = self._buffer.progress
        if self.stalled:
            # the reader took records since, perhaps of one large batch: no need to wait until that is used up
            if progress != self._seen_progress:
                self._unstall_if_room()
                self.wake_fetcher()
            return
        is_served = self._gathering or self._decoder.is_busy  # its reader waits for us
        waiting = bool(self._buffer) and not (self.paused or is_served)
        if waiting and self._seen_progress == progress:
            self.stalled = True
            self._hooks.emit("on_stalled", *self.tp)
        # records that came only now have not waited for a whole period yet
        self._seen_progress = progress if waiting else None

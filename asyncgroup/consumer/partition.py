"""The state of one consumed partition: fetch state, position, buffer, flags, and every step that changes them.

`FetchScheduler` decides about it, `PartitionConsumer` and `MergedReader` read from it; nothing here waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.buffer import make_buffer
from asyncgroup.consumer.decoding import BatchDecoder
from asyncgroup.consumer.error_stream import ErrorStream
from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.consumer.fetch_state import (
    NO_NODE,
    FetchFailures,
    FetchSource,
    FetchState,
    PartitionBudget,
    ReadRange,
)
from asyncgroup.consumer.interceptors import Interceptors
from asyncgroup.consumer.list_offsets import StartOffset
from asyncgroup.consumer.partition_fetcher import NOT_FETCHED, PartitionFetcher
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.consumer.process_reports import ProcessReports
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.hooks import Hooks
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.messages import NO_UUID

__all__ = ["TopicPartitionState"]

_log = logging.getLogger("asyncgroup.consumer")

_STEPS: Final = 4
"""The least number of steps in which the small batches of a fetch are decoded."""


class TopicPartitionState:
    """Owns a partition's position and state. All methods are plain steps without waiting.

    Every change sets `changed`, and waiting readers check the state again.
    """

    batch_size: int = 0
    """Bytes that a fetch has to ask for to get a whole record batch, or many if most others have nothing; 0 if unknown."""
    fetcher: PartitionFetcher[TopicPartitionState] = NOT_FETCHED
    intercept: Interceptors | None = None
    reports: ProcessReports | None = None
    """None unless a hook has a method of `on_process_start` and `on_process_end`."""
    deliver: Callable[[Record], Record] | None = None
    """What a reader of single records calls with each of those in `decoded`; None: nothing."""
    _end_offset: float = float("inf")

    def __init__(
        self,
        tp: TopicPartition,
        offset: int,
        config: ConsumerConfig,
        budget: PartitionBudget,
        hooks: Hooks,
        leader_epoch: int = -1,
    ) -> None:
        self.tp = tp
        self.fetch_state = FetchState.INITIALIZING
        """The state by the scheduler; `state` also knows errors and the end."""
        self.node_id = NO_NODE  # the broker that it is fetched from
        self.retry_at = float("inf")
        """Loop time of the next try in LEADERLESS and AWAIT_RESET; infinity while that try is under way."""
        self.reset_version = 0
        """`version` when the reset was requested; a seek since then makes it void."""
        self.last_stable_offset = -1
        """As of the last fetch, -1 before it: from here on transactions may be open."""
        self.log_start_offset = -1
        self.paused = False  # paused by the user
        self.stalled = False
        """Not fetched because its reader took no record for `max_processing_time` while records waited."""
        self.error: Exception | None = None
        """Raised by the iterator once; nothing is fetched until then."""
        self.seek_target: StartOffset | None = None
        """The target of a seek by name or time until its offset is looked up; nothing is fetched until then."""
        self.reserved = 0
        """Bytes that the in-flight fetch may return; they count against the partition's share of the budget."""
        self.version = 0
        """Incremented whenever in-flight requests become void: at a jump of the position, at the end of the partition."""
        self.jumps = 0
        """Counts seeks, resets and changes of the log; `reread` is ignored after one."""
        self.fetch_source = FetchSource()
        self.listener = PositionListener()
        self.buffer = make_buffer(self, offset, config, self._on_skip, leader_epoch, hooks)
        self.budget = budget
        self._hooks = hooks
        self.errors = ErrorStream(config.error_buffer)
        self.fetch_failures = FetchFailures()
        self._read = ReadRange(offset)
        self.ended = False
        self.blocked = False  # ended, paused, or an error to raise: what the iterators' fast path checks
        self.gathering = 0  # readers that wait to fill a larger batch
        self.waiting = 0
        """Readers that wait for their next record: while there is one, no record is in the hands of a handler."""
        self.changed = asyncio.Event()
        self.decoder = BatchDecoder(self._decoded)
        self._last_progress: tuple[int, int] | None = None
        """The buffer's progress at the last check for stalls, if records waited for the reader then."""

    def __repr__(self) -> str:
        return f"<TopicPartitionState {self.tp}: {self.state.name.lower()} at {self.position}, {self.buffer.bytes} bytes>"

    @property
    def state(self) -> FetchState:
        """The state; FAILED hides the one in which it goes on once the error was raised."""
        if self.ended:
            return FetchState.ENDED
        return self.fetch_state if self.error is None else FetchState.FAILED

    # --- position and state -------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The offset of the next record that the iterator returns."""
        return self.buffer.position

    def seek_to(self, offset: int) -> None:
        """Continue at `offset`, of any topic id and leader epoch."""
        self.seek_target = None
        self.jumps += 1
        self.fetch_source.forget()
        self._move_to(offset, -1)

    def seek_by_lookup(self, target: StartOffset) -> None:
        """Drop buffered records; the fetchers look up the offset of `target` and call `seek_to`."""
        self.seek_target = target
        self.jumps += 1
        self._move_to(self.position, -1)
        self.fetcher.look_up_seek(self)

    def was_read(self, offset: int) -> bool:
        """Return whether a record of this offset may have been delivered."""
        read = self._read
        return read.lowest <= offset and (offset < read.furthest or offset < self.buffer.position)

    def _move_to(self, offset: int, epoch: int) -> None:
        """Move the position; `epoch` is the leader epoch of the record before it. Drops the buffer, error and stall."""
        self._read.jump(self.position, offset)
        self.version += 1
        self.reserved = 0
        self.error = None
        self.decoder.cancel()
        self.buffer.seek(offset, epoch)
        # an empty range replaces the last one: in a truncated log there may be records now
        self.listener.on_skipped_range(offset, offset, -1)
        self._unstall()
        self._update()
        self.fetcher.wake(self)

    def made_room(self) -> None:
        """Wake the fetcher after a batch was used up, and end a stall if enough room is free."""
        if self.stalled and self.budget.may_resume(self.buffer.bytes):
            self._unstall()
        self.fetcher.wake(self)

    def _unstall(self) -> None:
        if self.stalled:
            self.stalled = False
            self._hooks.emit("on_resumed", *self.tp)

    def _update(self) -> None:
        """Recompute `blocked` and wake waiting readers."""
        self.blocked = self.ended or self.paused or self.error is not None
        self.fetcher.on_change(self)
        self.changed.set()

    # --- fetching -----------------------------------------------------------------------------------------------

    def adopt_topic_id(self, topic_id: UUID) -> bool:
        """Adopt the topic id if none is known yet; return False if another one is known: the topic was recreated."""
        source = self.fetch_source
        if topic_id in (source.topic_id, NO_UUID):
            return True
        if source.topic_id != NO_UUID:
            return False
        source.topic_id = topic_id
        self.listener.on_topic_id(topic_id)
        return True

    @property
    def fetch_offset(self) -> int:
        """The next offset to fetch."""
        return self.buffer.fetch_offset

    @property
    def fetched_epoch(self) -> int:
        """The leader epoch of the record before `fetch_offset`, -1 if unknown."""
        return self.buffer.fetched_epoch

    @property
    def end_offset(self) -> float:
        """From here on nothing is fetched, though records beyond it come if they are in the same batches."""
        return self._end_offset

    @end_offset.setter
    def end_offset(self, offset: float) -> None:
        self._end_offset = offset
        self.fetcher.on_change(self)

    @property
    def fetch_size(self) -> int:
        """Bytes to fetch at once."""
        return self.budget.size_for(self.batch_size)

    @property
    def _has_space(self) -> bool:
        return self.budget.allows(self.buffer.bytes + self.reserved, self.fetch_size)

    @property
    def _is_idle(self) -> bool:
        waits = self.paused or self.stalled or self.ended or self.seek_target is not None
        is_complete = self.buffer.fetch_offset >= self._end_offset
        return waits or is_complete or self.error is not None or self.buffer.framing_error is not None

    @property
    def is_fetchable(self) -> bool:
        """Whether the partition belongs into the next fetch."""
        return not self._is_idle and self._has_space

    @property
    def is_buffer_full(self) -> bool:
        """Whether only its full buffer keeps the partition out of the next fetch, until its reader makes room."""
        return not self._is_idle and not self._has_space

    def ask_for_more(self, size: int) -> None:
        """Ask for twice `size` bytes: there is more in the log than a fetch of that size returned."""
        self.batch_size = 2 * size
        self.fetcher.on_change(self)

    def fetched(self, records: FetchedRecords) -> None:
        """Add what a broker returned. Bytes that do not form record batches raise to the reader after the records before."""
        self.log_start_offset = records.log_start_offset
        self.last_stable_offset = records.last_stable_offset
        self.buffer.high_watermark = records.high_watermark
        if records.data:
            buffer = self.buffer
            buffer.add(records.data, zero_copy=records.zero_copy, aborted=records.aborted or ())
            self.changed.set()
            self.fetcher.on_records()
            # batches differ: remember the largest one for a while
            self.batch_size = max(buffer.batch_bytes, self.batch_size - self.batch_size // 8)
            if buffer.records_end < buffer.fetch_offset:
                self.listener.on_skipped_range(buffer.records_end, buffer.fetch_offset, buffer.fetched_epoch)
        if not self.fetch_failures.is_clear:
            self.fetch_failures.clear()
        self.fetcher.on_change(self)

    def report(self, error: Exception) -> bool:
        """Pass an error that the client recovers from by itself to the readers of `errors()`; return False without any."""
        return self.errors.put(error)

    def fail(self, error: Exception) -> None:
        """Raise `error` from the iterator once; nothing is fetched until then."""
        self.error = error
        self._update()

    def reset(self, offset: int, log_end: int) -> None:
        """Continue at `offset` because `fetch_offset` is not in the log; `log_end` is passed to `on_reset`.

        If the log start has moved beyond the position, the buffered records are delivered first: a slow reader loses no
        record that was fetched for it.
        """
        if offset > self.fetch_offset and self.buffer.records:
            self.version += 1
            self.reserved = 0
            self.buffer.skip_to(offset)
            self.fetcher.wake(self)
        else:
            self.seek_to(offset)
        self.buffer.forget_from(log_end)
        self.listener.on_reset(offset, log_end)

    def restart(self, offset: int, epoch: int = -1, topic_id: UUID = NO_UUID) -> None:
        """Continue at `offset`: from there on the log has other records than those that were read.

        The marks of the lost records must not count for those read instead, hence `on_restart`. `epoch` is the leader
        epoch of the record before `offset`, `topic_id` the id of a recreated topic.
        """
        self.jumps += 1
        self._move_to(offset, epoch)
        self.buffer.forget_from(offset if topic_id == NO_UUID else 0)
        self.listener.on_restart(offset, topic_id)

    def rewind(self, epoch: int) -> None:
        """Drop buffered records and fetch them again; `epoch` is the leader epoch of the record before the position."""
        self._move_to(self.position, epoch)

    def reread(self, offset: int, jumps: int) -> None:
        """Go back to a batch that was delivered from `offset` on and could not be decoded: its records were not seen.

        From now on batches are decoded before they are delivered, and a corrupt one raises at every read until a seek
        past it, as with the record iterator. Ignored after a jump; `jumps` is the count when the batch was delivered.
        """
        if jumps != self.jumps or offset >= self.position:
            return
        _log.warning(
            "%s: the batch at offset %d cannot be decoded; reading returns to its first unmarked record, and marks "
            "cannot pass it before a seek() past it",
            self.tp,
            offset,
        )
        self.buffer.decode_eagerly = True
        resume_at = self.listener.on_unreadable_batch(offset)
        if resume_at < self.position:
            self._move_to(resume_at, -1)

    def _on_skip(self, error: CorruptRecordsError) -> None:
        _log.warning("%s", error)
        self.fetcher.on_handled_error(self, error)

    def check_progress(self) -> bool:
        """Detect a stall; called every `max_processing_time`, so that nothing is counted per record.

        The partition is stalled if records waited since the last call and none was delivered. A reader that waits for a
        larger batch or for a decoding thread does not count as slow. Return False if no further call is needed until
        records arrive.
        """
        if self.ended:
            return False
        progress = self.buffer.progress
        if self.stalled:
            # the reader has taken records, perhaps of one large batch: check for room before that is used up
            if progress != self._last_progress:
                self.made_room()
            return True
        reader_waits = self.gathering or self.decoder.is_busy
        waits = bool(self.buffer) and not (self.paused or reader_waits)
        # records that arrived since the last call have not waited for a whole period yet
        if waits and progress == self._last_progress:
            self.stalled = True
            self.fetcher.on_change(self)
            self._hooks.emit("on_stalled", *self.tp)
        self._last_progress = progress if waits else None
        return bool(self.buffer)

    # --- reading ------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more records can arrive before the reader takes some of the buffered ones."""
        is_blocked = self.stalled or self.buffer.framing_error
        return not is_blocked and self.budget.allows(self.buffer.bytes, self.fetch_size)

    @property
    def is_ready(self) -> bool:
        """Whether `decode_next` has a record to prepare or an error to raise."""
        return not (self.ended or self.paused) and (self.error is not None or bool(self.buffer))

    def decode_next(self) -> bool:
        """Make a record available in the buffer's `decoded`; return False if there is none. Call only if `is_ready`.

        Raises a fetch error once, and CorruptRecordsError.
        """
        if (error := self.take_error()) is not None:
            raise error
        while not self.buffer.decoded:
            if self.begin_decoding() or not self.advance():
                return False
            if not self.buffer.decoded:
                self.made_room()
        return True

    def begin_decoding(self) -> bool:
        """Begin to decode the front batch in a thread if it is large; return whether the reader has to wait for that."""
        batch = self.buffer.large_front
        if batch is None:
            return False
        self.decoder.decode(batch, self.buffer.queue.decode_call(batch))
        return True

    def _decoded(self, batch: BatchView, outcome: list[Record] | BaseException) -> None:
        self.buffer.queue.set_decoded(batch, outcome)
        self.changed.set()

    def advance(self) -> bool:
        """Decode the next batch, as `RecordBuffer.advance`; one that cannot be decoded may be fetched again.

        Small batches count in full until all that were decoded at once are used up: these are a small part of what the
        partition may hold, so that it is fetched, or resumes, when there is room.
        """
        try:
            advanced = self.buffer.advance(self.budget.fetch_size // _STEPS)
            if self.reports is not None:
                self.deliver = self.reports.deliver if self.reports.wants_records() else self.intercept
            return advanced
        except CorruptRecordsError:
            self.made_room()  # the batch may have been damaged on the network: fetch it again
            raise

    def set_listeners(self, intercept: Interceptors | None, reports: ProcessReports | None) -> None:
        """Set what is called with the records that are delivered."""
        self.intercept = self.deliver = intercept
        self.reports = reports

    def end_processing(self, error: BaseException | None = None) -> None:
        """The reader is done with what was delivered last, or has failed with `error`."""
        if self.reports is not None:
            self.reports.end(error)

    def take_error(self) -> Exception | None:
        """Return the error for the reader, if there is one; fetching goes on."""
        error, self.error = self.error, None
        if error is not None:
            self._update()
            self.fetcher.wake(self)
        return error

    # --- the user's steps ---------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop iteration before the next record, and stop fetching, until `resume`. Buffered records are kept."""
        self.paused = True
        self._update()

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False
        self._update()
        self.fetcher.wake(self)

    def end(self) -> None:
        """End every iterator before its next record; safe to call twice. An error that was not raised yet is logged.

        Buffered and in-flight records are dropped: a claim that its handler keeps must not hold memory. `position` stays.
        """
        was_ended, self.ended = self.ended, True
        self.version += 1
        self.decoder.cancel()
        self.buffer.close()
        self.errors.close()
        self._update()
        if self.error is not None and not was_ended:
            # a program's log filter that raises must not keep its other partitions open
            with contextlib.suppress(Exception):
                _log.warning("%s: closed before an error was raised to its reader: %s", self.tp, self.error)

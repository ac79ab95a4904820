"""A partition's buffer that delivers whole values: chunks are put together on the way (`chunks="assemble"`).

The assembler gets a chunk when the reader has everything before it, so that its state is that at the reader's position: after a
rewind the buffered records can be fetched again, and nothing is lost or counted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.buffer import OnSkip, RecordBuffer
from asyncgroup.consumer.chunk_assembler import ChunkAssembler, ChunkLimits, ChunkListener, DropReason
from asyncgroup.consumer.decoding import LazyRecords
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.escaping import printable
from asyncgroup.hooks import Hooks
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_run import RUN_BYTES, BatchRun
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.chunks import CHUNK_HEADERS, CHUNK_UUID, is_chunk

__all__ = ["ChunkedBuffer", "Reader", "make_buffer"]

_log = logging.getLogger("asyncgroup.consumer")

_CHUNK_UUID: Final = CHUNK_UUID.encode()
_CHUNK_HEADERS: Final = len(CHUNK_HEADERS)

SEARCH_LIMIT: Final = 256
"""Bytes per record up to which it is faster to search a batch for the name of a header than to decode its records."""


LATE: Final = 1.0
"""Seconds by which a timer is late if the event loop was blocked."""


class Reader(Protocol):
    """The attributes that a buffer uses of its partition."""

    tp: TopicPartition
    listener: PositionListener
    paused: bool
    waiting: int


def make_buffer(
    reader: Reader, offset: int, config: ConsumerConfig, on_skip: OnSkip, leader_epoch: int, hooks: Hooks
) -> RecordBuffer:
    """Return the buffer of a partition by the configuration."""
    skip = on_skip if config.on_corrupt_batch == "skip" else None
    if config.chunks == "as_is":
        return RecordBuffer(
            reader.tp, offset, config.check_crcs, skip, leader_epoch, config.max_response_size
        )
    return ChunkedBuffer(reader, offset, config, skip, leader_epoch, hooks)


class ChunkedBuffer(RecordBuffer):
    """A RecordBuffer in which `decoded` holds no chunks.

    It is filled with the records of a batch up to the next chunk, or with one record that was put together; those after that
    wait in `_rest`.

    Chunks that are dropped at the end of the log have no record after them whose mark passes them, so they are reported as a range
    without records when the reader has nothing left; values that are still incomplete hold back the commit by themselves.
    """

    __slots__ = ("_assembler", "_passed", "_reader", "_rest", "_rest_size", "_time", "_timer", "_timer_at")

    def __init__(
        self,
        reader: Reader,
        offset: int,
        config: ConsumerConfig,
        on_skip: OnSkip | None,
        leader_epoch: int,
        hooks: Hooks,
    ) -> None:
        limits = ChunkLimits(config.max_pending_chunked, config.chunk_buffer_bytes, config.chunk_expiry)
        self._assembler = ChunkAssembler(limits, _Reports(reader, hooks, acks_oldest=config.auto_ack_oldest))
        self._reader = reader
        self._rest: list[Record] = []  # of the front batch, after those in `decoded`, in reverse order
        self._rest_size = 0  # wire bytes of the batch that `_rest` came from
        self._passed = -1  # the first chunk after the last record that was delivered; -1 for none
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # loop time of the timer
        super().__init__(
            reader.tp, offset, config.check_crcs, on_skip, leader_epoch, config.max_response_size
        )

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Drop everything and continue at `offset`; chunks before it are kept, their values may go on there."""
        # chunks that were passed are passed still, if reading goes on where it is
        passed = self._passed if self._passed >= 0 and offset == self.position else -1
        super().seek(offset, epoch)
        self._rest, self._rest_size, self._passed = [], 0, passed
        self._assembler.move_to(offset)

    def forget_from(self, offset: int) -> None:
        """The log has no longer the values that began at `offset` or later, see `RecordBuffer`."""
        self._assembler.forget_from(offset)

    def close(self) -> None:
        """Drop everything: nothing more is read."""
        super().close()
        self._assembler.clear()
        self._set_timer()

    def __bool__(self) -> bool:
        return bool(self._rest) or super().__bool__()

    @property
    def records(self) -> int:
        """Buffered records, see `RecordBuffer`."""
        return len(self._rest) + super().records

    @property
    def position(self) -> int:
        """The offset of the next record to deliver, see `RecordBuffer`; of a whole value that of its last chunk."""
        return self._rest[-1].offset if self._rest and not self.decoded else super().position

    @property
    def large_front(self) -> BatchView | None:
        """The next batch to decode if it is large, see `RecordBuffer`."""
        return None if self._rest else super().large_front

    def release(self) -> None:
        """The last of `decoded` was delivered."""
        super().release()
        self._assembler.confirm()

    def advance(self, most: int = RUN_BYTES) -> bool:
        """Go on to the next records of the front batch, or to the next batch. Raises as `RecordBuffer.advance`."""
        if not self._rest:
            if not super().advance(most):
                return False
            if not _has_chunk(self.decoded):
                if self.decoded:
                    self._passed = -1
                return True
            self._rest = self.decoded
            self._begin([])
            self._rest_size, self._size = self._size, 0
        self._next_run()
        return True

    def _next_run(self) -> None:
        """Move the next records from `_rest` to `decoded`: a whole value, or all up to the next chunk."""
        rest, run = self._rest, list[Record]()
        while rest and is_chunk(rest[-1].headers):
            chunk = rest.pop()
            if self._passed < 0:
                self._passed = chunk.offset
            if (record := self._assembler.add(chunk, self._time())) is not None:
                run.append(record)
                break
        else:
            while rest and not is_chunk(rest[-1].headers):
                run.append(rest.pop())
            run.reverse()
        self._begin(run)
        self.batches_read += 1
        self._set_timer()
        if run:
            self._passed = -1
        if not rest:
            self._size, self._rest_size = self._rest_size, 0
            if not run:
                self.release()
                self._report_dropped()

    def _report_dropped(self) -> None:
        """If nothing is left but chunks were dropped after the last record, report where they were."""
        if self._assembler.has_dropped and not self:
            self._assembler.has_dropped = False
            if self._passed >= 0:
                self._reader.listener.on_skipped_range(self._passed, self.fetch_offset, self.fetched_epoch)

    def pop_records(self, max_records: int, max_bytes: int) -> LazyRecords:
        """Remove and return records, see `RecordBuffer`."""
        before = self._assembler.first_offset
        taken = super().pop_records(max_records, max_bytes)
        if taken and before < taken.first_offset:
            taken.reread_offset = int(before)
        return taken

    def _refill(self) -> bool:
        if not self._rest:
            return False
        self._next_run()
        return True

    def _next_within(self, room: int, taken: LazyRecords, plain: BatchView | BatchRun) -> None:
        if plain.size > SEARCH_LIMIT * plain.record_count or _CHUNK_UUID in bytes(plain.data):
            self.advance()
        else:
            super()._next_within(room, taken, plain)
            self._passed = -1

    # --- expiry -------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is None and self._assembler:
            loop = asyncio.get_running_loop()
            self._timer_at = self._assembler.expires_at
            self._timer = loop.call_at(self._timer_at, self._on_timer)
        elif self._timer is not None and not self._assembler:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        """Give up values without a chunk for `chunk_expiry`; only time in which the reader waits for records counts.

        While the event loop was blocked, the reader could not wait: chunks may have arrived that are not read yet.
        """
        assert self._timer is not None
        late = self._time() - self._timer_at
        self._timer, reader = None, self._reader
        if reader.waiting and not reader.paused and not self and late < LATE:
            self._assembler.expire(self._time())
            self._report_dropped()
        else:
            self._assembler.touch(self._time())
        self._set_timer()


def _has_chunk(records: list[Record]) -> bool:
    # a plain loop without a call for each record; most have fewer headers than a chunk, which are not looked at
    for record in records:  # noqa: SIM110
        if len(record.headers) >= _CHUNK_HEADERS and is_chunk(record.headers):
            return True
    return False


_DISPLACED: Final = (DropReason.TOO_MANY, DropReason.TOO_LARGE)
"""Why a value is dropped that others displace."""


class _Reports(ChunkListener):
    """Reports values that begin, end or are dropped to the marks, the hooks and the log."""

    def __init__(self, reader: Reader, hooks: Hooks, *, acks_oldest: bool) -> None:
        self._reader = reader
        self._hooks = hooks
        self._acks_oldest = acks_oldest

    def on_begun(self, first_offset: int, leader_epoch: int) -> None:
        self._reader.listener.on_value_begun(first_offset, leader_epoch)

    def on_completed(self, first_offset: int, last_offset: int) -> None:
        self._reader.listener.on_value_completed(first_offset, last_offset)

    def on_dropped(self, first_offset: int, reason: DropReason, uuid: str) -> None:
        _log.warning(
            "%s: the chunks of value %s from offset %d on are dropped: %s",
            self._reader.tp,
            printable(uuid),
            first_offset,
            reason,
        )
        if self._acks_oldest or reason not in _DISPLACED:
            self._reader.listener.on_value_dropped(first_offset)
        self._hooks.emit("on_chunks_dropped", *self._reader.tp, first_offset, str(reason))

    def on_forgotten(self, first_offset: int) -> None:
        self._reader.listener.on_value_dropped(first_offset)

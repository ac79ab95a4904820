"""ChunkFilter: what a partition's buffer delivers whole values with, whose chunks are put together (`chunks="assemble"`).

The assembler gets a chunk when the reader has everything before it, so that its state is that at the reader's position: after a
rewind the buffered records can be fetched again, and nothing is lost or counted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.chunk_assembler import ChunkAssembler, ChunkLimits, ChunkListener, DropReason
from asyncgroup.consumer.position_listener import PositionListener
from asyncgroup.escaping import printable
from asyncgroup.hooks import Hooks
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_run import BatchRun
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.chunks import CHUNK_HEADERS, CHUNK_UUID, is_chunk

__all__ = ["ChunkFilter", "Reader"]

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


class Buffered(Protocol):
    """The attributes that a filter uses of its buffer."""

    fetch_offset: int
    fetched_epoch: int

    @property
    def position(self) -> int:
        """The offset of the next record to deliver."""

    def __bool__(self) -> bool: ...


class ChunkFilter:
    """What a RecordBuffer lacks to deliver whole values: it takes the chunks out of each batch's records.

    A batch with chunks is delivered in parts, which `next_records` returns: the records up to the next chunk, or one that was
    put together.

    Chunks that are dropped at the end of the log have no record after them whose mark passes them, so they are reported as a range
    without records when the reader has nothing left; values that are still incomplete hold back the commit by themselves.
    """

    __slots__ = ("_buffer", "_reader", "_time", "_timer", "_timer_at", "assembler", "first_dropped")

    def __init__(self, reader: Reader, buffer: Buffered, config: ConsumerConfig, hooks: Hooks) -> None:
        limits = ChunkLimits(config.max_pending_chunked, config.chunk_buffer_bytes, config.chunk_expiry)
        self.assembler = ChunkAssembler(limits, _Reports(reader, hooks, acks_oldest=config.auto_ack_oldest))
        self.first_dropped = -1
        """The first chunk after the last record that was delivered; -1 for none."""
        self._reader = reader
        self._buffer = buffer
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # loop time of the timer

    def __repr__(self) -> str:
        return f"<ChunkFilter {self._reader.tp}: {self.assembler}>"

    @property
    def first_offset(self) -> float:
        """The offset of the first chunk that is held; infinity without any."""
        return self.assembler.first_offset

    def holds(self, records: list[Record]) -> bool:
        """Return whether there are chunks among the records of a batch; otherwise they are delivered as they are."""
        if _has_chunk(records):
            return True
        if records:
            self.first_dropped = -1
        return False

    def lets_pass(self, batch: BatchView | BatchRun) -> bool:
        """Return whether a batch has no chunk for certain, so that it need not be decoded."""
        return batch.size <= SEARCH_LIMIT * batch.record_count and _CHUNK_UUID not in bytes(batch.data)

    def next_records(self, rest: list[Record]) -> list[Record]:
        """Remove the next records from `rest`, and return them: a whole value, or all up to the next chunk. Both in reverse order."""
        run: list[Record] = []
        while rest and is_chunk(rest[-1].headers):
            chunk = rest.pop()
            if self.first_dropped < 0:
                self.first_dropped = chunk.offset
            if (record := self.assembler.add(chunk, self._time())) is not None:
                run.append(record)
                break
        else:
            while rest and not is_chunk(rest[-1].headers):
                run.append(rest.pop())
            run.reverse()
        self._set_timer()
        if run:
            self.first_dropped = -1
        return run

    def confirm(self) -> None:
        """The reader has what `next_records` returned last."""
        self.assembler.confirm()

    def report_dropped(self) -> None:
        """If nothing is left but chunks were dropped after the last record, report where they were."""
        if self.assembler.has_dropped and not self._buffer:
            self.assembler.has_dropped = False
            if self.first_dropped >= 0:
                end, epoch = self._buffer.fetch_offset, self._buffer.fetched_epoch
                self._reader.listener.on_skipped_range(self.first_dropped, end, epoch)

    def on_seek(self, offset: int) -> None:
        """Reading continues at `offset`; chunks before it are kept, their values may go on there."""
        # chunks that were passed are passed still, if reading goes on where it is
        if self.first_dropped >= 0 and offset != self._buffer.position:
            self.first_dropped = -1
        self.assembler.move_to(offset)

    def forget_from(self, offset: int) -> None:
        """The log has no longer the values that began at `offset` or later."""
        self.assembler.forget_from(offset)

    def close(self) -> None:
        """Drop all chunks: nothing more is read."""
        self.assembler.clear()
        self._set_timer()

    # --- expiry -------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is None and self.assembler:
            loop = asyncio.get_running_loop()
            self._timer_at = self.assembler.expires_at
            self._timer = loop.call_at(self._timer_at, self._on_timer)
        elif self._timer is not None and not self.assembler:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        """Give up values without a chunk for `chunk_expiry`; only time in which the reader waits for records counts.

        While the event loop was blocked, the reader could not wait: chunks may have arrived that are not read yet.
        """
        assert self._timer is not None
        late = self._time() - self._timer_at
        self._timer, reader = None, self._reader
        if reader.waiting and not reader.paused and not self._buffer and late < LATE:
            self.assembler.expire(self._time())
            self.report_dropped()
        else:
            self.assembler.touch(self._time())
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

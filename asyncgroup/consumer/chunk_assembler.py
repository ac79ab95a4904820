"""ChunkAssembler: puts the chunks of large values together, as Pulsar's consumer does. Pure state.

It gets the chunks of one partition in offset order. The rules are those of `ConsumerImpl.processMessageChunk` in Pulsar, with
one simplification: chunks with the same uuid have the same content, so a value that its producer wrote again continues with
the chunks that are held.

- The chunk that follows the last one of its value is kept; the last one of all completes the value.
- A chunk whose number is not above that of the last one is a duplicate and ignored.
- A chunk that leaves out another one: the value cannot be completed and is given up.
- A chunk of a value that has not begun, because reading began after its first chunk or because it was given up, is ignored. So
  are chunks of a value that was completed before.

Values are also given up when too many are incomplete, the oldest one first; when they hold too many bytes; when no chunk came
for a while; and when their chunks contradict each other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from asyncgroup.model import ChunkedRecord, Record
from asyncgroup.wire.chunks import CHUNK_HEADERS, ChunkInfo, read_chunk_info

__all__ = ["ChunkAssembler", "ChunkLimits", "ChunkListener", "DropReason"]

NEVER: Final = float("inf")
"""A loop time that never comes."""

MAX_REMEMBERED: Final = 100
"""Values that have ended whose later chunks are ignored without a report."""


class DropReason(StrEnum):
    """Why chunks are dropped."""

    EXPIRED = "expired"
    """No further chunk came for `chunk_expiry`."""
    TOO_MANY = "too many"
    """More than `max_pending_chunked` values were incomplete; this was the oldest one."""
    TOO_LARGE = "too large"
    """The value is larger than `chunk_buffer_bytes`, or the incomplete values together, of which this was the oldest one."""
    GAP = "gap"
    """A chunk is missing."""
    MISMATCH = "mismatch"
    """The number of its chunks or their size is not what the first one says."""
    NO_FIRST_CHUNK = "no first chunk"
    """Reading began after the first chunk, or it was deleted."""


class ChunkLimits(NamedTuple):
    """Limits of one partition's incomplete values."""

    max_pending: int
    max_bytes: int
    expiry: float
    """Seconds without a chunk after which a value is given up."""


class ChunkListener:
    """Its methods are called when a value begins and ends. This one does nothing."""

    def on_begun(self, first_offset: int, leader_epoch: int) -> None:
        """The first chunk of a value was received; `leader_epoch` is that of its batch."""

    def on_completed(self, first_offset: int, last_offset: int) -> None:
        """The last chunk of a value was received."""

    def on_dropped(self, first_offset: int, reason: DropReason, uuid: str) -> None:
        """The chunks of a value are dropped, from `first_offset` on."""

    def on_forgotten(self, first_offset: int) -> None:
        """The log does not contain the value that began there any more."""


class _PendingValue:
    """The chunks of a value received so far; none if reading went back to before the first one."""

    __slots__ = ("bytes", "first_offset", "info", "offsets", "parts", "received_at")

    def __init__(self, info: ChunkInfo, first_offset: int, now: float) -> None:
        self.info = info
        self.first_offset = first_offset
        self.offsets: list[int] = []
        self.parts: list[bytes] = []
        self.bytes = 0
        self.received_at = now
        """Loop time of its last chunk."""

    def append(self, offset: int, part: bytes, now: float) -> None:
        self.offsets.append(offset)
        self.parts.append(part)
        self.bytes += len(part)
        self.received_at = now

    def truncate(self, offset: int) -> int:
        """Forget the chunks from `offset` on; return how many bytes they had."""
        before = self.bytes
        while self.offsets and self.offsets[-1] >= offset:
            self.offsets.pop()
            self.bytes -= len(self.parts.pop())
        return before - self.bytes


class ChunkAssembler:
    """The incomplete values of one partition. The current loop time is a parameter.

    Its state includes all records below the reader's position. So a completed value is kept until the reader has it (`confirm`):
    before that, reading may continue at its last chunk once more.
    """

    def __init__(self, limits: ChunkLimits, listener: ChunkListener) -> None:
        self._limits = limits
        self._listener = listener
        self._pending: dict[str, _PendingValue] = {}  # by uuid; the one that began first is first
        self.bytes = 0
        """Bytes of the chunks that are held."""
        self.has_dropped = False
        """Whether a chunk was dropped or ignored since this was last set to False."""
        self._completed: tuple[str, int] | None = None  # uuid, and offset of the last chunk
        # the values that ended last, by uuid: the offset of the last chunk, infinity of those given up
        self._ended: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<ChunkAssembler {len(self._pending)} incomplete values, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first_offset(self) -> float:
        """The offset of the first chunk that is held; infinity without any."""
        return min((value.first_offset for value in self._pending.values()), default=NEVER)

    @property
    def expires_at(self) -> float:
        """The loop time at which the next value expires; infinity without any."""
        return (
            min((value.received_at for value in self._pending.values()), default=NEVER) + self._limits.expiry
        )

    # --- chunks -------------------------------------------------------------------------------------------------

    def add(self, record: Record, now: float) -> Record | None:
        """Add the next record. Return the whole record if a value is complete, or the record itself if it is not a chunk."""
        info = read_chunk_info(record.headers)
        if info is None:
            return record
        value = self._pending.get(info.uuid)
        if value is None and info.chunk_id == 0 and record.offset <= self._ended.get(info.uuid, NEVER):
            value = self._begin(record, info, now)
        if value is None:
            self._ignore(record, info)
        elif value.info[2:] != info[2:]:
            self._drop(info.uuid, DropReason.MISMATCH)
        elif info.chunk_id > len(value.parts):
            self._drop(info.uuid, DropReason.GAP)
        elif info.chunk_id == len(value.parts):
            return self._append(record, value, now)
        return None

    def _begin(self, record: Record, info: ChunkInfo, now: float) -> _PendingValue | None:
        """Return a new value; None if it is too large."""
        if info.total_size > self._limits.max_bytes:
            self._report(record.offset, DropReason.TOO_LARGE, info.uuid)
            return None
        self._ended.pop(info.uuid, None)
        while len(self._pending) >= self._limits.max_pending:
            self._drop(next(iter(self._pending)), DropReason.TOO_MANY)
        value = self._pending[info.uuid] = _PendingValue(info, record.offset, now)
        self._listener.on_begun(record.offset, record.leader_epoch)
        return value

    def _append(self, record: Record, value: _PendingValue, now: float) -> Record | None:
        part, info = record.value or b"", value.info
        size, is_last = value.bytes + len(part), len(value.parts) == info.chunk_count - 1
        if not part or size > info.total_size or (is_last and size != info.total_size):
            self._drop(info.uuid, DropReason.MISMATCH)
            return None
        if is_last:
            self._completed = (info.uuid, record.offset)
            self._listener.on_completed(value.first_offset, record.offset)
            headers = record.headers[len(CHUNK_HEADERS) :]
            return ChunkedRecord(record, value.first_offset, b"".join([*value.parts, part]), headers)
        while self.bytes + len(part) > self._limits.max_bytes:
            self._drop(next(uuid for uuid in self._pending if uuid != info.uuid), DropReason.TOO_LARGE)
        value.append(record.offset, part, now)
        self.bytes += len(part)
        return None

    def _ignore(self, record: Record, info: ChunkInfo) -> None:
        self.has_dropped = True
        if info.uuid not in self._ended:
            self._report(record.offset, DropReason.NO_FIRST_CHUNK, info.uuid)

    def _drop(self, uuid: str, reason: DropReason) -> None:
        self._report(self._remove(uuid).first_offset, reason, uuid)

    def _remove(self, uuid: str) -> _PendingValue:
        value = self._pending.pop(uuid)
        self.bytes -= value.bytes
        return value

    def _report(self, first_offset: int, reason: DropReason, uuid: str) -> None:
        self.has_dropped = True
        self._remember(uuid, NEVER)
        self._listener.on_dropped(first_offset, reason, uuid)

    def _remember(self, uuid: str, last_offset: float) -> None:
        self._ended[uuid] = last_offset
        if len(self._ended) > MAX_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def confirm(self) -> None:
        """The reader has the record that `add` returned last."""
        if self._completed is not None:
            uuid, last_offset = self._completed
            self._remove(uuid)
            self._remember(uuid, last_offset)
            self._completed = None

    # --- time and position --------------------------------------------------------------------------------------

    def touch(self, now: float) -> None:
        """Restart the expiry of all values: the reader did not wait for chunks."""
        for value in self._pending.values():
            value.received_at = now

    def expire(self, now: float) -> None:
        """Give up the values without a chunk for `expiry` seconds."""
        for uuid, value in list(self._pending.items()):
            if value.received_at + self._limits.expiry <= now:
                self._drop(uuid, DropReason.EXPIRED)

    def move_to(self, offset: int) -> None:
        """Reading continues at `offset`: forget the chunks from there on."""
        if self._completed is not None and self._completed[1] < offset:
            self.confirm()
        self._completed = None
        for value in self._pending.values():
            self.bytes -= value.truncate(offset)

    def forget_from(self, offset: int) -> None:
        """The log was truncated at `offset`: forget the values that began there or later, without a report.

        Other values may begin at the same offsets now.
        """
        for uuid, value in list(self._pending.items()):
            if value.first_offset >= offset:
                self._remove(uuid)
                self._listener.on_forgotten(value.first_offset)
        if self._completed is not None and self._completed[0] not in self._pending:
            self._completed = None

    def clear(self) -> None:
        """Free the memory, without a report: nothing more is read."""
        self._completed = None
        self._pending.clear()
        self.bytes = 0

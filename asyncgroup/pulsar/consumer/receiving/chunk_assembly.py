"""ChunkAssembly: puts the chunks of large values together. Pure state.

Each chunk is an entry. The rules are those of `ConsumerImpl.processMessageChunk` in Pulsar:

- X1: a first chunk of a value that is being assembled, with an id that is known: the broker pushed the value again, so it
  begins again, and nothing is acknowledged.
- X2: a first chunk with another id: its producer wrote the value again. The chunks of the first attempt never become a value,
  so they are acknowledged, or the cursor would have a hole.
- X3: a later chunk that was received before is ignored; it is acknowledged if its id is another one.
- X4: a chunk that leaves out another one, or whose value has not begun. The value cannot be completed with it.

No chunk is dropped without a reaction, else a Shared subscription would wait for it without end: what may be completed later is
pushed again (`redeliveries`), what cannot be is acknowledged (`acks`). The chunks of a value that is complete are acknowledged
together, when the value is. Values are also given up when too many are incomplete, the oldest one first, when they hold too many
bytes, and when no chunk came for a while.

Subscriptions with an order push nothing again but everything, in the same order. There a chunk of X4 is acknowledged, and a value
that was given up for others is left as it is, unless `acks_oldest`: it comes again on the next connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from asyncgroup.errors import CorruptRecordsError, UnsupportedVersionError
from asyncgroup.pulsar.wire.compression import decompress_body
from asyncgroup.pulsar.wire.entry import DECOMPRESSION_ERROR, Entry, EntryError, ValidationError
from asyncgroup.pulsar.wire.message_id import ChunkMessageId, MessageId

__all__ = ["AssembledEntry", "ChunkAssembly", "ChunkAssemblyLimits", "IncompleteValue"]

NEVER: Final = float("inf")
"""A loop time that never comes."""


class ChunkAssemblyLimits(NamedTuple):
    """Limits of one partition's incomplete values."""

    max_pending: int = 10
    """Incomplete values; 0: without limit."""
    max_bytes: int = 64 << 20
    """Bytes of all chunks that are held."""
    expiry: float = 60.0
    """Seconds without a chunk after which a value is given up and its chunks are acknowledged; 0: never."""
    acks_oldest: bool = False
    """Whether the chunks of a value that is given up for another one are acknowledged; otherwise they are pushed again."""


class IncompleteValue(NamedTuple):
    """A value that was given up, for reports."""

    uuid: str
    kind: str
    """The reason as hooks get it, see `Hook.on_chunks_dropped`."""
    reason: str
    is_acked: bool
    """Whether its chunks are acknowledged, so that it never comes again."""


class AssembledEntry(Entry):
    """A value that was put together from chunks: the last chunk, with the whole body."""

    __slots__ = ("chunk_ids",)

    def __init__(self, last: Entry, chunk_ids: list[MessageId], body: bytes) -> None:
        # not of a command: the last chunk has all there is
        self.id = ChunkMessageId(last.id, chunk_ids[0])
        self.epoch = last.epoch
        self.redelivery_count = last.redelivery_count
        self.metadata = last.metadata
        self.broker = last.broker
        self.body = body
        self.bounds = None
        self.count = self.present = self.unacked = 1
        self.chunk_ids = chunk_ids
        """The ids of all chunks, in order."""


class _Value:
    __slots__ = ("bytes", "chunks", "ids", "parts", "received_at", "total")

    def __init__(self, chunks: int, total: int) -> None:
        self.chunks = chunks
        self.total = total
        self.ids: list[MessageId] = []
        self.parts: list[bytes] = []
        self.bytes = 0
        self.received_at = 0.0


class ChunkAssembly:
    """The incomplete values of one partition. Loop times are parameters.

    `acks`, `redeliveries` and `reports` have what was dropped, until the caller clears them.
    """

    def __init__(self, limits: ChunkAssemblyLimits, *, largest: int, in_order: bool) -> None:
        """`largest` is the largest value in bytes, uncompressed; `in_order`: the subscription has an order."""
        self._limits = limits
        self._largest = largest
        self._in_order = in_order
        self._values: dict[str, _Value] = {}  # by uuid; the one that began first is first
        self.bytes = 0
        """Bytes of the chunks that are held."""
        self.acks: list[MessageId] = []
        """Chunks that cannot become a value."""
        self.redeliveries: list[MessageId] = []
        """Chunks that the broker should push again."""
        self.reports: list[IncompleteValue] = []

    def __repr__(self) -> str:
        return f"<ChunkAssembly {len(self._values)} incomplete values, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._values)

    @property
    def expires_at(self) -> float:
        """The loop time at which the next value expires; infinity without any."""
        if not self._limits.expiry or not self._values:
            return NEVER
        return min(value.received_at for value in self._values.values()) + self._limits.expiry

    def add(self, entry: Entry, now: float, time_of_day: int) -> AssembledEntry | None:
        """Add a chunk that has arrived; return the whole value if this completes it.

        `time_of_day` is in ms. Raises EntryError if the value is complete and cannot be decompressed: all its chunks are
        in `acks` then.
        """
        metadata = entry.metadata
        uuid, number = metadata.uuid or f"{metadata.producer_name}-{metadata.sequence_id}", metadata.chunk_id
        count, total = metadata.num_chunks_from_msg or 0, metadata.total_chunk_msg_size or 0
        value = self._values.get(uuid)
        if number == 0:
            if value is not None:
                self._begin_again(uuid, value, entry.id)
            value = self._begin(uuid, count, total)
        if value is not None and number is not None and number < len(value.ids):
            if entry.id not in value.ids:
                self.acks.append(entry.id)
            return None
        if value is None or number != len(value.ids) or (count, total) != (value.chunks, value.total):
            self._drop_unexpected(uuid, entry, time_of_day)
            return None
        return self._append(uuid, value, entry, now)

    def _begin_again(self, uuid: str, value: _Value, first: MessageId) -> None:
        self._remove(uuid)
        if first not in value.ids:
            self.acks += value.ids

    def _begin(self, uuid: str, chunks: int, total: int) -> _Value | None:
        if total > self._limits.max_bytes or chunks < 1:
            return None
        while self._limits.max_pending and len(self._values) >= self._limits.max_pending:
            self._give_up_oldest("too many", f"more than {self._limits.max_pending} values are incomplete")
        value = self._values[uuid] = _Value(chunks, total)
        return value

    def _append(self, uuid: str, value: _Value, entry: Entry, now: float) -> AssembledEntry | None:
        part = entry.body
        while len(self._values) > 1 and self.bytes + len(part) > self._limits.max_bytes:
            self._give_up_oldest(
                "too large", f"incomplete values have {self._limits.max_bytes} bytes", besides=uuid
            )
        value.ids.append(entry.id)
        value.parts.append(part)
        value.bytes += len(part)
        value.received_at = now
        self.bytes += len(part)
        is_last = len(value.ids) == value.chunks
        if value.bytes > value.total or (is_last and value.bytes != value.total):
            self._give_up(uuid, "mismatch", "the size of its chunks is not what they say", is_acked=True)
            return None
        if not is_last:
            return None
        self._remove(uuid)
        return AssembledEntry(entry, value.ids, self._open(entry, value))

    def _open(self, last: Entry, value: _Value) -> bytes:
        metadata = last.metadata
        size = metadata.uncompressed_size
        try:
            if size > self._largest:
                reason = f"a value of {size} bytes in chunks is larger than the limit of {self._largest}"
                raise CorruptRecordsError(reason)
            return decompress_body(metadata.compression, b"".join(value.parts), size, self._largest)
        except (CorruptRecordsError, UnsupportedVersionError) as error:
            self.acks += value.ids
            raise EntryError(ValidationError(DECOMPRESSION_ERROR, str(error))) from error

    def _drop_unexpected(self, uuid: str, entry: Entry, time_of_day: int) -> None:
        """X4: give the value up. Its other chunks may come again with this one, unless they are old."""
        kind = "gap" if uuid in self._values else "no first chunk"
        value = self._values.get(uuid) or _Value(0, 0)
        value.ids.append(entry.id)
        total = entry.metadata.total_chunk_msg_size or 0
        is_too_large = total > self._limits.max_bytes
        age = time_of_day - entry.metadata.publish_time
        is_old = bool(self._limits.expiry) and age > self._limits.expiry * 1000
        if is_too_large:
            kind = "too large"
            reason = f"its {total} bytes are more than the limit of {self._limits.max_bytes}"
        else:
            reason = f"its chunk {entry.metadata.chunk_id} arrived without the one before"
        self._give_up(uuid, kind, reason, is_acked=is_old or is_too_large or self._in_order, value=value)

    def _give_up_oldest(self, kind: str, reason: str, besides: str | None = None) -> None:
        uuid = next(each for each in self._values if each != besides)
        self._give_up(uuid, kind, reason, is_acked=self._limits.acks_oldest)

    def _give_up(
        self, uuid: str, kind: str, reason: str, *, is_acked: bool, value: _Value | None = None
    ) -> None:
        if uuid in self._values:
            value = self._remove(uuid)
        assert value is not None
        if is_acked:
            self.acks += value.ids
        elif not self._in_order:
            self.redeliveries += value.ids
        self.reports.append(IncompleteValue(uuid, kind, reason, is_acked))

    def _remove(self, uuid: str) -> _Value:
        value = self._values.pop(uuid)
        self.bytes -= value.bytes
        return value

    def expire(self, now: float) -> None:
        """Give up the values without a chunk for `expiry` seconds; their chunks are acknowledged."""
        for uuid, value in list(self._values.items()):
            if self._limits.expiry and value.received_at + self._limits.expiry <= now:
                reason = f"no chunk arrived for {self._limits.expiry} s"
                self._give_up(uuid, "expired", reason, is_acked=True)

    def clear(self) -> None:
        """Forget all: the broker pushes every chunk again, or the subscription continues elsewhere."""
        self._values.clear()
        self.acks.clear()
        self.redeliveries.clear()
        self.reports.clear()
        self.bytes = 0

"""Runs of small record batches, read together: what a batch costs by itself is most of the time of reading one record.

Producers with little traffic write batches of one or a few records. A `BatchRun` is a piece of a response with several of
them: found with one look at each header, checked and read in compiled code, with no object of ours for a batch. A batch that
is unusual (magic 0 or 1, gaps in its offsets, its size) is kept out of runs, and a run with any error in it
is taken apart into its batches, so that errors are those of single batches.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, Protocol

from asyncgroup.errors import AsyncGroupError, CorruptRecordsError
from asyncgroup.wire.batch_view import (
    CODEC_AT,
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MIN_LENGTH,
    MIN_RECORD_SIZE,
    PREFIX_BYTES,
    BatchView,
    batch_at,
    complete_size,
    put_uncompressed,
)
from asyncgroup.wire.decompression import CODECS, decompress_into
from asyncgroup.wire.primitives import Buffer

__all__ = ["LARGEST_PLAIN", "RUN_BYTES", "RUN_RECORDS", "BatchRun", "TransactionFilter", "find_batches"]

RUN_BYTES: Final = 1 << 16
"""Bytes from which a run ends. A reader decodes a run at once: it takes about as long as a full record batch."""

RUN_RECORDS: Final = 256
"""Records from which a run ends."""

LARGEST_PLAIN: Final = 1 << 18
"""Decompressed bytes of a run that are read at once; the rest of the run follows as another one."""

_LARGEST_BATCH: Final = 1 << 14
"""Bytes of the largest batch in a run: the default `batch.size` of Java's producer. Larger ones are worth an object each."""

_LEAST: Final = 2
"""The least number of batches in a run."""

_TABLE_CRC: Final = 400
"""Bytes of a batch up to which aiokafka's CRC-32C is faster than a call of the CPU's instruction with a view."""

_HEADER: Final = struct.Struct(">qiib4xhi16xq6xi")
"""Base offset, length, leader epoch, magic, attributes, last offset delta, producer id and record count."""
_FIRST_AND_DELTA: Final = struct.Struct(">q15xi")
"""Base offset and last offset delta."""
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = CRC_FROM - _CRC.size

_FIXED: Final = CONTROL | LOG_APPEND_TIME
"""The attributes that all batches of a run share."""


class BatchRun:
    """Small record batches of magic 2 without gaps in their offsets, of one leader epoch and one timestamp type.

    There may be gaps between them, and other codecs. `buffer` may be a larger one; it is kept in memory.
    """

    __slots__ = (
        "base_offset",
        "buffer",
        "counts",
        "end_offset",
        "expanded",
        "has_compressed",
        "is_checked",
        "last_offset",
        "leader_epoch",
        "record_count",
        "size",
        "spans",
        "timestamp_type",
    )

    def __init__(
        self,
        buffer: Buffer,
        spans: list[tuple[int, int]],
        counts: list[int],
        leader_epoch: int,
        timestamp_type: int,
        *,
        has_compressed: bool,
    ) -> None:
        self.buffer = buffer
        self.spans = spans
        """Start and end of each batch in `buffer`."""
        self.counts = counts
        """The number of records of each batch."""
        self.leader_epoch = leader_epoch
        self.timestamp_type = timestamp_type
        self.has_compressed = has_compressed
        self.base_offset: int = _FIRST_AND_DELTA.unpack_from(buffer, spans[0][0])[0]
        last, delta = _FIRST_AND_DELTA.unpack_from(buffer, spans[-1][0])
        self.last_offset: int = last + delta
        self.record_count = sum(counts)
        self.size = sum(end - start for start, end in spans)
        """Bytes of the batches."""
        self.end_offset = self.next_offset
        """The offset after the last record and the markers that follow it."""
        self.is_checked = False
        """Whether it is valid and not compressed, or `expanded` is set."""
        self.expanded: BatchRun | None = None
        """The same batches decompressed, once `BatchQueue` has done that."""

    def __repr__(self) -> str:
        return f"<BatchRun {self.base_offset} to {self.last_offset}, {len(self.spans)} batches, {self.size} bytes>"

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.last_offset + 1

    @property
    def is_dense(self) -> bool:
        """Whether it has a record for every offset from the base to the last offset."""
        return self.record_count == self.last_offset - self.base_offset + 1

    @property
    def data(self) -> bytes:
        """The bytes of its batches, one after another."""
        (start, _), (_, end) = self.spans[0], self.spans[-1]
        view = memoryview(self.buffer)
        # without markers or other batches in between
        if end - start == self.size:
            return bytes(view[start:end])
        return b"".join(view[start:end] for start, end in self.spans)

    @property
    def plain(self) -> BatchRun | None:
        """The run to read, checked and not compressed; None before that."""
        return (self.expanded or self) if self.is_checked else None

    def views(self) -> list[BatchView]:
        """Return its batches one by one."""
        view = memoryview(self.buffer)
        return [BatchView(view[start:end]) for start, end in self.spans]

    def copy(self) -> BatchRun:
        """Return the run with a copy of its bytes, so that the buffer it was in can be freed."""
        return self._with(self.data, _joined(self.spans), self.counts)

    def split(self, records: int, size: int) -> tuple[BatchRun, BatchRun] | None:
        """Return the batches that have at most `records` records and `size` bytes together, and the rest.

        None if not even the first one has so few, or if all have.
        """
        for number, ((start, end), count) in enumerate(zip(self.spans, self.counts, strict=True)):
            records -= count
            size -= end - start
            if records < 0 or size < 0:
                return self.split_at(number) if number else None
        return None

    def split_at(self, number: int) -> tuple[BatchRun, BatchRun]:
        """Return the first `number` batches, and the rest."""
        spans, counts, buffer = self.spans, self.counts, self.buffer
        first = self._with(buffer, spans[:number], counts[:number])
        rest = self._with(buffer, spans[number:], counts[number:])
        first.is_checked = rest.is_checked = self.is_checked
        if self.expanded is not None:
            first.expanded, rest.expanded = self.expanded.split_at(number)
        return first, rest

    def _with(
        self, buffer: Buffer, spans: list[tuple[int, int]], counts: list[int], *, plain: bool = False
    ) -> BatchRun:
        has_compressed = self.has_compressed and not plain
        return BatchRun(
            buffer, spans, counts, self.leader_epoch, self.timestamp_type, has_compressed=has_compressed
        )

    # --- reading ------------------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Return whether the CRC-32C of each batch matches its bytes."""
        from asyncgroup.wire.compiled import HAS_CRC_INSTRUCTION, DefaultRecordBatch, crc32c

        if self.size <= _TABLE_CRC * len(self.spans) or not HAS_CRC_INSTRUCTION:
            return all(map(DefaultRecordBatch.validate_crc, self._batches()))
        buffer = memoryview(self.buffer)
        return all(
            crc32c(buffer[start + CRC_FROM : end]) == _CRC.unpack_from(buffer, start + _CRC_AT)[0]
            for start, end in self.spans
        )

    def uncompressed(self, limit: int) -> tuple[BatchRun, int] | None:
        """Return the first batches decompressed, up to `limit` bytes, and their number; `is_valid` is called before.

        None if the first one cannot be decompressed, or not within the limit. The CRCs are not updated.
        """
        if not self.has_compressed:
            return self, len(self.spans)
        out, source, at = bytearray(limit), memoryview(self.buffer), 0
        spans: list[tuple[int, int]] = []
        with memoryview(out) as view:
            for (start, end), count in zip(self.spans, self.counts, strict=True):
                records = start + HEADER_SIZE
                begin = at + HEADER_SIZE
                size = _expand(source[start + CODEC_AT] & CODEC_MASK, source[records:end], view[begin:])
                # a header that promises more records than these bytes can have is damaged
                if size is None or count > size // MIN_RECORD_SIZE:
                    break
                view[at:begin] = source[start:records]
                put_uncompressed(out, at, size)
                spans.append((at, begin + size))
                at = begin + size
        if not spans:
            return None
        # only what is used of the limit is kept
        plain = self._with(bytes(memoryview(out)[:at]), spans, self.counts[: len(spans)], plain=True)
        return plain, len(spans)

    def raw_records(self) -> Iterator[Any]:
        """Return aiokafka's records of its batches, which are valid and not compressed."""
        return chain.from_iterable(self._batches())

    def _batches(self) -> Iterator[Any]:
        from asyncgroup.wire.compiled import MemoryRecords

        return iter(MemoryRecords(self.data).next_batch, None)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return where the batches are when there is nothing else between them."""
    found, at = [], 0
    for start, end in spans:
        found.append((at, at + end - start))
        at += end - start
    return found


def _expand(codec: int, data: memoryview, room: memoryview) -> int | None:
    """Write decompressed records into `room`; return their size, None if they do not fit or are malformed."""
    if codec:
        try:
            return decompress_into(codec, data, room)
        except AsyncGroupError:
            return None
    if len(data) > len(room):
        return None
    room[: len(data)] = data
    return len(data)


# --- finding them ------------------------------------------------------------------------------------------------------


class TransactionFilter(Protocol):
    """What tells the batches of aborted transactions; it goes through a response from its start to its end."""

    def may_hide(self, producer_id: int, last_offset: int) -> bool:
        """Go on to a batch by its header; return whether it may belong to an aborted transaction."""
        ...

    def advance_to(self, batch: BatchView) -> bool:
        """Go on to a batch, which may be the marker that ends such a transaction; return whether it belongs to one."""
        ...


def find_batches(
    buffer: Buffer, *, check_crcs: bool, aborted: TransactionFilter | None = None
) -> tuple[list[BatchRun | int], int]:
    """Return runs, and the positions of batches that are in none, and the end of the last complete batch.

    Transaction markers between batches of a run are left out. In no run are batches that may belong to an `aborted`
    transaction, and the markers that end one.
    """
    found: list[BatchRun | int] = []
    at = 0
    while True:
        run, end = _find_run(buffer, at, check_crcs=check_crcs, aborted=aborted)
        if run is not None:
            found.append(run)
            at = end
            continue
        if at == end:  # the batch is none of a run, or not complete
            end += complete_size(buffer, at)
            if at == end:
                return found, at
            if aborted is not None:
                with contextlib.suppress(CorruptRecordsError):  # raised again when the batch is added
                    if (batch := batch_at(buffer, at)) is not None:
                        aborted.advance_to(batch)
        # too few for a run; what was looked at once is not looked at again, as `aborted` only goes forwards
        while at < end:
            found.append(at)
            at += complete_size(buffer, at)


def _find_run(
    buffer: Buffer, at: int, *, check_crcs: bool, aborted: TransactionFilter | None
) -> tuple[BatchRun | None, int]:
    """Return the run that begins at a position, and the position after it; None if the batches there form none."""
    spans: list[tuple[int, int]] = []
    counts: list[int] = []
    unpack, shortest, longest = _HEADER.unpack_from, MIN_LENGTH[2], _LARGEST_BATCH
    total, limit, records, following, codecs = len(buffer), at + RUN_BYTES, 0, -(2**63), 0
    epoch = kind = -1
    while at + HEADER_SIZE <= total and at < limit and records < RUN_RECORDS:
        base, length, leader_epoch, magic, attributes, delta, producer_id, count = unpack(buffer, at)
        end = at + LOG_OVERHEAD + length
        if magic != 2 or not shortest <= length <= longest or end > total or base < following:
            break
        if not spans:
            # the first one decides what the others have to share
            epoch, kind = leader_epoch, attributes & _FIXED
        if leader_epoch != epoch:
            break
        if aborted is not None and aborted.may_hide(producer_id, base + delta):
            break
        if attributes & CONTROL:
            # a marker: left out, unless it may be a data batch that is damaged
            if not spans or delta < 0 or not _is_marker(buffer, at, end, check_crcs=check_crcs):
                break
        elif (
            attributes & _FIXED != kind
            or count != delta + 1
            or count < 1
            or attributes & CODEC_MASK >= len(CODECS)
        ):
            break
        else:
            spans.append((at, end))
            counts.append(count)
            records += count
            codecs |= attributes & CODEC_MASK
        following = base + delta + 1
        at = end
    if len(spans) < _LEAST:
        return None, at
    run = BatchRun(buffer, spans, counts, epoch, int(kind == LOG_APPEND_TIME), has_compressed=codecs != 0)
    run.end_offset = following
    return run, at


def _is_marker(buffer: Buffer, start: int, end: int, *, check_crcs: bool) -> bool:
    return not check_crcs or BatchView(memoryview(buffer)[start:end]).crc_is_valid()


def complete_part(data: memoryview, end: int, *, zero_copy: bool) -> memoryview:
    """Return a partition's bytes up to `end`, the complete batches; copied unless they make up most of the response's memory.

    A broker cuts the last batch off at the requested size (KIP-74). This incomplete batch is useless, but would stay in
    memory, uncounted, as long as the batches before it: where batches are large, almost as much again as those.
    """
    kept = data[: end + PREFIX_BYTES]  # enough of the rest to check that a batch begins there
    return kept if zero_copy and len(data) - end <= end // 8 else memoryview(bytes(kept))

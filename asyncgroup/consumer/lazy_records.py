"""A sequence of records that decodes its record batches only when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, overload

from asyncgroup.columns import RecordColumns
from asyncgroup.consumer.columnar import read_columns
from asyncgroup.model import Record, TopicPartition, add_records
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.decompression import CODECS, size_hint
from asyncgroup.wire.records import MAX_DECOMPRESSED, read_batch

__all__ = ["LARGE_BYTES", "LARGE_COUNT", "LazyRecords", "is_slow"]


LARGE_BYTES: Final = 2 << 20
"""Decompressed bytes from which a batch is large. Up to there checking and decoding take about 10 ms, the time that a
reader may hold the event loop; in larger ones the hop to a thread and back (about 0.1 ms) does not matter.
"""

LARGE_COUNT: Final = 50_000
"""Records from which a batch is large: many small records take longer to decode than their bytes suggest."""

_LARGE_LEGACY: Final = 1 << 17
"""The same as `LARGE_BYTES` for magic 0 and 1, which no compiled code decodes."""


def is_slow(batch: BatchView) -> bool:
    """Return whether a batch takes so long to decode that a thread should do it."""
    if batch.record_count > LARGE_COUNT or batch.size > LARGE_BYTES:
        return True
    if batch.codec == CODECS["none"]:
        return False
    return size_hint(batch.codec, batch.payload) > (LARGE_BYTES if batch.magic >= 2 else _LARGE_LEGACY)


class LazyRecords(Sequence[Record]):
    """Records in offset order, held as undecoded record batches and as lists of decoded records.

    Iteration decodes one record after another, and does so again for every further iteration: thousands of Record objects
    at once exceed the processor's cache and keep the garbage collector busy, which took longer than decoding them. Access by
    index decodes all records and keeps them. A compressed batch may hold at most `limit` decompressed bytes.

    `on_unreadable` is called, in the reading thread, when a batch turns out to be unreadable although its checksum is
    right: its records have left the buffer, but the reader never sees them.
    """

    __slots__ = ("_count", "_limit", "_parts", "_tp", "on_unreadable")

    def __init__(self, tp: TopicPartition, limit: int = MAX_DECOMPRESSED) -> None:
        self._tp = tp
        self._limit = limit
        self._parts: list[BatchView | list[Record]] = []
        self._count = 0
        self.on_unreadable: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<LazyRecords {self._tp}: {self._count} records>"

    def add_batch(self, batch: BatchView) -> None:
        """Append a record batch without gaps in its offsets that `check_batch` has accepted."""
        self._parts.append(batch)
        self._count += batch.record_count

    def add_records(self, records: list[Record]) -> None:
        """Append decoded records; at least one."""
        self._parts.append(records)
        self._count += len(records)

    @property
    def first_offset(self) -> int:
        """The offset of the first record, taken from the header of an undecoded batch."""
        part = self._parts[0]
        return part[0].offset if isinstance(part, list) else part.base_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last record, taken from the header of an undecoded batch."""
        part = self._parts[-1]
        return part[-1].offset if isinstance(part, list) else part.last_offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the last record; -1 if unknown (message sets with magic 0 and 1 have none)."""
        part = self._parts[-1]
        return part[-1].leader_epoch if isinstance(part, list) else part.leader_epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        """Decode the records one after another. Raises as `read_batch`, for bad content with a right checksum."""
        return chain.from_iterable(map(self._open, self._parts))

    def add_to(self, columns: RecordColumns) -> None:
        """Append the records to columns, undecoded ones without creating Record objects. Raises as iteration does."""
        for part in self._parts:
            if isinstance(part, list):
                add_records(part, columns)
            else:
                try:
                    read_columns(*self._tp, part, columns, limit=self._limit)
                except Exception:
                    if self.on_unreadable is not None:
                        self.on_unreadable()
                    raise

    def _open(self, part: BatchView | list[Record]) -> Iterator[Record] | list[Record]:
        if isinstance(part, list):
            return part
        return read_batch(*self._tp, part, self._limit, self.on_unreadable)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        decoded = self._parts[0] if len(self._parts) == 1 else None
        if not isinstance(decoded, list):
            decoded = list(self)
            self._parts = [decoded]
        return decoded[index]

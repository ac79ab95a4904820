"""The undecoded record batches of a partition: small ones in runs, the front one decompressed once. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from asyncgroup.errors import AsyncGroupError, CorruptRecordsError
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_run import LARGEST_PLAIN, BatchRun
from asyncgroup.wire.batch_view import HEADER_SIZE, BatchView
from asyncgroup.wire.decompression import decompress_within
from asyncgroup.wire.records import check_batch, decode_batch, read_batch, uncompressed

__all__ = ["LARGE_BYTES", "LARGE_COUNT", "MAX_EXPANSION", "BatchQueue", "plain_form"]

LARGE_BYTES: Final = 2 << 20
"""Decompressed bytes from which a batch is large. Up to there checking and decoding take about 10 ms, the time that a
reader may hold the event loop; in larger ones the hop to a thread and back (about 0.1 ms) does not matter.
"""

LARGE_COUNT: Final = 50_000
"""Records from which a batch is large: many small records take longer to decode than their bytes suggest."""

MAX_EXPANSION: Final = 16
"""Decompressed bytes that a reader gets at once for each wire byte it allows. Common data stays below; bombs, of which each
alone is not large, together would fill the memory and hold the event loop.
"""

_LARGE_LEGACY: Final = 1 << 17
"""The same as `LARGE_BYTES` for magic 0 and 1, which no compiled code decodes."""

_ANY_NUMBER: Final = 1 << 62


class BatchQueue:
    """A queue of record batches and runs.

    A run is read as a whole. If anything in it is wrong, it is replaced by its batches, which are then read one by one: so
    the good ones are delivered, and errors are those of single batches.
    """

    __slots__ = ("_plain", "_ready", "batches", "check_crcs", "limit", "records", "tp")

    def __init__(self, tp: TopicPartition, check_crcs: bool, limit: int) -> None:
        self.tp = tp
        self.check_crcs = check_crcs
        self.limit = limit
        """The largest number of decompressed bytes of a batch."""
        self.batches: deque[BatchView | BatchRun] = deque()
        """The batches and runs; an object that others may keep for a look at them."""
        self.clear()

    def __repr__(self) -> str:
        return f"<BatchQueue {self.tp}: {len(self.batches)} batches and runs>"

    def clear(self) -> None:
        """Drop everything."""
        self.batches.clear()
        self.records = 0
        """The number of records, by the headers."""
        self._ready: tuple[BatchView, list[Record] | BaseException] | None = None
        """The front batch's records, or the error of decoding it, if a thread has decoded it."""
        self._plain: tuple[BatchView, BatchView | None] | None = None
        """The front batch and its `plain_form`, once that was needed."""

    def append(self, batch: BatchView | BatchRun) -> None:
        """Append a batch or a run."""
        self.batches.append(batch)
        self.records += batch.record_count

    def pop(self) -> BatchView | BatchRun:
        """Remove and return the front batch or run."""
        batch = self.batches.popleft()
        self.records -= batch.record_count
        self._plain = None
        return batch

    def is_end_known(self, front: BatchView, log_end: int) -> bool:
        """Return whether the front batch ends where its header says: its records or the next batch confirm it."""
        if front.next_offset > log_end:
            return False
        following = self.batches[1] if len(self.batches) > 1 else None
        if following is not None and following.base_offset >= front.next_offset:
            return True
        return front.is_dense

    def front_batch(self) -> BatchView:
        """Return the front batch; that of a run in front is taken out of the run."""
        front = self.batches[0]
        if isinstance(front, BatchRun):
            first, *rest = front.split_at(1) if len(front.spans) > 1 else (front,)
            self._replace_front(*first.views(), *rest)
            if first.plain is not None:
                self._plain = (cast("BatchView", self.batches[0]), first.plain.views()[0])
        return cast("BatchView", self.batches[0])

    def take_apart(self) -> None:
        """Replace the run in front by its batches."""
        self._replace_front(*cast("BatchRun", self.batches[0]).views())

    def front_within(self, size: int, records: int = _ANY_NUMBER) -> BatchView | BatchRun:
        """Return the front batch, or the front run as far as it is within the limits; a batch alone may exceed them."""
        front = self.batches[0]
        if isinstance(front, BatchRun) and (front.record_count > records or front.size > size):
            if (parts := front.split(records, size)) is None:
                return self.front_batch()
            self._replace_front(*parts)
        return self.batches[0]

    def _replace_front(self, *parts: BatchView | BatchRun) -> None:
        self.batches.popleft()
        self.batches.extendleft(reversed(parts))
        self._plain = None

    def copy_batches(self) -> None:
        """Copy the batches out of the responses that they came in, so that those can be freed."""
        copies = [batch.copy() for batch in self.batches]
        self.batches.clear()
        self.batches.extend(copies)
        self._plain = None

    # --- large batches ------------------------------------------------------------------------------------------

    @property
    def is_front_decoded(self) -> bool:
        """Whether a thread has decoded the front batch."""
        return self._ready is not None and bool(self.batches) and self._ready[0] is self.batches[0]

    @property
    def large_front(self) -> BatchView | None:
        """The front batch if it is large and no thread has decoded it yet, else None."""
        if not self.batches or self.is_front_decoded:
            return None
        if isinstance(self.batches[0], BatchRun):
            self.plain()
        front = self.batches[0]
        return front if isinstance(front, BatchView) and self._plain_form(front) is None else None

    def _plain_form(self, batch: BatchView) -> BatchView | None:
        """Return the `plain_form` of the front batch, which is found once: this is what every later call reads."""
        if self._plain is None or self._plain[0] is not batch:
            self._plain = (batch, plain_form(batch))
        return self._plain[1]

    def decode_call(self, batch: BatchView) -> Callable[[], list[Record]]:
        """Return a function that decodes a batch; it may run in any thread, its result is for `set_decoded`."""
        return partial(decode_batch, *self.tp, batch, self.check_crcs, self.limit)

    def set_decoded(self, batch: BatchView, outcome: list[Record] | BaseException) -> None:
        """Store a batch's records, or the error of decoding it, until `decode`; ignored if it is not the front batch."""
        if self.batches and self.batches[0] is batch:
            self._ready = (batch, outcome)

    # --- reading ------------------------------------------------------------------------------------------------

    def plain(self) -> BatchView | BatchRun:
        """Return the front run checked and decompressed, or the front batch, decompressed if the limit allows it.

        If the run cannot be read as a whole, it is replaced by its batches; if it is too large to be decompressed at once,
        the rest of it becomes a separate run.
        """
        front = self.batches[0]
        if isinstance(front, BatchRun):
            found = front.plain or self._uncompress(front)
            if found is not None:
                return found
        batch = self.front_batch()
        plain = self._plain[1] if self._plain is not None and self._plain[0] is batch else None
        return batch if plain is None or plain.size - HEADER_SIZE > self.limit else plain

    def _uncompress(self, run: BatchRun) -> BatchRun | None:
        """Check and decompress the run in front; None if that failed: its batches are in front now."""
        found = None
        if not self.check_crcs or run.is_valid():
            found = run.uncompressed(min(LARGEST_PLAIN, self.limit))
        if found is None:
            self.take_apart()
            return None
        plain, count = found
        if count < len(run.spans):
            run, rest = run.split_at(count)
            self._replace_front(run, rest)
        run.is_checked = True
        run.expanded = plain if run.has_compressed else None
        return plain

    def decode(self, most: int) -> list[Record] | None:
        """Return the records of the front batch or run, which stays; None if the run was replaced by its batches.

        Of a run only the first batches of together `most` wire bytes are decoded, but at least one.

        Raises as `decode_batch`, for the front batch. An error stored by `set_decoded` is raised once; the next call
        decodes again.
        """
        self.front_within(most)
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is self.batches[0]:
            if isinstance(ready[1], BaseException):
                raise ready[1]
            return ready[1]
        plain = self.plain()
        if isinstance(plain, BatchRun):
            try:
                return list(read_batch(*self.tp, plain))
            except CorruptRecordsError:
                self.take_apart()
                return None
        check_batch(*self.tp, cast("BatchView", self.batches[0]), self.check_crcs)
        return list(read_batch(*self.tp, plain, self.limit, check_crc=self.check_crcs))


def plain_form(batch: BatchView) -> BatchView | None:
    """Return the form of a batch that the event loop should decode; None if that takes so long that a thread should do it.

    A compressed batch of magic 2 is decompressed for that, up to `LARGE_BYTES`, which takes some milliseconds at most; the
    result is kept, so that no batch is decompressed twice. A malformed one is returned as it is: reading it will raise.
    One of magic 0 or 1 is returned as it is too, as its decompression is a small part of the time to decode it.
    """
    if batch.record_count > LARGE_COUNT or batch.size > LARGE_BYTES:
        return None
    if not batch.codec:
        return batch
    try:
        if batch.magic >= 2:
            return uncompressed(batch, LARGE_BYTES)
        return batch if decompress_within(batch.codec, batch.payload, _LARGE_LEGACY) is not None else None
    except AsyncGroupError:
        return batch

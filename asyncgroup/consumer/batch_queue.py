"""The undecoded record batches of a partition: small ones in runs, the front one decompressed once. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from asyncgroup.consumer.decoding import plain_form
from asyncgroup.errors import CorruptRecordsError
from asyncgroup.model import Record, TopicPartition
from asyncgroup.wire.batch_run import LARGEST_PLAIN, BatchRun
from asyncgroup.wire.batch_view import HEADER_SIZE, BatchView
from asyncgroup.wire.records import check_batch, decode_batch, read_batch

__all__ = ["BatchQueue"]


class BatchQueue:
    """A queue of record batches and runs.

    A run is read as a whole. If anything in it is wrong, it is replaced by its batches, which are then read one by one: so
    the good ones are delivered, and errors are those of single batches.
    """

    __slots__ = ("_check_crcs", "_limit", "_plain", "_queue", "_ready", "_tp", "records")

    def __init__(self, tp: TopicPartition, check_crcs: bool, limit: int) -> None:
        self._tp = tp
        self._check_crcs = check_crcs
        self._limit = limit
        self._queue: deque[BatchView | BatchRun] = deque()
        self.clear()

    def __repr__(self) -> str:
        return f"<BatchQueue {self._tp}: {len(self._queue)} batches and runs>"

    def clear(self) -> None:
        """Drop everything."""
        self._queue.clear()
        self.records = 0
        """The number of records, by the headers."""
        self._ready: tuple[BatchView, list[Record] | BaseException] | None = None
        """The front batch's records, or the error of decoding it, if a thread has decoded it."""
        self._plain: tuple[BatchView, BatchView | None] | None = None
        """The front batch and its `plain_form`, once that was needed."""

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, batch: BatchView | BatchRun) -> None:
        """Append a batch or a run."""
        self._queue.append(batch)
        self.records += batch.record_count

    def pop(self) -> BatchView | BatchRun:
        """Remove and return the front batch or run."""
        batch = self._queue.popleft()
        self.records -= batch.record_count
        self._plain = None
        return batch

    @property
    def front(self) -> BatchView | BatchRun:
        """The front batch or run."""
        return self._queue[0]

    @property
    def following(self) -> BatchView | BatchRun | None:
        """The one after it."""
        return self._queue[1] if len(self._queue) > 1 else None

    def front_batch(self) -> BatchView:
        """Return the front batch; that of a run in front is taken out of the run."""
        front = self._queue[0]
        if isinstance(front, BatchRun):
            first, *rest = front.split_at(1) if len(front.spans) > 1 else (front,)
            self._replace_front(*first.views(), *rest)
            if first.plain is not None:
                self._plain = (cast("BatchView", self._queue[0]), first.plain.views()[0])
        return cast("BatchView", self._queue[0])

    def take_apart(self) -> None:
        """Replace the run in front by its batches."""
        self._replace_front(*cast("BatchRun", self._queue[0]).views())

    def front_within(self, records: int, size: int) -> BatchView | BatchRun:
        """Return the front batch, or the front run as far as it is within the limits; a batch alone may exceed them."""
        front = self._queue[0]
        if isinstance(front, BatchRun) and (front.record_count > records or front.size > size):
            if (parts := front.split(records, size)) is None:
                return self.front_batch()
            self._replace_front(*parts)
        return self._queue[0]

    def _replace_front(self, *parts: BatchView | BatchRun) -> None:
        self._queue.popleft()
        self._queue.extendleft(reversed(parts))
        self._plain = None

    def copy_batches(self) -> None:
        """Copy the batches out of the responses that they came in, so that those can be freed."""
        self._queue = deque(batch.copy() for batch in self._queue)
        self._plain = None

    # --- large batches ------------------------------------------------------------------------------------------

    @property
    def is_front_decoded(self) -> bool:
        """Whether a thread has decoded the front batch."""
        return self._ready is not None and bool(self._queue) and self._ready[0] is self._queue[0]

    @property
    def large_front(self) -> BatchView | None:
        """The front batch if it is large and no thread has decoded it yet, else None."""
        if not self._queue or self.is_front_decoded:
            return None
        if isinstance(self._queue[0], BatchRun):
            self.plain()
        front = self._queue[0]
        return front if isinstance(front, BatchView) and self._plain_form(front) is None else None

    def _plain_form(self, batch: BatchView) -> BatchView | None:
        """Return the `plain_form` of the front batch, which is found once: this is what every later call reads."""
        if self._plain is None or self._plain[0] is not batch:
            self._plain = (batch, plain_form(batch))
        return self._plain[1]

    def decode_call(self, batch: BatchView) -> Callable[[], list[Record]]:
        """Return a function that decodes a batch; it may run in any thread, its result is for `set_decoded`."""
        return partial(decode_batch, *self._tp, batch, self._check_crcs, self._limit)

    def set_decoded(self, batch: BatchView, outcome: list[Record] | BaseException) -> None:
        """Store a batch's records, or the error of decoding it, until `decode`; ignored if it is not the front batch."""
        if self._queue and self._queue[0] is batch:
            self._ready = (batch, outcome)

    # --- reading ------------------------------------------------------------------------------------------------

    def plain(self) -> BatchView | BatchRun:
        """Return the front run checked and decompressed, or the front batch, decompressed if the limit allows it.

        If the run cannot be read as a whole, it is replaced by its batches; if it is too large to be decompressed at once,
        the rest of it becomes a separate run.
        """
        front = self._queue[0]
        if isinstance(front, BatchRun):
            found = front.plain or self._uncompress(front)
            if found is not None:
                return found
        batch = self.front_batch()
        plain = self._plain[1] if self._plain is not None and self._plain[0] is batch else None
        return batch if plain is None or plain.size - HEADER_SIZE > self._limit else plain

    def _uncompress(self, run: BatchRun) -> BatchRun | None:
        """Check and decompress the run in front; None if that failed: its batches are in front now."""
        found = None
        if not self._check_crcs or run.is_valid():
            found = run.uncompressed(min(LARGEST_PLAIN, self._limit))
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

    def decode(self) -> list[Record] | None:
        """Return the records of the front batch or run, which stays; None if the run was replaced by its batches.

        Raises as `decode_batch`, for the front batch. An error stored by `set_decoded` is raised once; the next call
        decodes again.
        """
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is self._queue[0]:
            if isinstance(ready[1], BaseException):
                raise ready[1]
            return ready[1]
        plain = self.plain()
        if isinstance(plain, BatchRun):
            try:
                return list(read_batch(*self._tp, plain))
            except CorruptRecordsError:
                self.take_apart()
                return None
        check_batch(*self._tp, self.front_batch(), self._check_crcs)
        return list(read_batch(*self._tp, plain, self._limit, check_crc=self._check_crcs))

"""Decode large record batches in a worker thread, so that they do not delay heartbeats and other partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from asyncgroup.wire.decompression import CODECS, size_hint
from asyncgroup.wire.off_loop import run_off_loop
from asyncgroup.wire.primitives import Buffer
from asyncgroup.wire.records import BatchHeader, payload

if TYPE_CHECKING:
    from asyncgroup.consumer.buffer import RecordBuffer
    from asyncgroup.consumer.lazy_records import RawBatch
    from asyncgroup.model import Record

__all__ = ["LARGE_BYTES", "LARGE_COUNT", "BatchDecoder", "is_slow"]

LARGE_BYTES: Final = 2 << 20
"""Decompressed bytes from which a batch is large. Up to there checking and decoding take about 10 ms, the time that a
reader may hold the event loop; in larger ones the hop to a thread and back (about 0.1 ms) does not matter.
"""

LARGE_COUNT: Final = 50_000
"""Records from which a batch is large: many small records take longer to decode than their bytes suggest."""

_LARGE_LEGACY: Final = 1 << 12
"""Compressed bytes from which a message set (magic 0 or 1) is large: its decompressed size is not determined."""


def is_slow(header: BatchHeader, data: Buffer) -> bool:
    """Return whether a batch takes so long to decode that a thread should do it."""
    if header.record_count > LARGE_COUNT or header.size > LARGE_BYTES:
        return True
    if header.codec == CODECS["none"]:
        return False
    if header.magic < 2:
        return header.size > _LARGE_LEGACY
    return size_hint(header.codec, payload(data)) > LARGE_BYTES


class BatchDecoder:
    """Decodes the front batch of one partition's buffer in a thread if it is large; one batch at a time.

    The result is stored in the buffer and `on_done` is called, which wakes the readers. No reader waits for the thread
    itself, so that a canceled read loses nothing; after a seek or the partition's end the result is discarded.
    """

    def __init__(self, buffer: RecordBuffer, on_done: Callable[[], None]) -> None:
        self._buffer = buffer
        self._on_done = on_done
        self._batch: RawBatch | None = None  # the batch that `_task` decodes
        self._task: asyncio.Task[list[Record]] | None = None

    def __repr__(self) -> str:
        return f"<BatchDecoder: {'busy' if self._task is not None else 'idle'}>"

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being decoded in a thread."""
        return self._task is not None

    def must_wait(self) -> bool:
        """Return whether the front batch is being decoded in a thread; start that if the batch is large."""
        batch = self._buffer.large_front
        if batch is None:
            return False
        if self._batch is not batch:
            self.cancel()
            self._start(batch)
        return True

    def _start(self, batch: RawBatch) -> None:
        work = run_off_loop(self._buffer.decode_call(batch))
        self._batch = batch
        self._task = asyncio.get_running_loop().create_task(work, name=f"decode for {self._buffer}")
        self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[list[Record]]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if task is self._task:
            batch, self._batch, self._task = self._batch, None, None
            assert batch is not None
            self._buffer.set_decoded(batch, task.result() if error is None else error)
            self._on_done()

    def cancel(self) -> None:
        """Discard the batch being decoded: the position has moved, or the partition has ended."""
        task, self._task, self._batch = self._task, None, None
        if task is not None:
            task.cancel()

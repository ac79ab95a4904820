"""Decoding of large record batches in a worker thread, so that heartbeats and other partitions do not wait for it."""

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
"""Bytes, decompressed. Up to there checking and decoding take some 10 ms, as long as a reader may have the loop at once;
a hop to a thread and back (about 0.1 ms) is lost in anything larger.
"""

LARGE_COUNT: Final = 50_000
"""Records of one batch; as many small ones take longer than their bytes say."""

_LARGE_LEGACY: Final = 1 << 12
"""Bytes of a compressed message set of the time before record batches: how much it holds is not looked for."""


def is_slow(header: BatchHeader, data: Buffer) -> bool:
    """Whether a batch takes so long to decode that it should be done off the event loop."""
    if header.record_count > LARGE_COUNT or header.size > LARGE_BYTES:
        return True
    if header.codec == CODECS["none"]:
        return False
    if header.magic < 2:
        return header.size > _LARGE_LEGACY
    return size_hint(header.codec, payload(data)) > LARGE_BYTES


class BatchDecoder:
    """Decodes the batch in front of one partition's buffer in a thread if it is large; one at a time.

    The result goes to the buffer, and `on_done` is called: whoever waits looks again. Nobody waits for the thread
    itself, so that a cancelled read loses nothing, and a seek or the partition's end makes the result void.
    """

    def __init__(self, buffer: RecordBuffer, on_done: Callable[[], None]) -> None:
        self._buffer, self._on_done = buffer, on_done
        self._batch: RawBatch | None = None
        self._task: asyncio.Task[list[Record]] | None = None

    def __repr__(self) -> str:
        return f"<BatchDecoder: {'busy' if self._task is not None else 'idle'}>"

    @property
    def is_busy(self) -> bool:
        """Whether a thread is at work for the partition."""
        return self._task is not None

    def must_wait(self) -> bool:
        """Whether the batch in front is being decoded in a thread, which is started if need be."""
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
        """Nobody wants the result any more."""
        task, self._task, self._batch = self._task, None, None
        if task is not None:
            task.cancel()

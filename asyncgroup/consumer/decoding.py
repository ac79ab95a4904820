"""Decode large record batches in a worker thread, so that they do not delay heartbeats and other partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from asyncgroup.consumer.buffer import RecordBuffer
from asyncgroup.model import Record
from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.off_loop import run_off_loop

__all__ = ["BatchDecoder"]


class BatchDecoder:
    """Decodes the front batch of one partition's buffer in a thread if it is large; one batch at a time.

    The result is stored in the buffer and `on_done` is called, which wakes the readers. No reader waits for the thread
    itself, so that a canceled read loses nothing; after a seek or the partition's end the result is discarded.
    """

    def __init__(self, buffer: RecordBuffer, on_done: Callable[[], None]) -> None:
        self._buffer = buffer
        self._on_done = on_done
        self._batch: BatchView | None = None  # the batch that `_task` decodes
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

    def _start(self, batch: BatchView) -> None:
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

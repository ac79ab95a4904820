"""Compress large batches on threads, so that the event loop goes on: a batch of 128 KiB takes a third of a millisecond."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from asyncgroup.off_loop import run_off_loop
from asyncgroup.producer.batches.batch import ProducerBatch

__all__ = ["BatchCompressor"]

_JOBS: Final = 2
"""Computations at the same time; `run_off_loop` has as many threads."""

_JOB_BATCHES: Final = 8
"""The most batches of a computation: enough that its begin and its end cost little."""


class BatchCompressor:
    """Compresses closed batches in order. `on_compressed(batches)` is called when some are done; `spawn` runs coroutine functions.

    A batch that is waiting or being compressed is `compressing`, and is not sent.
    """

    def __init__(
        self, spawn: Callable[..., None], on_compressed: Callable[[Sequence[ProducerBatch]], None]
    ) -> None:
        self._spawn = spawn
        self._on_compressed = on_compressed
        self._waiting: deque[ProducerBatch] = deque()
        self._jobs = 0  # that run

    def __repr__(self) -> str:
        return f"<BatchCompressor: {len(self._waiting)} batches waiting, {self._jobs} jobs>"

    def add(self, batches: Sequence[ProducerBatch]) -> None:
        """Compress these batches; they are closed."""
        self._waiting += batches
        for _ in range(min(_JOBS - self._jobs, len(self._waiting))):
            self._jobs += 1
            self._spawn(self._run, name="compress")

    async def _run(self) -> None:
        try:
            while self._waiting:
                share = min(_JOB_BATCHES, -(-len(self._waiting) // _JOBS))
                batches = [self._waiting.popleft() for _ in range(share)]
                await run_off_loop(_compress, batches)
                self._on_compressed(batches)
        finally:
            self._jobs -= 1


def _compress(batches: Sequence[ProducerBatch]) -> None:
    for batch in batches:
        batch.compress()

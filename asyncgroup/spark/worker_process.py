"""Garbage collection in the Python workers of Spark's executors, which run many short tasks one after another."""

from __future__ import annotations

import gc
import os

__all__ = ["freeze_heap"]

_frozen_pid = 0
"""Id of the process in which `freeze_heap` has run; a forked child has another id and runs it again."""


def freeze_heap() -> None:
    """Exclude the objects loaded so far from garbage collection (`gc.freeze`), once per worker, after its first task.

    Spark collects all generations after each task (`pyspark/daemon.py`). With pyarrow loaded this takes 15 ms, as long as
    reading thousands of rows, and delays the worker's next task. Frozen objects are still freed when their reference
    count drops to zero. Does nothing outside a Spark task.
    """
    global _frozen_pid
    if _frozen_pid == os.getpid():
        return
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    _frozen_pid = os.getpid()
    gc.collect()  # otherwise existing garbage would be frozen, too
    gc.freeze()

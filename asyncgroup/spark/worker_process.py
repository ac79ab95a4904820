"""The Python workers of Spark's executors, as processes that do one small task after another."""

from __future__ import annotations

import gc
import os

__all__ = ["freeze_heap"]

_frozen_pid = 0
"""The process that has settled: a fork of it begins anew."""


def freeze_heap() -> None:
    """Take what is loaded by now from the garbage collector's sight; once in a worker, at the end of its first task.

    Spark has all generations collected after each task (`pyspark/daemon.py`). With pyarrow and the rest loaded that takes
    15 ms, as long as to read thousands of rows, and the worker's next task waits for it. What is taken away is freed
    all the same when nothing refers to it any more. Elsewhere than in a task of Spark's this does nothing.
    """
    global _frozen_pid
    if _frozen_pid == os.getpid():
        return
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    _frozen_pid = os.getpid()
    gc.collect()  # garbage would stay otherwise
    gc.freeze()

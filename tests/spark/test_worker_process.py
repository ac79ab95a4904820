"""Garbage collection in a Python worker of Spark after its first task."""

from __future__ import annotations

import gc
import subprocess
import sys

from asyncgroup.spark.worker_process import freeze_heap

TASK = """
import gc, pyarrow
from pyspark import TaskContext
from asyncgroup.spark.worker_process import THAW_EVERY, freeze_heap
class Loop: pass
garbage = Loop(); garbage.me = garbage; del garbage
gc.disable()
TaskContext._taskContext = TaskContext()
freeze_heap()
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen
assert not [each for each in gc.get_objects() if type(each) is Loop]
later = Loop()
freeze_heap()
assert gc.get_freeze_count() > frozen  # what is kept for the next tasks
later.me = later
del later
for _ in range(THAW_EVERY - 2):
    freeze_heap()
count = gc.get_freeze_count()
freeze_heap()
assert gc.get_freeze_count() < count  # the cycle is gone
"""


def test_objects_are_frozen_after_each_task() -> None:
    subprocess.run([sys.executable, "-c", TASK], check=True, timeout=60)


def test_nothing_is_frozen_outside_a_task() -> None:
    before = gc.get_freeze_count()
    freeze_heap()
    assert gc.get_freeze_count() <= before

"""A Python worker of Spark after its first task."""

from __future__ import annotations

import gc
import subprocess
import sys

from asyncgroup.spark.worker_process import freeze_heap

TASK = """
import gc, pyarrow
from pyspark import TaskContext
from asyncgroup.spark.worker_process import freeze_heap
class Loop: pass
garbage = Loop(); garbage.me = garbage; del garbage
gc.disable()
TaskContext._taskContext = TaskContext()
freeze_heap()
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen
assert not [each for each in gc.get_objects() if type(each) is Loop]
later = [Loop()]
freeze_heap()
assert gc.get_freeze_count() == frozen
"""


def test_what_is_loaded_is_looked_at_no_more() -> None:
    subprocess.run([sys.executable, "-c", TASK], check=True, timeout=60)


def test_another_process_is_left_alone() -> None:
    before = gc.get_freeze_count()
    freeze_heap()
    assert gc.get_freeze_count() == before
